"""Memory policies, by the name that configuration and presets use."""

from controlplane.core.memory.lru import Lru

MEMORY = {
    "lru": Lru,
}

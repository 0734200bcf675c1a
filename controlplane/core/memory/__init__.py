"""Memory policies, by the name that configuration and presets use."""

from controlplane.core.memory.lru import Lru
from controlplane.core.memory.opportunistic import Opportunistic

MEMORY = {
    "lru": Lru,
    "opportunistic": Opportunistic,
}

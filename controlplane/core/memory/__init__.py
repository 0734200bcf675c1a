"""Memory policies, by the name that configuration and presets use."""

from controlplane.core.memory.lru import Lru
from controlplane.core.memory.opportunistic import Opportunistic
from controlplane.core.memory.typed import Typed

MEMORY = {
    "lru": Lru,
    "opportunistic": Opportunistic,
    "typed": Typed,
}

"""Memory policies, by the name that configuration and presets use."""

from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.memory.typed import Typed

MEMORY = {
    "lru": Lru,
    "opportunistic": Opportunistic,
    "typed": Typed,
}

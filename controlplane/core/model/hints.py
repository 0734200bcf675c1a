"""What clients ask for beside an answer, in one vocabulary, and how far an operator lets it count.

A gate reads the many spellings (``controlplane.gate.hints``). A hint is a wish: the policies decide, within these
bounds, and whatever a hint has decided says so in its reason.
"""

from dataclasses import dataclass, fields
from enum import StrEnum

from controlplane.core.model.errors import require


class ServiceTier(StrEnum):
    """Which turns go first, as OpenAI's API names it."""

    FLEX = "flex"  # it waits while others do, and gives its slot back to them between two turns
    DEFAULT = ""
    PRIORITY = "priority"  # it goes first, while its kind hold no more than a share of the pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Hints:
    """What a program's client has asked for last. ``..._by`` is the field or the header that said so.

    Times are nanoseconds from the end of a turn; 0: nothing was said. ``retain_least_ns``: for which the context is
    to be kept; ``retain_most_ns``: beyond which it need not be. ``move``: the ``Tier`` at which it is to lie.
    """

    service_tier: str = ""
    objective: str = ""
    tier_by: str = ""
    output_tokens: int = 0
    retain_least_ns: int = 0
    retain_most_ns: int = 0
    retain_by: str = ""
    move: str = ""
    move_by: str = ""


HINT_FIELDS = tuple(field.name for field in fields(Hints))
NO_HINTS = Hints()


@dataclass(frozen=True, slots=True, kw_only=True)
class HintRules:
    """How far what clients ask for is followed. Who asks for less, as for flex, always gets it."""

    retain_most_s: float = 0.0  # longest that a context is kept because its client asks for it; 0: none is
    priority_share: float = 0.0  # of the pool, in which programs of the priority tier go first; 0: they do not
    priority_objectives: tuple[str, ...] = ()  # that stand for the priority tier
    flex_objectives: tuple[str, ...] = ()  # that stand for the flex tier

    def __post_init__(self) -> None:
        require("retain_most_s", self.retain_most_s, low=0, high=86_400)
        require("priority_share", self.priority_share, low=0, high=1)

    def tier_of(self, hints: Hints) -> ServiceTier:
        """The tier that the client asks for, by itself or by its objective's name."""
        if hints.service_tier in (ServiceTier.FLEX, ServiceTier.PRIORITY):
            return ServiceTier(hints.service_tier)
        if not hints.objective:
            return ServiceTier.DEFAULT
        if hints.objective in self.flex_objectives:
            return ServiceTier.FLEX
        return ServiceTier.PRIORITY if hints.objective in self.priority_objectives else ServiceTier.DEFAULT

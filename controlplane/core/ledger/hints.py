"""What programs' clients have asked for beside an answer."""

from dataclasses import dataclass, field

from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Programs
from controlplane.core.model.events import TurnHinted
from controlplane.core.model.hints import HINT_FIELDS, Hints
from controlplane.core.model.types import Tier


@dataclass(slots=True, kw_only=True, eq=False)
class Hinted:
    """Each program's wishes are in its record; here is what spares everybody else the look at them."""

    programs: Programs
    tiers_asked: bool = persisted(bool)  # somebody has asked for a service tier
    to_fetch: dict[str, None] = field(default_factory=dict)  # programs whose clients ask for their contexts now

    def hinted(self, event: TurnHinted, now_ns: int) -> None:
        program = self.programs.get_or_create(event.program_id, now_ns)
        program.asked = hints = Hints(**{name: getattr(event, name) for name in HINT_FIELDS})
        self.tiers_asked = self.tiers_asked or bool(hints.service_tier or hints.objective)
        if hints.move == Tier.HBM:
            self.to_fetch[program.program_id] = None

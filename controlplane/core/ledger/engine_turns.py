"""Turns that engines hold, and their sums by engine."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from controlplane.core.estimators.prompt_size import PromptSize
from controlplane.core.estimators.saturation import Prefilled
from controlplane.core.ledger.index import Tally
from controlplane.core.model.places import place_of


@dataclass(slots=True, kw_only=True)
class EngineTurn:
    """A turn that an engine holds."""

    program_id: str
    publisher: str
    blocks: int = 0  # that it was projected to need
    size: PromptSize | None = None  # of its prompt, where a gate measured it
    prefilled: Prefilled | None = None  # None: its first token has yet to come, or nobody timed it


@dataclass(slots=True, kw_only=True)
class EngineLoad:
    """By place of the engine: the turns that it holds, and the blocks that they are projected to need."""

    turns: Tally = field(default_factory=Tally)
    blocks: Tally = field(default_factory=Tally)
    touched: set[str] = field(default_factory=set, compare=False)  # places whose sums changed, for ``demand``

    @classmethod
    def of(cls, running: Iterable[EngineTurn]) -> "EngineLoad":
        """Recomputed from the records."""
        load = cls()
        for turn in running:
            load.count(turn, 1)
        return load

    def count(self, turn: EngineTurn, by: int) -> None:
        """Add ``by`` turns like this one."""
        place = place_of(turn.publisher)
        self.turns.add(place, by)
        self.blocks.add(place, by * turn.blocks)
        self.touched.add(place)

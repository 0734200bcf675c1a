"""Turns that gates hold until their program has a slot."""

from dataclasses import dataclass, field

from controlplane.core.ledger.index import Index
from controlplane.core.ledger.persisted import persisted
from controlplane.core.ledger.programs import Programs, note_idle
from controlplane.core.model import events as ev
from controlplane.core.model.types import Program, Status


@dataclass(slots=True, kw_only=True)
class HeldTurn:
    """A turn that the gate holds."""

    program_id: str
    publisher: str
    blocks: int
    guessed: tuple[str, ...] = ()  # what of the estimate nobody has taught


@dataclass(slots=True, kw_only=True, eq=False)
class Gates:
    """What is held, by ``turn_id``."""

    programs: Programs
    held: dict[str, HeldTurn] = persisted(dict)
    refused: dict[str, int] = persisted(dict)  # turns that left unserved, by code
    newcomers: dict[str, int] = field(default_factory=dict)  # roots that came lately: for how long they wait
    held_of: dict[str, dict[str, None]] = field(default_factory=dict)  # turn_ids by root
    own: dict[str, dict[str, None]] = field(default_factory=dict)  # turn_ids by program
    by_publisher: Index = field(default_factory=Index)  # turn_ids

    def __post_init__(self) -> None:
        for turn_id, held in self.held.items():
            self.held_of.setdefault(self.programs.by_name[held.program_id].root_id, {})[turn_id] = None
            self.own.setdefault(held.program_id, {})[turn_id] = None
            self.by_publisher.add(held.publisher, turn_id)

    def hold(self, turn_id: str, held: HeldTurn, root: Program, now_ns: int) -> None:
        self.held[turn_id] = held
        self.by_publisher.add(held.publisher, turn_id)
        self.held_of.setdefault(root.program_id, {})[turn_id] = None
        self.own.setdefault(held.program_id, {})[turn_id] = None
        if not root.queued_at_ns and root.status is not Status.ACTIVE:  # who left and asks again keeps its place
            root.queued_at_ns = now_ns
        self.programs.queue_more(root, 1, held.blocks)

    def let_go(self, turn_id: str, now_ns: int) -> None:
        """A turn waits no longer, whether it was granted, ran unasked, or left."""
        held = self.held.pop(turn_id, None)
        if held is None:
            return
        self.by_publisher.drop(held.publisher, turn_id)
        program = self.programs.by_name[held.program_id]
        note_idle(program, now_ns)
        root = self.programs.by_name[program.root_id]
        for turns_of, name in ((self.held_of, root.program_id), (self.own, program.program_id)):
            del turns_of[name][turn_id]
            if not turns_of[name]:
                del turns_of[name]
        self.programs.queue_more(root, -1, -held.blocks)

    def turns_refused(self, event: ev.TurnsRefused, now_ns: int) -> None:
        """A gate let turns go unserved. Codes of a later version are one."""
        code = event.code if event.code in ev.REFUSALS else "other"
        self.refused[code] = self.refused.get(code, 0) + event.turns

    def of(self, program: Program) -> list[tuple[str, HeldTurn]]:
        return [(turn_id, self.held[turn_id]) for turn_id in self.own.get(program.program_id, ())]

    def guessed(self, root_id: str) -> list[str]:
        """What of the held turns' sizes nobody has taught: text, or kinds of media."""
        return sorted({what for key in self.held_of.get(root_id, ()) for what in self.held[key].guessed})

    def waiting_family(self, root_id: str) -> list[str]:
        """The root, and its children that have held turns."""
        waiting = {root_id: None} | {self.held[key].program_id: None for key in self.held_of.get(root_id, ())}
        return list(waiting)

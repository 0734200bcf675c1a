"""Demote, Prefetch and Discard by the calls that llama.cpp's server has: which are due, and what they change.

A saved context is a file of the server's, and a program has one at most. Files take no more than a budget together:
the ones saved the longest ago go for a new one. A demoted context stays in its slot until that is needed; once its
turn goes on, or it is loaded back, the file is deleted. Nothing is erased: with non-unified KV that frees nothing,
and what lies in a slot that is nobody's is a prefix for the next agent of its kind.
"""

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field

from controlplane.core.model.commands import Demote, Discard, Prefetch
from controlplane.gate.tickets import Ticket
from engine_hooks.llamacpp.slots import MOVES, NOTHING_HERE, Begun, Slot, SlotTable, goes_on

FILE_PREFIX, FILE_SUFFIX = "penstock-", ".slot"
TierCommand = Demote | Discard | Prefetch


@dataclass(frozen=True, slots=True)
class Call:
    """``POST /slots/SLOT?action=ACTION`` with that file; the action is ``save`` or ``restore``."""

    action: str
    slot_id: int
    filename: str


@dataclass(slots=True, kw_only=True)
class Saved:
    """A context in a file. ``context`` and ``size`` as of its slot."""

    filename: str
    context: str
    size: int
    file_bytes: int
    loading: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A call to make; ``end`` must follow, however it went. ``lost``: the program whose context made room."""

    program_id: str
    slot: Slot
    call: Call
    lost: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """What was done: why it failed (empty: it did not), files to delete, and whose contexts are lost."""

    problem: str = ""
    delete: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


@dataclass(slots=True)
class Moves:
    """The files of one server, saved from the slots of ``table``. ``budget_bytes`` 0: there are to be none."""

    table: SlotTable
    budget_bytes: int
    saved: OrderedDict[str, Saved] = field(default_factory=OrderedDict)  # by program, oldest first

    @property
    def saved_bytes(self) -> int:
        return sum(each.file_bytes for each in self.saved.values())

    @property
    def room(self) -> int:
        """For how many contexts more there is room; as many as slots while nobody knows what one takes."""
        if not self.budget_bytes:
            return 0
        if not self.saved:
            return len(self.table.slots)
        return (self.budget_bytes - self.saved_bytes) * len(self.saved) // max(1, self.saved_bytes)

    def due(self, command: TierCommand, now_ns: int) -> Move | Moved:
        """What is to be done for a command, or what has been done without a call.

        Whatever comes of it, nothing of the program is retained afterwards, unless it was to be loaded.
        """
        program_id = command.program_id
        slot, saved = self.table.main(program_id), self.saved.get(program_id)
        if not isinstance(command, Prefetch):
            self.table.release(program_id)
        if slot is None and saved is None:
            return Moved(problem=NOTHING_HERE)
        if saved is not None and saved.loading:
            return Moved(problem=MOVES)
        if slot is not None and (problem := self.table.problem_with(slot)):
            return Moved(problem=problem)
        if isinstance(command, Prefetch):
            return self._load(program_id, slot, saved, now_ns)
        if isinstance(command, Demote):
            return self._save(program_id, slot)
        for each in self.table.of_program(program_id):
            if each.is_idle:
                each.give_up()
        return Moved(delete=self.drop(program_id))

    def _save(self, program_id: str, slot: Slot | None) -> Move | Moved:
        if slot is None or slot.copied:
            return Moved(problem="it was demoted before")
        if not self.budget_bytes:
            return Moved(problem="there is no place for it: give the gate --slot-save-path, as the server")
        slot.moving = True
        name = hashlib.sha256(program_id.encode()).hexdigest()[:24]
        call = Call("save", slot.slot_id, f"{FILE_PREFIX}{name}{FILE_SUFFIX}")
        return Move(program_id=program_id, slot=slot, call=call)

    def _load(self, program_id: str, slot: Slot | None, saved: Saved | None, now_ns: int) -> Move | Moved:
        if saved is None:
            return Moved(problem="it is on the device")
        if slot is not None and slot.copied:
            slot.copied = False
            return Moved(delete=self.drop(program_id))
        free = self.table.spare(now_ns)
        if free is None:
            return Moved(problem="no slot is free for it")
        lost = free.hold(program_id, saved.context, saved.size)
        return self._restore(program_id, free, saved, lost)

    def is_saved(self, ticket: Ticket) -> bool:
        """Whether a file has the context that the turn goes on with."""
        saved = self.saved.get(ticket.program_id)
        return saved is not None and not saved.loading and goes_on(ticket, saved.context)

    def before_turn(self, ticket: Ticket, begun: Begun) -> Move | Moved:
        """What is to be restored into the slot that the turn got, if anything."""
        if not self.is_saved(ticket):
            return Moved()
        if begun.continues:
            return Moved(delete=self.drop(ticket.program_id))
        return self._restore(ticket.program_id, begun.slot, self.saved[ticket.program_id])

    def _restore(self, program_id: str, slot: Slot, saved: Saved, lost: str = "") -> Move:
        saved.loading = slot.moving = True
        call = Call("restore", slot.slot_id, saved.filename)
        return Move(program_id=program_id, slot=slot, call=call, lost=lost)

    def end(self, move: Move, problem: str, file_bytes: int, now_ns: int) -> Moved:
        """The call was made, or failed: ``problem``. ``file_bytes``: what was saved."""
        move.slot.moving, move.slot.changed_ns, move.slot.unseen = False, now_ns, True
        if move.call.action == "save":
            return self._saved(move, problem, file_bytes)
        if problem and not move.slot.turn_id:
            move.slot.empty()
        lost = (move.lost, move.program_id if problem else "")  # a file that is refused is worth nothing
        return Moved(problem=problem, delete=self.drop(move.program_id), lost=tuple(filter(None, lost)))

    def _saved(self, move: Move, problem: str, file_bytes: int) -> Moved:
        self.saved.pop(move.program_id, None)  # an earlier one, of the same name
        if file_bytes > self.budget_bytes:
            problem = f"it takes {file_bytes} bytes, and saved slots may take {self.budget_bytes}"
        if problem:
            return Moved(problem=problem, delete=(move.call.filename,))
        slot = move.slot
        slot.copied = True
        self.saved[move.program_id] = Saved(
            filename=move.call.filename, context=slot.context, size=slot.size, file_bytes=file_bytes
        )
        delete: list[str] = []
        lost: list[str] = []
        for program_id in [name for name, each in self.saved.items() if not each.loading]:
            if self.saved_bytes <= self.budget_bytes:
                break
            delete += self.drop(program_id)
            for each in self.table.of_program(program_id):
                if each.copied:
                    each.give_up()
            lost.append(program_id)
        return Moved(delete=tuple(delete), lost=tuple(lost))

    def drop(self, program_id: str) -> tuple[str, ...]:
        """Its file is of no use any more: the name to delete."""
        saved = self.saved.pop(program_id, None)
        return (saved.filename,) if saved is not None else ()

"""Whose sandbox is asleep now, and who is let in beside those that are awake.

A program that waits for a slot calls no tool before it is let in and its turn has replied. Until then its processes
take memory and CPUs from those that run. They are frozen while it waits, and woken when it is let in, before its
turn begins. Where waking takes longer than a turn may, the next in the queue are awake, as many as are let in
within that time.

**Paper**: MARS §4.2 counts the tools of active programs alone; what those that wait keep on the host is ours.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from math import ceil

from controlplane.core.estimators.workload import as_seconds
from controlplane.core.ledger import Ledger
from controlplane.core.ledger.sandboxes import Sandbox
from controlplane.core.model.commands import Freeze, Thaw
from controlplane.core.model.errors import require
from controlplane.core.model.types import Program, QueuedProgram, Status, seconds
from controlplane.core.scheduling.hold_reasons import Binding, Reason
from controlplane.core.scheduling.room import Fitting

_MOST_AHEAD = 64
_USUAL_AHEAD = 4  # while nobody knows how fast the queue is
_AGAIN_NS = seconds(2)  # a command that was not answered is said again, or after twice the slowest wake
_MARGIN = 1.5  # of the slowest of the latest wakes
_SHORTEST, _SHORTEST_NS = 0.25, seconds(0.1)  # of the mean turn: few are shorter; and none is shorter than that
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class FreezeRules:
    """Sandboxes of programs that wait. They have to be registered as freezable by their agents."""

    freeze: bool = False  # freeze them
    after_s: float = 2.0  # a program waits for so long before its sandbox is frozen, or frozen again
    memory_gb: float = 0.0  # memory of the tool host for sandboxes, in GiB: who does not fit waits; 0: any

    def __post_init__(self) -> None:
        require("after_s", self.after_s, low=0, high=86_400)
        require("memory_gb", self.memory_gb, low=0, high=1_000_000)


def wake_ahead(ledger: Ledger) -> int:
    """How many of the next in the queue are to be awake: those who are let in too soon to be woken then."""
    reply_ns = max(_SHORTEST_NS, _SHORTEST * ledger.estimates.turn_service_ns)
    lead_ns = _MARGIN * ledger.sandboxes.slowest_wake_ns - reply_ns
    if lead_ns <= 0:
        return 0
    each_ns = ledger.estimates.departures.each_ns
    return min(_MOST_AHEAD, ceil(lead_ns / each_ns)) if each_ns else _USUAL_AHEAD


def freezes_due(
    ledger: Ledger, rules: FreezeRules, near: Collection[str], now_ns: int, *, freeze: bool
) -> Iterator[Freeze | Thaw]:
    """Whom to wake, and (``freeze``) whom to freeze. ``near``: roots that are soon let in."""
    sandboxes, after_ns = ledger.sandboxes, seconds(rules.after_s)
    again_ns = now_ns - max(_AGAIN_NS, 2 * sandboxes.slowest_wake_ns)
    for name, sandbox in list(sandboxes.known.items()):
        if not (freeze or sandbox.asleep):
            continue
        program = ledger.programs.by_name.get(name)
        if program is None:  # nobody would wake it
            if sandbox.asleep:
                yield Thaw(program_id=name, reason="its program was forgotten")
            sandboxes.drop(name)
            continue
        waits_ns = _waiting_ns(ledger, program, now_ns) if rules.freeze and program.root_id not in near else -1
        if waits_ns < 0:
            if _is_due(sandbox, False, again_ns):
                yield Thaw(program_id=name, reason=_why_awake(program, near))
        elif freeze and min(waits_ns, sandbox.awake_ns(now_ns)) >= after_ns and _is_due(sandbox, True, again_ns):
            yield Freeze(program_id=name, reason=f"it has waited for {as_seconds(waits_ns):.0f} s")


def _is_due(sandbox: Sandbox, frozen: bool, asked_before_ns: int) -> bool:
    if sandbox.frozen == frozen and sandbox.asked == frozen:
        return False
    return sandbox.asked != frozen or sandbox.asked_ns <= asked_before_ns


def _waiting_ns(ledger: Ledger, program: Program, now_ns: int) -> int:
    """For how long it has waited for a slot or a person; -1: a tool of it may be called, or runs.

    Its children may use its sandbox, and of a tool that nobody reports nothing is known. So it waits only where its
    own turn is held, or where it has no slot and its last reply called no tool.
    """
    programs = ledger.programs
    root = programs.by_name.get(program.root_id, program)
    if root.status is Status.ACTIVE or program.ended_by_word or root.quarantined or program.quarantined:
        return -1
    family = (program, root, *(programs.by_name[name] for name in programs.children_of(root.program_id)))
    if any(each.open_turns or each.open_tools for each in family):
        return -1
    if program.program_id in ledger.gates.own:
        return now_ns - max(root.queued_at_ns, program.idle_since_ns)
    return now_ns - program.gap_since_ns if program.may_end and program.gap_since_ns else -1


def _why_awake(program: Program, near: Collection[str]) -> str:
    if program.open_tools:
        return "it runs a tool"
    return "its turn is near" if program.root_id in near else "it is let in"


def fit_in_memory(fitting: Fitting, ledger: Ledger, rules: FreezeRules, *, empty: bool) -> None:
    """Pass over those that have slots and find no host memory. ``empty``: nobody is in, so that somebody goes."""
    if not rules.memory_gb or not fitting.chosen:
        return
    sandboxes, fit = ledger.sandboxes, list[QueuedProgram]()
    usual = sandboxes.usual_bytes
    left = rules.memory_gb * _GIB - sandboxes.held_bytes(usual)
    for each in fitting.chosen:
        more = sandboxes.waking_bytes(each.program_id, usual)
        if more > max(0.0, left) and (fit or not empty):
            fitting.passed_over[each.program_id] = Binding(Reason.HOST_MEMORY)
            continue
        left -= more
        fit.append(each)
    fitting.chosen = fit

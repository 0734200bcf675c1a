"""How idle a program has been lately, and what its memory weighs while it is.

Idleness is the share of its last cycles that it spent outside the engine.

**Paper**: MORI §4.1-4.2, eq. 1: i = A / (A + R), with A the time that it acted and R the time that it reasoned in
its last k cycles, what it is doing now included. Time that it was held is in neither: that tells of us, not of it.
"""

from dataclasses import dataclass

from controlplane.core.model.types import Program, QueuedProgram

_MOST_CYCLES = 16


def reasons(program: Program, now_ns: int) -> None:
    """The engine has a turn of it, its first that is open."""
    held(program, now_ns)
    program.phase_since_ns = now_ns


def acts(program: Program, now_ns: int) -> None:
    """Its last open turn ended."""
    if program.phase_since_ns:
        program.cycles = (*program.cycles, now_ns - program.phase_since_ns, 0)[-2 * _MOST_CYCLES :]
    program.phase_since_ns = now_ns


def unanswered(program: Program) -> None:
    """The turn that just ended got no answer: neither it nor the time until it is asked again is a cycle's."""
    if program.cycles[-1:] == (0,):
        program.cycles = program.cycles[:-2]
    program.phase_since_ns = 0


def held(program: Program, now_ns: int) -> None:
    """A turn of it waits at the gate: it neither reasons nor acts. Nothing changes while another turn is open."""
    if program.open_turns:
        return
    if program.phase_since_ns and program.cycles:
        program.cycles = (*program.cycles[:-1], program.cycles[-1] + now_ns - program.phase_since_ns)
    program.phase_since_ns = 0


def idleness(program: Program | QueuedProgram, most_cycles: int, now_ns: int) -> float:
    """0: it only reasons; towards 1: it only acts. 0 for one of which nothing is known."""
    reasons_now = program.phase_since_ns > 0 and program.open_turns > 0  # in a cycle that is not among them yet
    cycles = most_cycles - reasons_now
    recent = program.cycles[-2 * cycles :] if cycles else ()
    reasoned_ns, acted_ns = sum(recent[::2]), sum(recent[1::2])
    if reasons_now:
        reasoned_ns += now_ns - program.phase_since_ns
    elif program.phase_since_ns:
        acted_ns += now_ns - program.phase_since_ns
    total_ns = reasoned_ns + acted_ns
    return acted_ns / total_ns if total_ns > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decay:
    """How a program's memory comes to weigh less against others' while it acts: f(t) = ``base``^-t.

    t counts whole ticks of ``tick_ns``; ``continuous``: parts of one, too.

    **Paper**: ThunderAgent §4.3.1, eq. 7, and Appendix E.1: geometric in the periodic monitor's ticks or
    exponential in time, where what is left of a tool does not depend on how long it has run.
    """

    base: float
    tick_ns: int
    continuous: bool = False

    def weight(self, program: Program, now_ns: int) -> float:
        """1 while it reasons."""
        since_ns = acting_since_ns(program)
        if not since_ns:
            return 1.0
        acted_ns = max(0, now_ns - since_ns)
        return float(self.base ** -(acted_ns / self.tick_ns if self.continuous else acted_ns // self.tick_ns))


def acting_since_ns(program: Program) -> int:
    """When its tool or its silence began; 0 while a turn is open."""
    if program.open_turns:
        return 0
    return program.tool_started_at_ns if program.open_tools else program.idle_since_ns

"""How much an acting program's memory weighs against others'.

**Paper**: ThunderAgent §4.3.1, eq. 7: f(t) = 2^-t, with t in half-lives; the right form where a tool's remaining
time does not depend on how long it has run (Appendix E.1).
"""

from controlplane.core.types import ProgramView


def weight(program: ProgramView, half_life_ns: int, now_ns: int) -> float:
    """1 while it reasons; halved with each ``half_life_ns`` that it has acted. 0: never."""
    since_ns = acting_since_ns(program)
    if not half_life_ns or not since_ns:
        return 1.0
    return float(2 ** (-max(0, now_ns - since_ns) / half_life_ns))


def acting_since_ns(program: ProgramView) -> int:
    """When its tool or its silence began; 0 while a turn is open."""
    if program.open_turns:
        return 0
    return program.tool_started_at_ns if program.open_tools else program.idle_since_ns

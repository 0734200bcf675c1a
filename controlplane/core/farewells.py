"""Slots that are over, told to gates and engines: of programs that ended, or whose end a gate has missed."""

from collections.abc import Iterator

from controlplane.core.commands import Pause, ProgramCommand, Release
from controlplane.core.ledger import Ledger
from controlplane.core.types import Status


def due(ledger: Ledger) -> Iterator[ProgramCommand]:
    """What lets go of them, once. Who came back at once keeps what it has."""
    state, programs = ledger.state, ledger.programs
    for name, farewell in state.farewells.items():
        if programs[name].status is Status.ACTIVE:
            continue
        yield Pause(program_id=name, reason=f"ended: {farewell.reason}")
        if farewell.pinned:
            yield Release(program_id=name, reason="ended")
    state.farewells.clear()
    for name in state.overheld:  # their turns would pass until the grant's lease ends
        program = programs.get(name)
        if program is None or program.status is not Status.ACTIVE:
            yield Pause(program_id=name, reason="a gate missed that its slot was taken back")
    state.overheld.clear()

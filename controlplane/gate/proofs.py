"""Proofs of parenthood: the id of one of the parent's turns, which only that turn's client knows."""

from collections import OrderedDict

_MOST_PROGRAMS = 16_384  # of those that had a turn last: who starts a child has just had one
_MOST_TURNS = 8  # of a program: a child is started by a reply that its agent read last, or by one beside it


class Proofs:
    """The latest turns of each program; the longest silent program is forgotten first."""

    def __init__(self, most_programs: int = _MOST_PROGRAMS) -> None:
        self._most_programs = most_programs
        self._turns: OrderedDict[str, tuple[str, ...]] = OrderedDict()

    def remember(self, program_id: str, turn_id: str) -> None:
        """Remember a turn's id that the program's client is about to get."""
        turns = self._turns.pop(program_id, ())
        self._turns[program_id] = (*turns[1 - _MOST_TURNS :], turn_id)
        if len(self._turns) > self._most_programs:
            self._turns.popitem(last=False)

    def prove(self, program_id: str, turn_id: str) -> bool:
        """True if ``turn_id`` is one of the program's latest turns."""
        return turn_id in self._turns.get(program_id, ())

    def forget(self, program_id: str) -> None:
        """Forget a program that ended and starts no more children."""
        self._turns.pop(program_id, None)

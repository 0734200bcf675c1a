"""On which of several engines behind one gate a program's turns run.

The daemon says it (``Place``), and what it said last holds. Of a program that it has said nothing of, a child on
its root's slot or any while the daemon is lost, the gate itself chooses: the one with the fewest programs, and then
that one, since a context is found only where it is.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence

_MOST_PROGRAMS = 65_536


class Places:
    """By program: the place, ``node/role``, of its engine. The longest unused are forgotten beyond 65,536.

    Nothing is chosen before ``behind`` says which engines there are, nor where there is one only; nor unless
    ``chosen``: without a daemon the server distributes its turns as without a gate.
    """

    def __init__(self) -> None:
        self.chosen = False
        self._behind: dict[str, None] = {}
        self._open: tuple[str, ...] = ()  # of these, to whom the gate may send programs by itself
        self._places: OrderedDict[str, str] = OrderedDict()
        self._programs: Counter[str] = Counter()

    def behind(self, places: Sequence[str], *, draining: Collection[str] = ()) -> None:
        """Which engines there are; the ``draining`` ones among them keep what they have, and get nothing new.

        A program whose engine is no longer among them has no place any more.
        """
        self._behind = dict.fromkeys(places)
        self._open = tuple(place for place in places if place not in draining) or tuple(places)

    def assign(self, program_id: str, place: str) -> bool:
        """The daemon's word; False if that engine is not behind this gate."""
        if place not in self._behind:
            return False
        self._set(program_id, place)
        return True

    def of(self, program_id: str) -> str:
        """Where the program's turns go; empty where there is nothing to choose."""
        if not self.chosen or len(self._behind) < 2:
            return ""
        place = self._places.get(program_id)
        if place is None or place not in self._behind:
            place = min(self._open, key=self._programs.__getitem__)
        self._set(program_id, place)
        return place

    def forget(self, program_id: str) -> None:
        if (place := self._places.pop(program_id, None)) is not None:
            self._programs[place] -= 1

    def programs(self) -> dict[str, int]:
        """By place: how many programs are there."""
        return {place: self._programs[place] for place in self._behind}

    def _set(self, program_id: str, place: str) -> None:
        self.forget(program_id)
        self._places[program_id] = place
        self._programs[place] += 1
        if len(self._places) > _MOST_PROGRAMS:
            self.forget(next(iter(self._places)))

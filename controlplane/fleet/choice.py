"""To which engines of the roster a request goes: its program's own, then one for when that cannot be reached."""

from collections.abc import Collection

from controlplane.core.policies.placement.rendezvous import weights_of
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.gate.places import Places


class Choice:
    """Chooses among the roster's engines, by what the gate's ``places`` say of a program.

    A program that has no place, as before any daemon was heard, goes where a hash of its name says, so that each
    picker sends it to the same engine, and a change of the roster moves few programs.
    """

    def __init__(self, roster: Roster, places: Places) -> None:
        self._roster = roster
        self._places = places
        self._serving: tuple[Engine, ...] = ()
        self._after: dict[str, Engine] = {}
        self._by_address: dict[str, Engine] = {}
        self._next = 0
        roster.on_change.append(self.look)
        self.look()

    def look(self) -> None:
        """The roster has changed: the gate chooses among these from now on."""
        self._serving = tuple(engine for engine in self._roster if engine.standing is Standing.SERVING)
        self._by_address = {engine.address: engine for engine in self._roster}
        self._after = _each_with_next(self._serving)
        there = [engine for engine in self._roster if engine.standing is not Standing.GONE]
        draining = {engine.place for engine in there if engine.standing is Standing.DRAINING}
        self._places.behind([engine.place for engine in there], draining=draining)

    def serving(self, subset: Collection[str] | None) -> tuple[Engine, ...]:
        """The engines that serve; of these, with a ``subset``, those whose addresses are in it."""
        if subset is None:
            return self._serving
        return tuple(engine for engine in self._serving if engine.address in subset)

    def is_there_any(self, subset: Collection[str] | None) -> bool:
        """Whether some engine might take a turn: one that serves, or one that drains and may have its program."""
        return any(engine.standing is not Standing.GONE and _is_in(engine, subset) for engine in self._roster)

    def at(self, address: str) -> Engine | None:
        """The engine at that address."""
        return self._by_address.get(address)

    def of_program(self, program_id: str, subset: Collection[str] | None) -> tuple[Engine, ...]:
        """The program's engine, and another that serves if there is one; empty if there is none at all."""
        serving = self.serving(subset)
        home = self._home(program_id, subset)
        if home is None:
            if not serving:
                return ()
            weight = weights_of(program_id)
            home = max(serving, key=lambda engine: weight(engine.place))
        return self._with_second(home, serving, subset)

    def any(self, subset: Collection[str] | None) -> tuple[Engine, ...]:
        """Engines for a request that is no turn, in turn."""
        serving = self.serving(subset)
        if not serving:
            return ()
        self._next += 1
        return self._with_second(serving[self._next % len(serving)], serving, subset)

    def _home(self, program_id: str, subset: Collection[str] | None) -> Engine | None:
        engine = self._roster.at(self._places.of(program_id))
        if engine is None or engine.standing is Standing.GONE:
            return None
        return engine if _is_in(engine, subset) else None

    def _with_second(
        self, home: Engine, serving: tuple[Engine, ...], subset: Collection[str] | None
    ) -> tuple[Engine, ...]:
        """Whoever cannot be reached has a fixed one to go to, or its programs would be all over the fleet."""
        if not serving:
            return (home,)
        after = self._after if subset is None else _each_with_next(serving)
        second = after.get(home.place, serving[0])
        return (home, second) if second.place != home.place else (home,)


def _each_with_next(engines: tuple[Engine, ...]) -> dict[str, Engine]:
    return {engine.place: after for engine, after in zip(engines, (*engines[1:], *engines[:1]), strict=True)}


def _is_in(engine: Engine, subset: Collection[str] | None) -> bool:
    return subset is None or engine.address in subset

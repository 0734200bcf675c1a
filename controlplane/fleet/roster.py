"""Which engines a fleet has, and where each is reached."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum


def host_and_port(address: str) -> tuple[str, int] | None:
    """The two parts of ``HOST:PORT``; None where it is not that."""
    host, _, port = address.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() and 0 < int(port) < 65536 else None


class Standing(StrEnum):
    """What an engine of the roster may be given."""

    SERVING = "serving"  # any turn
    DRAINING = "draining"  # the turns that run there: its programs go on elsewhere with their next one
    GONE = "gone"  # nothing: it is dead, or cannot be reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine.

    ``place`` is ``node/engine-PORT``, as its own events name it; ``address`` is ``host:port``, as Envoy reaches it.
    ``has_plugin`` false: it tells nothing of its own, and is known by what passes through Envoy and by its metrics;
    ``pool_tokens`` is what its KV memory holds, where its metrics page does not tell, or it has none (0: unknown).
    """

    place: str
    address: str
    has_plugin: bool = True
    pool_tokens: int = 0
    standing: Standing = Standing.SERVING


class Roster:
    """The engines, by place. Who wants to know of changes is told after each one, in the event loop's thread."""

    def __init__(self, engines: Iterable[Engine] = ()) -> None:
        self.on_change: list[Callable[[], None]] = []
        self._by_place = {engine.place: engine for engine in engines}

    def __iter__(self) -> Iterator[Engine]:
        return iter(tuple(self._by_place.values()))

    def __len__(self) -> int:
        return len(self._by_place)

    def at(self, place: str) -> Engine | None:
        """The engine at that place."""
        return self._by_place.get(place)

    def put(self, engine: Engine) -> None:
        """It joins, or is as told now."""
        if self._by_place.get(engine.place) != engine:
            self._by_place[engine.place] = engine
            self._notify()

    def remove(self, place: str) -> None:
        """It left."""
        if self._by_place.pop(place, None) is not None:
            self._notify()

    def _notify(self) -> None:
        for listener in self.on_change:
            listener()

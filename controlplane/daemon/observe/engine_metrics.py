"""What each engine measures, with the label ``engine``: its place, ``node/role``.

Prometheus reads it as text that is written here. The SDK's way there takes ten times as long, in which a fleet's
daemon with a thousand engines decides nothing. OTLP sends it by the SDK's instruments.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics.view import View

from controlplane.daemon.observe.journal import Turn
from controlplane.daemon.status.engines import EngineRow

_MOST_ENGINES = 4096  # whose tokens are remembered; who was heard longest ago is forgotten
_KV = ("total", "free", "evictable", "retained", "demand")
_TOKENS = "penstock.engine.tokens"
_OF_TOKENS = "Tokens of the engine's turns: prompt, of these cached, and output"
WITH_ALL_ENGINES = View(
    instrument_name="penstock.engine.*",
    aggregation_cardinality_limit=len(_KV) * _MOST_ENGINES,  # beyond it the SDK makes one point of the rest
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """A gauge that is read from an engine's row: a number for each value of ``label``, or a single one without."""

    name: str
    unit: str
    description: str
    read: Mapping[str, Callable[[EngineRow], int]]
    label: str = ""


ENGINE_STATES = (
    EngineState(
        name="penstock.engine.up",
        unit="",
        description="1, or 0 while the engine is gone, or serves and does not answer",
        read={"": lambda row: int(not row.silent and row.standing != "gone")},
    ),
    EngineState(
        name="penstock.engine.kv_blocks",
        unit="{block}",
        description="Blocks of the engine's KV pool by state",
        label="state",
        read={state: attrgetter(f"kv_{state}_blocks") for state in _KV},
    ),
    EngineState(
        name="penstock.engine.host_blocks",
        unit="{block}",
        description="Blocks of the engine's KV cache in host memory",
        label="state",
        read={state: attrgetter(f"host_{state}_blocks") for state in ("total", "used")},
    ),
    EngineState(
        name="penstock.engine.turns",
        unit="{turn}",
        description="Turns that the engine holds",
        read={"": attrgetter("turns")},
    ),
    EngineState(
        name="penstock.engine.programs",
        unit="{program}",
        description="Programs that ran on the engine last: those that have a slot, and those that wait for one",
        label="status",
        read={"active": attrgetter("programs"), "waiting": attrgetter("waiting")},
    ),
)


_KINDS = ("prompt", "cached", "output")
_Tokens = dict[str, int]


@dataclass(slots=True)
class EngineTokens:
    """The tokens of each engine's turns, by kind. Counted in the daemon's thread, read in any."""

    _by_place: dict[str, _Tokens] = field(default_factory=dict)

    def turn_ended(self, turn: Turn) -> None:
        tokens = self._by_place.get(turn.engine)
        if tokens is None:
            tokens = self._by_place[turn.engine] = dict.fromkeys(_KINDS, 0)
            if len(self._by_place) > _MOST_ENGINES:
                del self._by_place[next(iter(self._by_place))]
        for kind in _KINDS:
            tokens[kind] += getattr(turn, f"{kind}_tokens")

    def by_place(self) -> Sequence[tuple[str, _Tokens]]:
        return tuple(self._by_place.items())


def exposed(rows: Iterable[EngineRow], tokens: EngineTokens) -> Iterator[bytes]:
    """In Prometheus' text format, with the names that the SDK would give. In pieces, each made in no time."""
    engines = [(_label(row.place), row) for row in rows]
    for state in ENGINE_STATES:
        name = state.name.replace(".", "_")
        yield _head(name, "gauge", state.description)
        for value, read in state.read.items():
            more = f',{state.label}="{value}"' if state.label else ""
            yield "".join([f"{name}{{{engine}{more}}} {read(row)}\n" for engine, row in engines]).encode()
    counted = [(_label(place), of_one) for place, of_one in tokens.by_place()]
    name = f"{_TOKENS}.total".replace(".", "_")
    yield _head(name, "counter", _OF_TOKENS)
    for kind in _KINDS:
        lines = [f'{name}{{{engine},kind="{kind}"}} {of_one[kind]}\n' for engine, of_one in counted]
        yield "".join(lines).encode()


def _head(name: str, kind: str, description: str) -> bytes:
    return f"# HELP {name} {description}\n# TYPE {name} {kind}\n".encode()


def _label(place: str) -> str:
    text = place.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'engine="{text}"'


def instruments(meter: Meter, rows: Callable[[str], Sequence[EngineRow]], tokens: EngineTokens) -> None:
    """Make the SDK's. ``rows`` gives every engine as the instrument of that name is to see it.

    The meter's provider needs the view ``WITH_ALL_ENGINES``.
    """
    for state in ENGINE_STATES:
        meter.create_observable_gauge(
            state.name, [_reader(state, rows)], unit=state.unit, description=state.description
        )

    def read_tokens(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(number, {"engine": place, "kind": kind})
            for place, of_one in tokens.by_place()
            for kind, number in of_one.items()
        ]

    meter.create_observable_counter(_TOKENS, [read_tokens], description=_OF_TOKENS)


def _reader(
    state: EngineState, rows: Callable[[str], Sequence[EngineRow]]
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def observe(_: CallbackOptions) -> Iterable[Observation]:
        return [
            Observation(float(read(row)), {"engine": row.place, **({state.label: value} if value else {})})
            for row in rows(state.name)
            for value, read in state.read.items()
        ]

    return observe

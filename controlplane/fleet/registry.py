"""The engines as all daemons of a fleet have them: in its bucket, where operators add, drain and remove them.

Whether one answers now is nobody's order, and is not written here: each leader finds out for itself.
"""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from anyio import sleep
from nats.errors import Error as NatsError
from nats.js.errors import KeyDeletedError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.daemon.process.logs import logger
from controlplane.fleet.buckets import ENGINES, fleet_bucket
from controlplane.fleet.connection import connected
from controlplane.fleet.roster import Engine, Roster, Standing, host_and_port
from controlplane.transport.subjects import check_name

_PLAIN = "plain"
_LOOK_S = 1.0
_MOST_TRIES = 20
_MOST_SHOWN = 5
_MOST_LOGGED = 200  # characters of what makes no sense
_Known = Mapping[str, Engine | None]
_log = logger("roster")


def parse_engine(text: str) -> Engine:
    """An engine as it is written in a configuration. Raises ``ConfigError``."""
    place, equals, rest = text.partition("=")
    address, comma, kind = rest.partition(",")
    if not equals or (comma and kind != _PLAIN):
        raise ConfigError(f"expected NODE/engine-PORT=HOST:PORT, with ',{_PLAIN}' behind it or not, got {text!r}")
    return checked(Engine(place=place, address=address, has_plugin=not comma))


def checked(engine: Engine) -> Engine:
    """The engine, if its names can be. Raises ``ConfigError``."""
    node, slash, role = engine.place.partition("/")
    if not slash or role.partition("-")[0] != "engine":
        raise ConfigError(f"expected an engine as NODE/engine-PORT, got {engine.place!r}")
    check_name(node, field="the engine's node")
    check_name(role, field="the engine's role")
    if host_and_port(engine.address) is None:
        raise ConfigError(f"expected {engine.place} at HOST:PORT, got {engine.address!r}")
    return engine


@dataclass(frozen=True, slots=True)
class _Value:
    """What the bucket holds: each entry by place as it is written, and as an engine, None for nonsense.

    ``missing``: nobody ever wrote one, or somebody has deleted it. None left are written as such.
    """

    entries: Mapping[str, Any]
    engines: Mapping[str, Engine | None]
    revision: int
    missing: bool = False


class Registry:
    """The engines in a fleet's bucket: one value, replaced by compare-and-set, so that nobody's word is lost.

    It is read anew now and then rather than watched: a watch may fall silent with the server that kept it. What
    cannot be read is not empty: a value, or an entry of another version, leaves whoever follows with what it knew
    last, and is written again as it was. Methods raise ``EngineUnavailable`` where the bucket does not answer, or
    holds what no version of ours wrote.
    """

    def __init__(self, bucket: KeyValue) -> None:
        self.unreadable = ""  # what was not understood when it was last read
        self._bucket = bucket
        self._logged = -1  # the revision whose nonsense was logged

    async def engines(self) -> list[Engine]:
        """All that are understood, by place."""
        return [engine for engine in (await self._read()).engines.values() if engine is not None]

    async def put(self, *engines: Engine) -> None:
        """They join, or are as told now."""
        await self._change(lambda known: {**known, **{engine.place: engine for engine in engines}})

    async def begin(self, engines: Iterable[Engine]) -> None:
        """Those join that are not there: what an operator said of the others since holds."""
        wanted = {engine.place: engine for engine in engines}
        if wanted:
            await self._change(lambda known: {**wanted, **known})

    async def remove(self, place: str) -> None:
        """It leaves."""
        await self._change(lambda known: {name: engine for name, engine in known.items() if name != place})

    async def follow(self, roster: Roster, report: Callable[[str], object] = lambda _: None) -> None:
        """Keep ``roster`` as the bucket has it, until cancelled. Who cannot read it goes on with what it knows.

        ``report`` is called after each look, with what could not be read; empty: nothing.
        """
        failed = False
        while True:
            try:
                value = await self._read()
                if value.missing and len(roster):
                    raise EngineUnavailable("the fleet's bucket has no list of engines any more")
                failed = False
                for engine in value.engines.values():
                    if engine is not None:
                        roster.put(_as_seen(engine, roster.at(engine.place)))
                for place in [engine.place for engine in roster if engine.place not in value.engines]:
                    roster.remove(place)
                report(self.unreadable)
            except EngineUnavailable as error:
                report(str(error))
                if not failed:
                    _log.warning("roster not read", error=str(error), action="going on with what is known")
                failed = True
            await sleep(_LOOK_S)

    async def _read(self) -> _Value:
        with _answering():
            try:
                found = await self._bucket.get(ENGINES)
            except KeyDeletedError as error:
                return _Value({}, {}, error.entry.revision or 0, missing=True)
            except KeyNotFoundError:
                return _Value({}, {}, 0, missing=True)
        revision = found.revision or 0
        is_new, self._logged = revision != self._logged, revision
        try:
            entries = json.loads(found.value or b"")
            if not isinstance(entries, dict):
                raise ValueError(f"it is no object but {type(entries).__name__}")
        except (ValueError, RecursionError) as error:
            self.unreadable = what = f"the fleet's bucket holds a list of engines that cannot be read: {error}"
            raise EngineUnavailable(f"{what}; delete its key {ENGINES!r} to begin anew") from None
        engines = {place: _understood(place, entry, is_new) for place, entry in entries.items()}
        bad = sorted(place for place, engine in engines.items() if engine is None)
        some = ", ".join(bad[:_MOST_SHOWN])
        self.unreadable = f"{len(bad)} of {len(engines)} engines in the fleet's bucket: {some}" if bad else ""
        return _Value(entries, engines, revision)

    async def _change(self, change: Callable[[_Known], _Known]) -> None:
        for _ in range(_MOST_TRIES):
            value = await self._read()
            wanted = change(value.engines)
            if wanted == value.engines:
                return
            with _answering():
                try:
                    await self._bucket.update(ENGINES, _written(wanted, value.entries), last=value.revision)
                    return
                except KeyWrongLastSequenceError:
                    continue  # somebody else's word came first, or this server is behind
        raise EngineUnavailable("others change the fleet's engines all the time: try again")


@asynccontextmanager
async def registry(url: str, fleet: str) -> AsyncIterator[Registry]:
    """The registry of a fleet whose bus is at ``url``, for a command. Raises ``EngineUnavailable``."""
    client = await connected(url, f"penstock-fleet-{fleet}")
    try:
        yield Registry(await fleet_bucket(client, fleet))
    finally:
        with suppress(NatsError, OSError, TimeoutError):
            await client.close()


@contextmanager
def _answering() -> Iterator[None]:
    """Errors of the bucket as this room tells them."""
    try:
        yield
    except (NatsError, OSError, TimeoutError) as error:
        raise EngineUnavailable(f"the fleet's bucket does not answer: {error or 'in time'}") from None


def _written(engines: _Known, before: Mapping[str, Any]) -> bytes:
    """The value of these engines; what is not understood of ``before``, a newer version's fields say, stays."""
    entries: dict[str, Any] = {}
    for place, engine in sorted(engines.items()):
        entries[place] = before.get(place)
        if engine is not None:
            entries[place] = {
                **(entries[place] if isinstance(entries[place], dict) else {}),
                "address": engine.address,
                "plugin": engine.has_plugin,
                "pool_tokens": engine.pool_tokens,
                "drains": engine.standing is Standing.DRAINING,
            }
    return json.dumps(entries).encode()


def _understood(place: str, entry: Any, is_new: bool) -> Engine | None:
    try:
        engine = Engine(
            place=place,
            address=str(entry["address"]),
            has_plugin=bool(entry.get("plugin", True)),
            pool_tokens=int(entry.get("pool_tokens", 0)),
            standing=Standing.DRAINING if entry.get("drains") else Standing.SERVING,
        )
        return checked(engine)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, ConfigError) as error:
        if is_new:
            _log.warning("engine not understood", engine=place[:_MOST_LOGGED], error=str(error)[:_MOST_LOGGED])
        return None


def _as_seen(listed: Engine, known: Engine | None) -> Engine:
    """One that did not answer is still gone, unless it is told of as another than before."""
    if known is None or known.standing is not Standing.GONE:
        return listed
    return known if replace(listed, standing=Standing.GONE) == known else listed

"""Looks at the fleet's engines: whether they answer, and at the metrics pages of those without a plugin.

Each second every engine is knocked at, by a page that costs it nothing, and now and then asked for its health:
SGLang's costs it a token, and takes as long as the batch that it computes. An engine that refuses, or says that it
is ill, is gone after a few tries; one that says nothing at all only after half a minute, since a long prefill
looks the same. A turn's answer is a sign of life, too. Who is gone comes back with the first good answer to the
question for its health, as what it was before.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import aiohttp
import anyio
from anyio.abc import TaskGroup

from controlplane import clocks
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, seconds
from controlplane.eventloop import task_group
from controlplane.fleet.metrics_page import PoolPage, read_page
from controlplane.fleet.pluginless import PluginlessEngines
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.fleet.upstream import page_at
from controlplane.gate.requests import HEALTH_PATH

_HEALTH, _METRICS = "/health", "/metrics"
_NO_ANSWER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """When an engine is looked at, and when it is given up."""

    every_ns: int = seconds(1)
    health_every_ns: int = seconds(10)  # of one that answers; of one that is gone each time
    failures: int = 3  # one after the other: it refuses, or says that it is ill
    silence_ns: int = seconds(30)  # nothing at all; SGLang's own limit for its health is 20 s


@dataclass(slots=True, kw_only=True)
class _Seen:
    """One engine, as it was seen so far."""

    answered_ns: int  # when it last did anything; at first: when we first knew of it
    answers: int = 0  # to turns, by then
    health_ns: int | None = None  # when it was last asked
    failures: int = 0
    knocking: bool = False
    has_knocked: bool = False  # and had an answer
    asking: bool = False
    before: Standing = Standing.SERVING  # what it was when it went
    problem: str = ""


class Checkup:
    """Keeps the standing of the roster's engines true, and feeds ``pluginless``. Run it while this daemon leads."""

    def __init__(
        self,
        roster: Roster,
        pluginless: PluginlessEngines,
        *,
        patience: Patience | None = None,
        now_ns: Callable[[], int] = clocks.awake_ns,
        on_change: Callable[[Engine, str], None] = lambda engine, why: None,
    ) -> None:
        self._roster = roster
        self._pluginless = pluginless
        self._patience = patience if patience is not None else Patience()
        self._now_ns = now_ns
        self._on_change = on_change  # told of who went or came, as it is now, and why
        self._seen: dict[str, _Seen] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        timeout = aiohttp.ClientTimeout(total=self._patience.silence_ns / NANOSECONDS_PER_SECOND, sock_connect=2)
        connector = aiohttp.TCPConnector(limit=0)
        self._seen.clear()  # what was seen before, another leader may have seen otherwise
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http, task_group() as looks:
            while True:
                self._look_at_all(http, looks)
                await anyio.sleep(self._patience.every_ns / NANOSECONDS_PER_SECOND)

    def health(self) -> dict[str, object]:
        """By place: its standing and what is wrong with it."""
        return {
            engine.place: {
                "standing": str(engine.standing),
                "has_plugin": engine.has_plugin,
                "problem": seen.problem if (seen := self._seen.get(engine.place)) is not None else "",
            }
            for engine in self._roster
        }

    # -- inside --------------------------------------------------------------------------------------------

    def _look_at_all(self, http: aiohttp.ClientSession, looks: TaskGroup) -> None:
        now_ns = self._now_ns()
        for place in self._seen.keys() - {engine.place for engine in self._roster}:
            del self._seen[place]
        for engine in self._roster:
            seen = self._seen.setdefault(engine.place, _Seen(answered_ns=now_ns))
            if (answers := self._pluginless.answers[engine.place]) != seen.answers:
                seen.answers, seen.answered_ns = answers, now_ns
            silent_ns = now_ns - seen.answered_ns
            if silent_ns > self._patience.silence_ns:
                self._mark_gone(engine, seen, f"it said nothing for {silent_ns // NANOSECONDS_PER_SECOND} s")
            if not seen.knocking:
                seen.knocking = True
                looks.start_soon(self._knock, http, engine, seen)
            elif not (seen.has_knocked or engine.has_plugin or engine.standing is Standing.GONE):
                self._pluginless.sampled(engine, PoolPage(engine=""))  # a page that hangs tells no pool
            if not seen.asking and self._is_due(engine, seen, now_ns):
                seen.asking, seen.health_ns = True, now_ns
                looks.start_soon(self._ask_for_health, http, engine, seen)

    async def _knock(self, http: aiohttp.ClientSession, engine: Engine, seen: _Seen) -> None:
        """Whether it is there; and of one without a plugin, what its page tells."""
        status, text = await self._get(http, engine, seen, HEALTH_PATH if engine.has_plugin else _METRICS)
        seen.knocking = False
        if engine.has_plugin or status == _NO_ANSWER or engine.standing is Standing.GONE:
            return
        seen.has_knocked = True
        page = PoolPage(engine="")
        if status == 200:
            try:
                page = read_page(text)
            except ValueError as error:
                seen.problem = f"its metrics page makes no sense: {error}"
        api = self._pluginless.api_of(engine)
        self._pluginless.sampled(engine, page, await api.sample() if api is not None else None)

    def _is_due(self, engine: Engine, seen: _Seen, now_ns: int) -> bool:
        if seen.health_ns is None or seen.failures or engine.standing is Standing.GONE:
            return True
        return now_ns - seen.health_ns >= self._patience.health_every_ns

    async def _ask_for_health(self, http: aiohttp.ClientSession, engine: Engine, seen: _Seen) -> None:
        status, _ = await self._get(http, engine, seen, _HEALTH)
        seen.asking = False
        if status >= 500:
            self._fail(engine, seen, f"{_HEALTH} answers {status}")
        elif status != _NO_ANSWER:  # also that there is no such page: somebody is there
            seen.failures, seen.problem = 0, ""
            self._find(engine, seen)

    async def _get(self, http: aiohttp.ClientSession, engine: Engine, seen: _Seen, path: str) -> tuple[int, str]:
        """The answer's status, ``_NO_ANSWER`` if there is none, and its text."""
        try:
            status, data = await page_at(http, engine.address, path)
        except TimeoutError:
            return _NO_ANSWER, ""  # its silence is counted elsewhere
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._fail(engine, seen, f"{path}: {error or type(error).__name__}")
            return _NO_ANSWER, ""
        seen.answered_ns = self._now_ns()
        return status, data.decode("utf-8", "replace")

    def _fail(self, engine: Engine, seen: _Seen, why: str) -> None:
        seen.failures += 1
        seen.problem = why
        if seen.failures >= self._patience.failures:
            self._mark_gone(engine, seen, why)

    def _mark_gone(self, engine: Engine, seen: _Seen, why: str) -> None:
        seen.problem = why
        if (now := self._roster.at(engine.place)) is not None and now.standing is not Standing.GONE:
            seen.before = now.standing
            self._change(now, Standing.GONE, why)

    def _find(self, engine: Engine, seen: _Seen) -> None:
        if (now := self._roster.at(engine.place)) is not None and now.standing is Standing.GONE:
            self._change(now, seen.before, "it answers again")

    def _change(self, engine: Engine, standing: Standing, why: str) -> None:
        changed = replace(engine, standing=standing)
        self._roster.put(changed)
        self._on_change(changed, why)

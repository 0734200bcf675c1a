"""Replay agent programs against an OpenAI-compatible endpoint, until every one of them has ended."""

import contextlib
import re
import signal
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
from anyio import CancelScope, fail_after, sleep, to_thread

from controlplane.core.model.errors import EngineUnavailable
from controlplane.core.model.events import Event, PublisherState
from controlplane.core.model.types import Pressure
from controlplane.emit.emitter import Emitter
from controlplane.eventloop import on_signals, run, task_group
from controlplane.lab.load.answers import find_model
from controlplane.lab.load.client import ChatClient
from controlplane.lab.load.clock import TraceClock
from controlplane.lab.load.measurements import SAMPLE_EVERY_NS, Measurements
from controlplane.lab.load.options import Observation, ReplayOptions
from controlplane.lab.load.program import ProgramRunner
from controlplane.lab.load.progress import Display, ReplayProgress, choose_display
from controlplane.lab.load.tools import ToolRunner
from controlplane.lab.workload.arrivals import Closed, times_ns
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.transport.subjects import TOOL_ROLE
from controlplane.wire.heartbeat import Heartbeat

UPDATE_EVERY_S = 0.25
_FOUND_WITHIN_S = 30.0
_STALLED_S = 900.0  # a turn fails when its endpoint sends nothing for so long
IDLE_CONNECTION_S = 2.0  # below what servers keep (uvicorn: 5), or they close it as we write
LATE_START_S = 0.25  # on the wall clock: from here on the arrivals are not what was asked


def replay(options: ReplayOptions, display: Display | None = None) -> RunResult:
    """Run every program of ``options.trace`` and measure it; all times of the result are trace time.

    ``display`` shows progress (default: a bar on a terminal, lines elsewhere). Ctrl-C stops the run: the result
    says that it is cut, and programs still running count as failed.

    Raises ``EngineUnavailable`` when nobody answers at ``options.url``.
    """
    display = display or choose_display(options.label)
    try:
        return run(_Replay(options, display).run)
    finally:
        display.close()


class _Replay:
    """One run in progress."""

    def __init__(self, options: ReplayOptions, display: Display) -> None:
        self._options = options = replace(options, run_id=options.run_id or uuid.uuid4().hex[:6])
        self._display = display
        self._clock = TraceClock(options.time_scale)
        self._measured = Measurements(options)
        self._noted: set[str] = set()
        self._heartbeat: Heartbeat | None = None
        self._emitted = 0
        self._emitter = self._make_emitter()
        self._tools = ToolRunner(options.tools, clock=self._clock, send=self._send)
        self._roots = [program for program in options.trace.programs if not program.parent_id]

    async def run(self) -> RunResult:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=_STALLED_S)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_CONNECTION_S)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=connector, headers=self._options.sent_headers
        ) as http:
            model = await self._reach(http)
            self._client = ChatClient(
                http,
                url=f"{self._options.base_url}/v1/chat/completions",
                model=model,
                clock=self._clock,
                identity=self._options.identity,
                give_up_after_s=self._options.give_up_after_s,
                shown=self._options.without_secrets,
            )
            self._programs = ProgramRunner(
                self._options,
                clock=self._clock,
                client=self._client,
                tools=self._tools,
                measured=self._measured,
                send=self._send,
                failed=self._note_once,
            )
            async with self._side_work():
                cut = await self._until_ended_or_stopped()
        if cut:
            ended, asked = self._measured.roots_ended, len(self._roots)
            self._display.note(
                f"stopped before the end: {asked - ended} of {asked} programs had not arrived, those still running "
                "count as failed, and the times are biased towards short programs"
            )
        facts = {"model": model, **self._facts()}
        return self._measured.result(cut=cut, tool_wait_mean_s=self._tools.wait_mean_s, facts=facts)

    async def _reach(self, http: aiohttp.ClientSession) -> str:
        """The model to ask for. Also proves, before anything starts, that somebody answers."""
        url = self._options.base_url
        try:
            with fail_after(_FOUND_WITHIN_S):
                listed = await find_model(http, url)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise EngineUnavailable(
                f"nobody answers at {self._options.shown_url} ({error or type(error).__name__}): start an engine "
                "there, for example with `penstock engine-double`, or give the address of a running one with --url"
            ) from error
        return self._options.model or listed

    # --- what runs beside the programs -------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _side_work(self) -> AsyncIterator[None]:
        """The tool runner's workers, the emitter and the display, for as long as the programs run."""
        async with task_group() as group:
            try:
                await self._tools.start()
                if self._emitter:
                    self._emitter.start()
                elif self._options.nats is None:
                    self._display.note("no NATS URL: tool phases are not reported to a daemon")
                self._clock.start()
                group.start_soon(self._tick)
                yield
            finally:
                group.cancel_scope.cancel()
                self._tools.close()
                if self._emitter:
                    with CancelScope(shield=True):
                        await to_thread.run_sync(self._emitter.close)
                self._last_notes()

    async def _tick(self) -> None:
        sample_s = self._clock.wall_s(SAMPLE_EVERY_NS)
        while True:
            self._display.update(self._progress())
            self._measured.sample(self._clock.now_ns(), self._observe())
            await sleep(min(UPDATE_EVERY_S, sample_s))

    def _make_emitter(self) -> Emitter | None:
        if self._options.nats is None or self._options.workload.telemetry is Telemetry.NONE:
            return None
        return Emitter(
            url=self._options.nats,
            node=self._options.node,
            role=TOOL_ROLE,
            on_heartbeat=self._take_heartbeat,
            state=lambda: PublisherState(role=TOOL_ROLE, open_tools=self._tools.open_tools()),
        )

    def _take_heartbeat(self, heartbeat: Heartbeat) -> None:
        self._heartbeat = heartbeat

    def _send(self, event: Event) -> None:
        if self._emitter:
            self._emitted += 1
            self._emitter.emit(event)

    def _watched(self) -> Observation | None:
        """What whoever watches the daemon saw."""
        return self._options.observe() if self._options.observe else None

    def _observe(self) -> Observation:
        """What whoever watches the daemon saw; failing that, what can be seen from here."""
        if observation := self._watched():
            return observation
        pressure = Pressure(
            observed_at_ns=self._clock.now_ns(),
            tools_active=self._tools.running,
            tools_waiting=self._tools.waiting,
            programs_active=self._programs.running,
        )
        heartbeat = self._heartbeat
        return Observation(
            pressure=pressure,
            window=heartbeat.window if heartbeat else 0.0,
            limit=heartbeat.limit if heartbeat else 0,
        )

    # --- arrivals ----------------------------------------------------------------------------------------

    async def _until_ended_or_stopped(self) -> bool:
        """Run all programs; True when Ctrl-C came first."""
        ended = False
        async with task_group() as group:
            await group.start(on_signals, lambda _: group.cancel_scope.cancel(), signal.SIGINT)
            await self._arrivals()
            ended = True
            group.cancel_scope.cancel()
        return not ended

    async def _arrivals(self) -> None:
        """Each program at its time, however slow the endpoint is; closed ones when another has ended."""
        arrival, clock, numbers = self._options.arrival, self._clock, range(len(self._roots))
        waiting = iter(numbers)

        async def one_after_another() -> None:
            for index in waiting:
                await self._run_program(index, clock.now_ns())

        if isinstance(arrival, Closed) and arrival.in_batches:
            for first in numbers[:: arrival.n]:
                async with task_group() as group:
                    for index in numbers[first : first + arrival.n]:
                        group.start_soon(self._run_program, index, clock.now_ns())
            return
        async with task_group() as group:
            if isinstance(arrival, Closed):
                for _ in numbers[: arrival.n]:
                    group.start_soon(one_after_another)
                return
            for index, at_ns in enumerate(times_ns(arrival, len(numbers), self._options.seed)):
                await clock.sleep_until_ns(at_ns)
                self._measured.started(clock.now_ns() - at_ns)
                group.start_soon(self._run_program, index, at_ns)

    async def _run_program(self, index: int, arrived_ns: int) -> None:
        program_id = f"{self._options.label}-{self._options.run_id}-{index:05d}"
        await self._programs.run(program_id, self._roots[index], arrived_ns, index)

    # --- what is shown -----------------------------------------------------------------------------------

    def _limit(self) -> int | None:
        """Without an emitter nobody hears the daemon's heartbeat but who watches it."""
        observed = self._heartbeat or self._watched()
        return observed.limit if observed else None

    def _progress(self) -> ReplayProgress:
        return ReplayProgress(
            now_ns=self._clock.now_ns(),
            programs=len(self._roots),
            programs_ended=self._measured.roots_ended,
            programs_failed=self._measured.programs_failed,
            programs_running=self._programs.running,
            turns=self._options.trace.turns,
            turns_ended=self._measured.turns_ended,
            turns_waiting=self._client.waiting,
            turns_streaming=self._client.streaming,
            retries=self._client.retries,
            tools_running=self._tools.running,
            tools_waiting=self._tools.waiting,
            limit=self._limit(),
        )

    def _note_once(self, message: str) -> None:
        """Failures that differ only in their numbers are shown once; the result has them all."""
        kind = re.sub(r"\d+", "N", message)
        if kind not in self._noted:
            self._noted.add(kind)
            self._display.note(f"a program failed: {message} (more of the kind are counted, not shown)")

    def _last_notes(self) -> None:
        self._display.update(self._progress())
        if self._tools.workers_died:
            self._display.note("CPU workers died: from then on tools slept instead of computing")
        if self._emitter and (unnamed := self._programs.unnamed_turns):
            self._display.note(
                f"{unnamed} replies came through no gate that names turns: their calls were not told"
            )
        stats = self._emitter.stats if self._emitter else None
        if stats and stats.sent < self._emitted:
            reason = f" ({stats.last_error})" if stats.last_error else ""
            lost = self._emitted - stats.sent
            self._display.note(f"{lost} of {self._emitted} tool events never reached the bus{reason}")
        late_s = self._clock.wall_s(self._measured.latest_start_ns)
        if late_s > LATE_START_S:
            self._display.note(f"this machine was too slow: an arrival came {late_s:.1f} s (wall) late")

    def _facts(self) -> dict[str, str]:
        facts = {"retries": str(self._client.retries)}
        if self._client.left_out:
            facts["fields that the endpoint refused"] = ", ".join(sorted(self._client.left_out))
        if self._emitter:
            facts["tool events"] = f"{self._emitted} reported, {self._emitter.stats.sent} confirmed by the bus"
        return facts

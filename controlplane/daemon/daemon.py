"""The daemon: recovers, then reads events, decides, and sends commands until it is told to stop.

Of several daemons of a node one leads. The others stand by: they read the same stream, the leader's commands in it
as well, so that whoever takes over begins with the ledger that the leader had (docs/adr/0050).
"""

import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from anyio import Event, move_on_after, sleep
from anyio.lowlevel import checkpoint

from controlplane import clocks
from controlplane.config import Config, Resolved, Source, show
from controlplane.core.model.commands import Command, StateRequest
from controlplane.core.model.errors import ConfigError, LocalEventError
from controlplane.core.model.events import HostSampled
from controlplane.core.model.steps import Steps, run
from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import EnginePolicies
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.liveness import LOST_NS
from controlplane.daemon.bus import snapshot as snapshots
from controlplane.daemon.bus.clock import Clock
from controlplane.daemon.bus.connection import Bus, Delivery, StreamInfo
from controlplane.daemon.bus.event_socket import EventSocket
from controlplane.daemon.bus.recovery import RecoveryMark, backlog
from controlplane.daemon.experiment import Experiment
from controlplane.daemon.leadership import Leadership, SingleInstance
from controlplane.daemon.pacing import Pacer, spare_records
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.daemon.process.disk import DiskWriter
from controlplane.daemon.process.host_probe import HostProbe
from controlplane.daemon.process.logs import logger
from controlplane.daemon.process.reload import Reloader
from controlplane.daemon.process.tasks import Tasks
from controlplane.daemon.saving import Saver
from controlplane.daemon.shadow.estimates import Estimates
from controlplane.daemon.shadow.setup import ShadowSetup
from controlplane.daemon.shadow.shadow import Shadow
from controlplane.daemon.status.decisions import Decisions
from controlplane.daemon.status.engines import EngineRow, Known, MoveLog, each_engine
from controlplane.daemon.status.health import DaemonHealth
from controlplane.daemon.status.status import Status, describe
from controlplane.eventloop import task_group
from controlplane.transport.listener import listener_rows
from controlplane.transport.nats_url import redact
from controlplane.transport.subjects import publisher_name
from controlplane.wire.codec import Heartbeat, encode_events, last_command_id
from controlplane.wire.log import Header, LogWriter

_PROGRESS_S = 5.0  # between two words of how far a long reading has come
_LONGEST_WAIT_S = 0.5
_LONGEST_BEHIND_S = 1.0  # that a backlog is applied without a decision
_QUIET_S = 5.0  # or three samples of the host
_FROZEN_S = 2.0  # between two looks, which are at most ``_LONGEST_WAIT_S`` apart
_SAMPLES_MISSED = 2.5  # of the host, until what is known may be out of date
_HARDLY_BACK_S = 0.1
_NS_PER_NUMBER = 1_000_000  # no daemon sends a command each millisecond of its life
_NUMBERS_LOST = 10_000  # of commands that a leader before us may have sent and the stream did not keep
_FOLLOWS = "the daemon does not decide: another one leads, or it still starts"
_SAVING_AT_MOST = 20  # saves are this many times their own duration apart


class Daemon:
    """Serves one node over one bus; while it ``leadership``, where others may; ``on_change`` hears of that."""

    def __init__(
        self,
        source: Source,
        resolved: Resolved,
        bus: Bus,
        state_path: Path,
        recorder: LogWriter | None = None,
        socket: EventSocket | None = None,
        *,
        clock: Clock | None = None,
        elapsed_s: Callable[[], float] = clocks.elapsed_s,
        probe: HostProbe | None = None,
        leadership: Leadership | None = None,
        saver: Saver | None = None,
        tasks: Tasks | None = None,
    ) -> None:
        config = resolved.config
        self.bus = bus
        self.clock, self._elapsed_s = clock or Clock(config.time_scale), elapsed_s
        self._pacer = Pacer(lambda: self.clock.wall_seconds(self.clock.now_ns()))
        self.reloader = Reloader(source, resolved, self._pacer.between(self._take_over))
        self.boot_id = secrets.token_hex(4)
        self.tasks = tasks or Tasks()
        self.pipeline = DecisionPipeline(Controller(config.policies, config.control), self.tasks.failures)
        self.position = 0  # in the stream, of what the state contains
        self.own = DaemonHealth()
        self.ready = Event()
        self.pipeline.listener = self.experiment = Experiment(self.reloader, lambda: self.controller.state)
        self.shadow = Shadow(lambda: self.controller)
        self.pipeline.observer = self.shadow
        self.estimates = Estimates(self.clock.now_ns)
        self._shadow_setup = ShadowSetup(
            self.reloader, self.shadow, self.estimates, state_path.parent, self._record_head
        )
        self.decisions, self.moves = Decisions(), MoveLog()
        self.roster: Iterable[Known] = ()  # the engines that there should be, where somebody knows
        self.leadership = leadership or SingleInstance()
        self.on_change: list[Callable[[bool], None]] = []
        self._leads = False  # as far as this daemon has taken over
        self.pipeline.muted = self.leadership.has_others
        self.recorder = recorder  # None: nobody asked for a record, or it ended
        self._socket = socket
        self._probe, self._sample = probe or HostProbe(), HostSampled(cpus=0.0)
        self._state_path = state_path
        self._saver = saver or Saver(state_path, DiskWriter("snapshot"))
        self._stream_created = ""  # which stream is read
        self._stopping, self._sample_now = Event(), Event()
        self._error: ConfigError | None = None
        self._saved_at_ns = self._save_took_ns = 0
        self._resync_all = False
        self._sampled = 0  # samples of the host that were published
        self._proof = 1  # the one that has to come back before anything is decided
        self._decided_s = -math.inf  # when a round of decisions was made last that raised nothing
        self._is_behind = False  # it was frozen, or began to lead: what happened until then is still to be read
        self._looked_s = self._last_seen_s = 0.0
        self._lost_since_s = math.inf  # the stream may have lost what came since then, which nobody asked for yet
        self._lost_samples: tuple[int, int] | None = None
        self._asked: tuple[float, int] | None = None  # when all were last asked for their states, and lost_ns
        self._replaced = False  # the stream has commands of a daemon that started later
        self._log = logger("daemon")

    @property
    def config(self) -> Config:
        return self.reloader.config

    @property
    def controller(self) -> Controller:
        """The decisions' owner; replaced when a snapshot is loaded."""
        return self.pipeline.controller

    def stop(self, error: ConfigError | None = None) -> None:
        """End ``run`` soon; it raises ``error`` then."""
        self._error = self._error or error
        self._stopping.set()

    async def run(self) -> None:
        """Serve until ``stop``. The bus is connected.

        Raises ``ConfigError`` if the node already has a daemon, or gets a later one: it was frozen, or cut off.
        """
        other = "" if self.leadership.has_others else await self.bus.another_daemon()
        if other:
            raise ConfigError(
                f"node {self.config.node!r} already has a daemon: {other[:200]}; choose another --node"
            )
        await self._recover()
        self._begin_record()
        await self.bus.answer_status(self._answer)
        if self._socket is not None:
            await self._socket.open()
        self.ready.set()
        self._log.info("up", node=self.config.node, preset=self.config.policies.name, nats=redact(self.bus.url))
        async with task_group() as group:
            tasks = [
                group.start_soon(self.tasks.keep, name, work)
                for name, work in (
                    ("decisions", self._run_pipeline),
                    ("heartbeats", self._beat),
                    ("host probe", self._probe_host),
                    ("status", self._publish_status),
                    ("stream", partial(self.bus.keep_reading, self._on_new_stream)),
                    ("config watch", self.reloader.watch),
                    ("shadow estimates", self.estimates.keep),
                )
            ]
            await self._stopping.wait()
            for task in tasks:  # one by one: a group cancels its tasks in no order
                task.cancel()
        self.pipeline.record()
        self.shadow.configure(None)
        if not self._replaced:
            await self._saver.settled()  # else the last one is left out where one is under way
            run(self._saving(self.clock.now_ns()))
            await self._saver.settled()
        await self.bus.flush()
        self._log.info("down", node=self.config.node)
        if self._error is not None:
            raise self._error

    # Recovery

    async def _recover(self) -> None:
        """Load the snapshot, then apply what the stream holds beyond it: events, and the commands that we sent."""
        stream = await self.bus.first_stream()
        self._stream_created = stream.created
        self.position = self._load(stream)
        await self.bus.read_from(self.position + 1)
        began_at = self.position
        if stream.first_sequence > stream.last_sequence:  # everything in it has grown too old
            self.position = stream.last_sequence
        await self._catch_up(stream.last_sequence)
        self._configure_shadow()
        if self.leadership.leading:
            self._begin_to_lead()
        self._log.info(
            "recovered",
            messages=self.position - began_at,
            programs=len(self.controller.ledger.programs.by_name),
            window=self.controller.window.limit,
        )

    async def _catch_up(self, last_sequence: int) -> None:
        """However long it takes. Until then no heartbeat is sent, and gates let turns in as without a daemon.

        It is saved how far it has come: whoever is ended meanwhile, by an impatient supervisor say, goes on there.
        """
        logged_s = clocks.awake_s()
        with RecoveryMark(self._state_path.with_suffix(".mark")) as mark:
            async for deliveries in backlog(self.bus.inbox, self.position, last_sequence):
                for delivery in deliveries:
                    await (self._recall if mark.begin(delivery.sequence) else self._leave_out)(delivery)
                await self._pacer.drive(self.pipeline.recording())
                if self._stopping.is_set():
                    return
                if (now_s := clocks.awake_s()) - logged_s >= _PROGRESS_S:
                    logged_s = now_s
                    self._log.info("reading the stream", sequence=self.position, of=last_sequence)
                    await self._pacer.drive(self._saving(self.clock.now_ns()))

    async def _leave_out(self, delivery: Delivery) -> None:
        """Go on without a message that ends the process, and save at once how far that is: others may follow."""
        self.position = delivery.sequence
        self.pipeline.put_aside(delivery.data, delivery.subject, RuntimeError("the process ended twice at it"))
        await self._saver.settled()
        await self._pacer.drive(self._saving(self.clock.now_ns()))
        await self._saver.settled()

    async def _recall(self, delivery: Delivery) -> None:
        """Take in what was decided elsewhere, or before: an event, or commands that are not ours to send."""
        # What the server's clock says is never later than now: it may have been set back since.
        now_ns = min(self.clock.from_wall_ns(delivery.wall_ns), self.clock.now_ns())
        self.position = delivery.sequence
        if delivery.is_command:
            await self._pacer.drive(self.pipeline.recalling(delivery.data, now_ns))
        else:
            await self._pacer.drive(self.pipeline.feeding(delivery.data, now_ns, delivery.subject))

    def _load(self, stream: StreamInfo) -> int:
        """Restore the snapshot's state; the position to read on from."""
        from_first = max(0, stream.first_sequence - 1)
        try:
            snapshot, state = snapshots.load(self._state_path, self.config.policies)
        except FileNotFoundError:
            return from_first
        except snapshots.SnapshotError as error:
            self._log.warning("snapshot not used", path=str(self._state_path), error=str(error))
            return from_first
        if snapshot.time_scale != self.config.time_scale:
            self._log.warning("snapshot not used", reason="it was taken with another time scale")
            return stream.last_sequence
        lacked_s = self.clock.go_on_from(snapshot.now_ns)
        if lacked_s > _HARDLY_BACK_S:
            self.own.jumped_s = -lacked_s
        self.pipeline.controller = Controller(self.config.policies, self.config.control, state)
        if snapshot.stream_created != stream.created:
            return from_first
        return min(snapshot.stream_sequence, stream.last_sequence)  # its machine's crash may cost it the latest

    def _on_new_stream(self, stream: StreamInfo) -> None:
        is_new = stream.created != self._stream_created
        what = "stream is new" if is_new else "stream lacks its latest messages"
        self._log.warning(what, action="asking every publisher for its state")
        self._stream_created = stream.created
        self.position = 0 if is_new else min(self.position, stream.last_sequence)
        self._resync_all = True

    def _begin_record(self) -> None:
        """A recorded run starts from the recovered state, so that its replay can start there as well."""
        if self.recorder is not None:
            now_ns = self.clock.now_ns()
            self.recorder.state(b"".join(self._snapshot(now_ns)).decode(), now_ns)
            self.pipeline.recorders.append(self.recorder)

    def _snapshot(self, now_ns: int) -> Iterator[bytes]:
        return snapshots.pieces(
            self.controller.state,
            preset=self.config.policies.name,
            stream_sequence=self.position,
            stream_created=self._stream_created,
            now_ns=now_ns,
            time_scale=self.config.time_scale,
        )

    def _saving(self, now_ns: int) -> Steps[None]:
        """A full or hung disk costs the snapshot, never the daemon: the stream has what it would have held."""
        self.pipeline.mend(now_ns)
        yield from self._saver.saving(self._snapshot(now_ns))
        self._saver.set_aside(self.pipeline.set_aside.take())
        self._save_took_ns = self.clock.now_ns() - now_ns
        if self.recorder is not None:
            self.recorder.flush()
            if self.recorder.failed:
                self._log.error("record ends here", path=str(self.recorder.path), error=self.recorder.failed)
                self.recorder = None
        self._saved_at_ns = now_ns
        spare_records(len(self.controller.ledger.programs.by_name))

    def _must_save(self, now_ns: int) -> bool:
        """Every ``snapshot_s``, but for a bounded share of the time only. What was not saved is in the stream."""
        least_ns = seconds(self.config.snapshot_s * self.config.time_scale)
        return now_ns - self._saved_at_ns >= max(least_ns, _SAVING_AT_MOST * self._save_took_ns)

    # Serving

    def _take_over(self, config: Config) -> None:
        """Decide by ``config`` from now on. What does not go by names and connections is read where it is used."""
        now_ns = self.clock.now_ns()
        self.pipeline.record()  # what was decided by the old one comes first in a record
        if self._shadow_setup.has_changed:
            self._configure_shadow()  # it begins from what the old one knows
            self.shadow.begin(now_ns)
        self.controller.reconfigure(config.policies, config.control, now_ns)
        for recorder in self.pipeline.recorders:
            recorder.config(show(config), now_ns)

    def _record_head(self, now_ns: int) -> tuple[Header, str]:
        header = Header(node=self.config.node, preset=self.config.policies.name, config=show(self.config))
        return header, b"".join(self._snapshot(now_ns)).decode()

    def _configure_shadow(self) -> None:
        self._shadow_setup.configure()
        if not self._leads:
            self.shadow.stand_by(_FOLLOWS)

    # Leading, and standing by

    @property
    def is_leader(self) -> bool:
        """Whether it decides: it may, and has taken over."""
        return self._leads and self.leadership.leading

    def _begin_to_lead(self) -> None:
        """Number on, ask for what the stream may lack, and govern nobody before our own sample has come back."""
        now_ns, numbering = self.clock.now_ns(), self.controller.numbering
        lost = _NUMBERS_LOST if self.leadership.has_others else 0
        numbering.begin(max(now_ns // _NS_PER_NUMBER, numbering.sent + lost))
        self._resync_all = True
        silent_ns = self.controller.ledger.publishers.silent_ns(now_ns)  # the stream may have kept nothing since
        self._lost_since_s = self._elapsed_s() - self.clock.wall_seconds(silent_ns)
        self._proof = self._sampled + 1
        self._sample_now.set()
        self._leads = self._is_behind = True
        self.pipeline.muted = False
        self.shadow.stand_by("")
        if self.leadership.has_others:
            self.controller.take_over()
            self._log.info(
                "leads", fence=self.leadership.fence, programs=len(self.controller.ledger.programs.by_name)
            )
        for notify in self.on_change:
            notify(True)

    def _cease_to_lead(self) -> None:
        self._leads = False
        self.pipeline.record()
        self.pipeline.muted = True
        self.shadow.stand_by(_FOLLOWS)
        self._log.warning("leads no more", action="standing by")
        for notify in self.on_change:
            notify(False)

    async def _stand_by(self) -> None:
        if self._leads:
            self._cease_to_lead()
        for delivery in await self.bus.inbox.take(_LONGEST_WAIT_S):
            await self._recall(delivery)
        now_ns = self.clock.now_ns()
        self.tasks.failures.attempt("experiment", partial(self.experiment.follow, now_ns), None)
        await self._pacer.drive(self.pipeline.following(now_ns))
        self._looked_s = self._last_seen_s = self._elapsed_s()
        self._is_behind = False
        if self._must_save(now_ns):
            await self._pacer.drive(self._saving(now_ns))

    async def _run_pipeline(self) -> None:
        behind_since_s = self._elapsed_s()
        while not self._stopping.is_set():
            if not self.leadership.leading:
                await self._stand_by()
                continue
            if not self._leads:
                self._begin_to_lead()
            due_s = self.clock.wall_seconds(self.pipeline.next_deadline_ns() - self.clock.now_ns())
            wait_s = max(0.0, due_s) if self._is_current else _LONGEST_WAIT_S
            for delivery in await self.bus.inbox.take(min(_LONGEST_WAIT_S, wait_s)):
                await self._receive(delivery)
            if self._replaced:
                self.stop(
                    ConfigError(f"node {self.config.node!r} has a daemon that started later: this one stands down")
                )
                return
            self._note_gap()
            is_behind = len(self.bus.inbox) and self._elapsed_s() - behind_since_s < _LONGEST_BEHIND_S
            if self.leadership.leading and not is_behind:  # it may have been frozen, and its lease have ended
                await self._decide()
                behind_since_s = self._elapsed_s()

    async def _receive(self, delivery: Delivery) -> None:
        """Take in what the stream has: events, or commands, which are ours unless another daemon leads."""
        self.position = delivery.sequence
        if not delivery.is_command:
            await self._pacer.drive(self.pipeline.feeding(delivery.data, self.clock.now_ns(), delivery.subject))
        elif last_command_id(delivery.data) > self.controller.numbering.sent:
            self._replaced = not self.leadership.has_others
            self.leadership.fenced_out()
            await self._recall(delivery)

    async def _decide(self) -> None:
        now_ns, is_current = self.clock.now_ns(), self._is_current
        if is_current:
            self.tasks.failures.attempt("experiment", partial(self.experiment.decide, now_ns), None)
        commands = await self._pacer.drive(self.pipeline.deciding(now_ns)) if is_current else ()
        if is_current and self._resync_all:
            self._resync_all = False
            commands = [*commands, self._request_of_all()]
        await self._send(commands)
        if self._socket is not None:
            self._socket.pass_on(commands)
        if self.pipeline.decides:
            self._decided_s = self._elapsed_s()
        await checkpoint()  # their writers send them now; then there is time to write down what happened
        await self._pacer.drive(self.pipeline.recording())
        self.decisions.record(commands, now_ns)
        self.moves.record(commands, now_ns)
        if self._must_save(now_ns):
            await self._pacer.drive(self._saving(now_ns))

    async def _send(self, commands: Sequence[Command]) -> None:
        """One that cannot be encoded costs itself, not those that were decided with it."""
        try:
            await self.bus.send(commands)
        except LocalEventError as error:
            self.tasks.failures.note("commands", error, "sending the others")
            for command in commands if len(commands) > 1 else ():
                await self._send([command])

    def _request_of_all(self) -> StateRequest:
        """Each publisher's state, and what the stream may not have kept since this was asked last."""
        lost_s = max(0.0, self._looked_s - self._lost_since_s)
        self._lost_since_s = math.inf
        lost_ns = LOST_NS + seconds(lost_s * self.config.time_scale)
        self._asked = (self._elapsed_s(), lost_ns)
        return StateRequest(
            command_id=self.controller.numbering.sent,
            lost_ns=lost_ns,
            reason="the daemon started, or the stream has lost something",
        )

    @cached_property
    def _host_publisher(self) -> str:
        return publisher_name(self.config.node, "host", self.boot_id)

    @property
    def _decides(self) -> bool:
        """Whether decisions were made just now, or are under way. Where they raise, gates do without a daemon."""
        return self._pacer.is_busy or self._elapsed_s() - self._decided_s < _FROZEN_S

    @property
    def _is_current(self) -> bool:
        """Whether what is decided now goes by what happens now: our own samples have come back.

        Who hears nothing takes the engine for idle, and would give away slot after slot.
        """
        return not self._is_quiet and self._is_up_to_date

    @property
    def _is_quiet(self) -> bool:
        return self.bus.silent_s >= _SAMPLES_MISSED * max(1.0, self.config.host.probe_interval_s)

    @property
    def _is_up_to_date(self) -> bool:
        """Whether a sample that was taken after the last gap has come back, and with it what happened then."""
        host = self.controller.ledger.tools.host
        return host is not None and host.publisher == self._host_publisher and host.sequence >= self._proof

    def _note_gap(self) -> None:
        """Who was frozen or cut off finds what happened meanwhile in the stream, and maybe another daemon."""
        now_s = self._elapsed_s()
        if not self._looked_s:
            self._looked_s = self._last_seen_s = now_s
        frozen_s, self._looked_s = now_s - self._looked_s, now_s
        if frozen_s > _FROZEN_S:
            self._log.warning("was frozen", for_s=round(frozen_s, 1), action="reading what happened meanwhile")
            self._is_behind, self.own.frozen_s = True, frozen_s
            now_ns, for_ns = self.clock.now_ns(), self.clock.duration_ns(frozen_s)
            self.controller.holds.away(now_ns, for_ns)
            away = partial(self.experiment.away, now_ns, for_ns)
            self.tasks.failures.attempt("experiment", away, None)
        elif self._is_up_to_date:
            self._is_behind = False
        if frozen_s > _FROZEN_S or self._is_quiet:
            self._proof = self._sampled + 1
        if self._is_quiet:  # nobody knows what of it was kept
            self._resync_all = True
            self._lost_since_s = min(self._lost_since_s, self._last_seen_s)
        else:
            self._last_seen_s = now_s
        samples = self.controller.ledger.publishers.sequences.get(self._host_publisher)
        lost = samples.missing[-1] if samples is not None and samples.missing else None
        if lost is not None and lost != self._lost_samples:
            self._lost_samples, self._resync_all = lost, True

    async def _beat(self) -> None:
        """Only while events arrive: gates that ask a daemon which hears nothing would wait for ever."""
        while not self._stopping.is_set():
            window, policies = self.controller.window, self.config.policies
            asked_s, lost_ns = self._asked or (self._elapsed_s(), 0)
            heartbeat = Heartbeat(
                node=self.config.node,
                boot_id=self.boot_id,
                lease_ttl_ns=seconds(self.config.lease_s),
                limit=window.limit,
                draining=self.controller.ledger.programs.draining,
                window=window.window,
                command_id=self.controller.numbering.sent,
                asked_ago_ns=seconds(self._elapsed_s() - asked_s),
                lost_ns=lost_ns,
                fence=self.leadership.fence,
                slots_for_children=policies.retention.slots_for_children,
                end_interval_ns=round(self.controller.ledger.estimates.departures.each_ns),
                retain_most_ns=seconds(self.config.control.hints.retain_most_s),
                host_tier=self.controller.pressure.host_total_blocks > 0,
                engine_obeys=any(not pool.reason for pool in self.controller.ledger.engines.pools.values()),
                engine_policies=EnginePolicies(priority=policies.priority, memory=policies.memory).dumps(),
            )
            if self.bus.delivers and not self._is_behind and self.is_leader and self._decides:
                await self.bus.beat(heartbeat)
            await sleep(self.config.heartbeat_s)

    async def _probe_host(self) -> None:
        while not self._stopping.is_set():
            self.bus.quiet_s = max(_QUIET_S, 3 * self.config.host.probe_interval_s)
            if self.bus.connected and self.is_leader:
                self._sampled += 1
                host = self.config.host
                read = partial(self._probe.sample, host.cpus, elsewhere=host.elsewhere)
                self._sample = self.tasks.failures.attempt("host probe", read, self._sample)  # it is sent anyhow
                batch = encode_events(self._host_publisher, self._sampled, [(self.clock.now_ns(), self._sample)])
                await self.bus.publish_events("host", batch)
            self._sample_now = Event()
            with move_on_after(self.config.host.probe_interval_s):
                await self._sample_now.wait()

    # Status

    def status(self) -> Status:
        return describe(
            self.pipeline,
            self.reloader,
            boot_id=self.boot_id,
            stream_sequence=self.position,
            bus_connected=self.bus.delivers,
            now_ns=self.clock.now_ns(),
            roster=self.roster,
            stands_by=not self.is_leader,
            fence=self.leadership.fence,
            shadow=self.shadow.status(self.clock.now_ns(), self.estimates.latest),
            experiment=self.experiment.status(self.clock.now_ns()),
            listeners=listener_rows(),
            failures=self.tasks.failures.rows(),
            own=replace(self.own, is_behind=self._is_behind, unsaved=self._saver.failure),
        )

    def engines(self) -> Iterator[EngineRow]:
        """Every engine, by name, one by one: very many take a while."""
        return each_engine(self.controller.ledger, self.roster, self.clock.now_ns())

    def _answer(self, request: bytes) -> bytes | None:
        """Of several daemons the one that leads answers for all."""
        if not self.is_leader:
            return None
        return self.status().with_programs(self.controller) if request == b"programs" else self.status().encode()

    async def _publish_status(self) -> None:
        while not self._stopping.is_set():
            if self.is_leader:
                await self.bus.publish_status(self.status().encode())
            await sleep(self.status_every_s)

    @property
    def status_every_s(self) -> float:
        """Seconds of the wall clock between two looks that may differ: a control interval."""
        return max(0.05, self.config.control.interval_s / self.config.time_scale)

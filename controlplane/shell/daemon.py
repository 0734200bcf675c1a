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
from controlplane.core.commands import Command, StateRequest
from controlplane.core.controller import Controller
from controlplane.core.engine_policies import EnginePolicies
from controlplane.core.errors import ConfigError, LocalEventError
from controlplane.core.events import HostSampled
from controlplane.core.silence import LOST_NS
from controlplane.core.steps import Steps, run
from controlplane.core.types import seconds
from controlplane.eventloop import task_group
from controlplane.shell import snapshot as snapshots
from controlplane.shell.advise import AutoAdvice, Questions
from controlplane.shell.bus import Bus, Delivery, StreamInfo
from controlplane.shell.clock import Clock
from controlplane.shell.decisions import Decisions
from controlplane.shell.disk import DiskWriter
from controlplane.shell.engines import EngineRow, Known, Moves, each_engine
from controlplane.shell.event_socket import EventSocket
from controlplane.shell.health import Own
from controlplane.shell.host_probe import HostProbe
from controlplane.shell.laboratory import Laboratory
from controlplane.shell.leading import Alone, Leads
from controlplane.shell.logs import logger
from controlplane.shell.pacing import Pacer, spare_records
from controlplane.shell.pump import Pump
from controlplane.shell.reload import Reloader
from controlplane.shell.saving import Saver
from controlplane.shell.shadow import Estimates, Replayer, Shadow, Wanting
from controlplane.shell.status import Status, describe
from controlplane.shell.stretch import Stretch
from controlplane.shell.tasks import Tasks
from controlplane.wire.codec import Heartbeat, encode_events, last_command_id
from controlplane.wire.listener import listener_rows
from controlplane.wire.log import Header, LogWriter
from controlplane.wire.nats_url import shown
from controlplane.wire.subjects import publisher_name

_STALLED_S = 30.0  # so long nothing of what the stream has: its last messages may have been deleted
_TELL_S = 5.0  # between two words of how far a long reading has come
_LONGEST_WAIT_S = 0.5
_LONGEST_BEHIND_S = 1.0  # that a backlog is applied without a decision
_QUIET_S = 5.0  # or three samples of the host
_FROZEN_S = 2.0  # between two looks, which are at most ``_LONGEST_WAIT_S`` apart
_SAMPLES_MISSED = 2.5  # of the host, until what is known may be out of date
_HARDLY_BACK_S = 0.1
_NS_PER_NUMBER = 1_000_000  # no daemon sends a command each millisecond of its life
_NUMBERS_UNHEARD = 10_000  # of commands that a leader before us may have sent and the stream did not keep
_FOLLOWS = "the daemon does not decide: another one leads, or it still starts"
_SAVING_AT_MOST = 20  # saves are this many times their own duration apart


class Daemon:
    """Serves one node over one bus; while it ``leads``, where others may.

    Who is in ``on_change`` is told when this daemon begins to lead, once it can, and when it leads no more.
    """

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
        leads: Leads | None = None,
        saver: Saver | None = None,
    ) -> None:
        config = resolved.config
        self.bus = bus
        self.clock, self._elapsed_s = clock or Clock(config.time_scale), elapsed_s
        self._pacer = Pacer(lambda: self.clock.wall_seconds(self.clock.now_ns()))
        self.reloader = Reloader(source, resolved, self._pacer.between(self._take_over))
        self.boot_id = secrets.token_hex(4)
        self.tasks = Tasks()
        self.pump = Pump(Controller(config.policies, config.control), self.tasks.failures)
        self.position = 0  # in the stream, of what the state contains
        self.own = Own()
        self.ready = Event()
        self.shadow = Shadow(lambda: self.controller)
        laboratory = Laboratory()
        self.advice = AutoAdvice(self.reloader, self._make_stretch, self._why_not_tuned)
        self.pump.besides += [self.shadow, self.advice]
        self._questions = Questions(self.advice, self.clock.now_ns, laboratory)
        self.replayer = Replayer(laboratory=laboratory)
        self.estimates = Estimates(self.clock.now_ns, self.replayer)
        self._wanting = Wanting(self.reloader, self.shadow, self.estimates, state_path.parent, self._record_head)
        self.decisions, self.moves = Decisions(), Moves()
        self.roster: Iterable[Known] = ()  # the engines that there should be, where somebody knows
        self.leads = leads or Alone()
        self.on_change: list[Callable[[bool], None]] = []
        self._leads = False  # as far as this daemon has taken over
        self.pump.muted = self.leads.has_others
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
        self._looked_s = self._heard_s = 0.0
        self._lost_since_s = math.inf  # the stream may have lost what came since then, which nobody asked for yet
        self._lost_samples: tuple[int, int] | None = None
        self._asked: tuple[float, int] | None = None  # when all were last asked for their states, and lost_ns
        self._replaced = False  # the stream has commands of a daemon that started later
        self._log = logger("daemon")

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.reloader.config

    @property
    def controller(self) -> Controller:
        """The decisions' owner; replaced when a snapshot is loaded."""
        return self.pump.controller

    def stop(self, error: ConfigError | None = None) -> None:
        """End ``run`` soon; it raises ``error`` then."""
        self._error = self._error or error
        self._stopping.set()

    async def run(self) -> None:
        """Serve until ``stop``. The bus is connected.

        Raises ``ConfigError`` if the node already has a daemon, or gets a later one: it was frozen, or cut off.
        """
        other = "" if self.leads.has_others else await self.bus.another_daemon()
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
        self._log.info("up", node=self.config.node, preset=self.config.policies.name, nats=shown(self.bus.url))
        async with task_group() as group:
            tasks = [
                group.start_soon(self.tasks.keep, name, work)
                for name, work in (
                    ("decisions", self._pump_events),
                    ("heartbeats", self._beat),
                    ("host probe", self._probe_host),
                    ("status", self._publish_status),
                    ("stream", partial(self.bus.keep_reading, self._on_new_stream)),
                    ("config watch", self.reloader.watch),
                    ("shadow estimates", self.estimates.keep),
                    ("advice", self._questions.keep),
                )
            ]
            await self._stopping.wait()
            for task in tasks:  # one by one: a group cancels its tasks in no order
                task.cancel()
        self.pump.tell()
        self.shadow.want(None)
        self.advice.close()
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
        self._want_shadow()
        if self.leads.leading:
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
        heard_s = told_s = clocks.awake_s()
        while self.position < last_sequence and not self._stopping.is_set():
            deliveries = await self.bus.inbox.take(_LONGEST_WAIT_S)
            for delivery in deliveries:
                await self._recall(delivery)
            await self._pacer.drive(self.pump.telling())
            now_s = clocks.awake_s()
            if deliveries:
                heard_s = now_s
            elif now_s - heard_s >= _STALLED_S:
                self._log.warning("the stream says no more", sequence=self.position, of=last_sequence)
                return
            if now_s - told_s >= _TELL_S:
                told_s = now_s
                self._log.info("reading the stream", sequence=self.position, of=last_sequence)
                await self._pacer.drive(self._saving(self.clock.now_ns()))

    async def _recall(self, delivery: Delivery) -> None:
        """Take in what was decided elsewhere, or before: an event, or commands that are not ours to send."""
        # What the server's clock says is never later than now: it may have been set back since.
        now_ns = min(self.clock.from_wall_ns(delivery.wall_ns), self.clock.now_ns())
        self.position = delivery.sequence
        if delivery.is_command:
            await self._pacer.drive(self.pump.recalling(delivery.data, now_ns))
        else:
            await self._pacer.drive(self.pump.feeding(delivery.data, now_ns, delivery.subject))

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
        self.pump.controller = Controller(self.config.policies, self.config.control, state)
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
            self.pump.recorders.append(self.recorder)

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
        self.pump.mend(now_ns)
        yield from self._saver.saving(self._snapshot(now_ns))
        self._saver.set_aside(self.pump.set_aside.take())
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
        self.pump.tell()  # what was decided by the old one comes first in a record
        if self._wanting.has_changed:
            self._want_shadow()  # it begins from what the old one knows
            self.shadow.begin(now_ns)
        self.controller.reconfigure(config.policies, config.control, now_ns)
        for recorder in self.pump.recorders:
            recorder.config(show(config), now_ns)

    def _make_stretch(self, length_ns: int) -> Stretch:
        return Stretch(self._state_path.parent / "advise", length_ns, self._record_head, DiskWriter("advise"))

    def _why_not_tuned(self) -> str:
        """Why automatic advice may change nothing now; empty: it may."""
        if not self.is_leader:
            return _FOLLOWS
        if not self.bus.delivers or not self._hears or self._is_behind:
            return "the daemon does not hear what happens: its bus is away, or it was frozen"
        return "the node drains" if self.controller.ledger.programs.draining else ""

    def _record_head(self, now_ns: int) -> tuple[Header, str]:
        """How a piece of a record begins."""
        header = Header(node=self.config.node, preset=self.config.policies.name, config=show(self.config))
        return header, b"".join(self._snapshot(now_ns)).decode()

    def _want_shadow(self) -> None:
        self._wanting.want()
        if not self._leads:
            self.shadow.stand_by(_FOLLOWS)

    # Leading, and standing by

    @property
    def is_leader(self) -> bool:
        """Whether it decides: it may, and has taken over."""
        return self._leads and self.leads.leading

    def _begin_to_lead(self) -> None:
        """Number on, ask for what the stream may lack, and govern nobody before our own sample has come back."""
        now_ns, numbering = self.clock.now_ns(), self.controller.numbering
        unheard = _NUMBERS_UNHEARD if self.leads.has_others else 0
        numbering.begin(max(now_ns // _NS_PER_NUMBER, numbering.sent + unheard))
        self._resync_all = True
        unheard_ns = self.controller.ledger.publishers.silent_ns(now_ns)  # the stream may have kept nothing since
        self._lost_since_s = self._elapsed_s() - self.clock.wall_seconds(unheard_ns)
        self._proof = self._sampled + 1
        self._sample_now.set()
        self._leads = self._is_behind = True
        self.pump.muted = False
        self.shadow.stand_by("")
        if self.leads.has_others:
            self.controller.take_over()
            self._log.info("leads", fence=self.leads.fence, programs=len(self.controller.ledger.programs.by_name))
        for told in self.on_change:
            told(True)

    def _cease_to_lead(self) -> None:
        self._leads = False
        self.pump.tell()
        self.pump.muted = True
        self.shadow.stand_by(_FOLLOWS)
        self.advice.forget()
        self._log.warning("leads no more", action="standing by")
        for told in self.on_change:
            told(False)

    async def _stand_by(self) -> None:
        """One round of following the leader."""
        if self._leads:
            self._cease_to_lead()
        for delivery in await self.bus.inbox.take(_LONGEST_WAIT_S):
            await self._recall(delivery)
        now_ns = self.clock.now_ns()
        await self._pacer.drive(self.pump.following(now_ns))
        self._looked_s = self._heard_s = self._elapsed_s()
        self._is_behind = False
        if self._must_save(now_ns):
            await self._pacer.drive(self._saving(now_ns))

    async def _pump_events(self) -> None:
        behind_since_s = self._elapsed_s()
        while not self._stopping.is_set():
            if not self.leads.leading:
                await self._stand_by()
                continue
            if not self._leads:
                self._begin_to_lead()
            due_s = self.clock.wall_seconds(self.pump.next_deadline_ns() - self.clock.now_ns())
            wait_s = max(0.0, due_s) if self._hears else _LONGEST_WAIT_S
            for delivery in await self.bus.inbox.take(min(_LONGEST_WAIT_S, wait_s)):
                await self._hear(delivery)
            if self._replaced:
                self.stop(
                    ConfigError(f"node {self.config.node!r} has a daemon that started later: this one stands down")
                )
                return
            self._note_gap()
            is_behind = len(self.bus.inbox) and self._elapsed_s() - behind_since_s < _LONGEST_BEHIND_S
            if self.leads.leading and not is_behind:  # it may have been frozen, and its lease have ended
                await self._decide()
                behind_since_s = self._elapsed_s()

    async def _hear(self, delivery: Delivery) -> None:
        """Take in what the stream has: events, or commands, which are ours unless another daemon leads."""
        self.position = delivery.sequence
        if not delivery.is_command:
            await self._pacer.drive(self.pump.feeding(delivery.data, self.clock.now_ns(), delivery.subject))
        elif last_command_id(delivery.data) > self.controller.numbering.sent:
            self._replaced = not self.leads.has_others
            self.leads.outrun()
            await self._recall(delivery)

    async def _decide(self) -> None:
        """Decide what is due, have it sent, and then write down what happened."""
        now_ns, hears = self.clock.now_ns(), self._hears
        commands = await self._pacer.drive(self.pump.deciding(now_ns)) if hears else ()
        if hears and self._resync_all:
            self._resync_all = False
            commands = [*commands, self._request_of_all()]
        await self._send(commands)
        if self._socket is not None:
            self._socket.pass_on(commands)
        if self.pump.decides:
            self._decided_s = self._elapsed_s()
        await checkpoint()  # their writers send them now; then there is time to write down what happened
        await self._pacer.drive(self.pump.telling())
        self.decisions.tell(commands, now_ns)
        self.moves.tell(commands, now_ns)
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
    def _hears(self) -> bool:
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
            self._looked_s = self._heard_s = now_s
        frozen_s, self._looked_s = now_s - self._looked_s, now_s
        if frozen_s > _FROZEN_S:
            self._log.warning("was frozen", for_s=round(frozen_s, 1), action="reading what happened meanwhile")
            self._is_behind, self.own.frozen_s = True, frozen_s
        elif self._is_up_to_date:
            self._is_behind = False
        if frozen_s > _FROZEN_S or self._is_quiet:
            self._proof = self._sampled + 1
        if self._is_quiet:  # nobody knows what of it was kept
            self._resync_all = True
            self._lost_since_s = min(self._lost_since_s, self._heard_s)
        else:
            self._heard_s = now_s
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
                fence=self.leads.fence,
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
        """How things stand."""
        return describe(
            self.pump,
            self.reloader,
            boot_id=self.boot_id,
            position=self.position,
            bus_connected=self.bus.delivers,
            now_ns=self.clock.now_ns(),
            roster=self.roster,
            stands_by=not self.is_leader,
            fence=self.leads.fence,
            shadow=self.shadow.status(self.clock.now_ns(), self.estimates.latest),
            advise=self.advice.status(self.clock.now_ns()),
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

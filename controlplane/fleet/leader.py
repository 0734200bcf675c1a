"""What a fleet daemon does beside deciding: it is whom Envoy asks, and its leader keeps all told of the engines.

Envoy asks the first daemon in its list that says it serves. The leader does. One that is behind it in the list
does too, so that turns come to it in the moment in which the leader is lost: its gate holds them until somebody
leads, itself in most cases. One before it does not, and asks for the lead.
"""

import math
import secrets
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from anyio import Event, create_task_group, current_time, move_on_after, sleep, to_thread

from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.core.model.events import EnginesListed
from controlplane.daemon.daemon import Daemon
from controlplane.daemon.process.logs import logger
from controlplane.fleet.checkup import Checkup
from controlplane.fleet.envoy import write_endpoints
from controlplane.fleet.ext_proc import PickerServer
from controlplane.fleet.front import Front
from controlplane.fleet.lease import Lease
from controlplane.fleet.pluginless import PluginlessEngines
from controlplane.fleet.roster import Engine, Roster, Standing
from controlplane.fleet.stream import FleetBus
from controlplane.transport.subjects import CONTROL_ROLE, publisher_name
from controlplane.wire.codec import encode_events

_LOOK_S = 0.05
_AGAIN_S = 1.0  # what failed is tried again, and a node that was away is looked for
_ASK_FOR_LEAD_S = 10.0  # who is preferred has been up for so long, and asks no more often
_LEAVE_S = 3.0  # most that one who goes waits for another to lead
_FOUND_S = 1.5  # Envoy, which looks once a second, has found by then who serves since a moment ago


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a fleet daemon is made of."""

    daemon: Daemon
    bus: FleetBus
    lease: Lease
    roster: Roster
    front: Front
    picker: PickerServer
    pluginless: PluginlessEngines
    endpoints: Path | None = None  # the file in which Envoy reads of the engines


class Leader:
    """Takes the leader's work up and lays it down, as the daemon begins to lead and ceases to."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._changed = Event()
        self._publisher = publisher_name(parts.daemon.config.node, CONTROL_ROLE, secrets.token_hex(4))
        self._sequence = 0  # events of ours
        self._listed: EnginesListed | None = None  # what the stream was told last
        self._log = logger("fleet")
        self.works: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {  # by task: run until the daemon ends
            "picker": self.serve,
            "roster told": self.publish,
            "engine checks": self.check,
            "preferred lead": self.ask_for_lead,
        }
        parts.roster.on_change.append(self._look)
        parts.daemon.on_change.append(self._leads)

    def _leads(self, leads: bool) -> None:
        """In the daemon's task, before it decides anything more."""
        parts = self._parts
        if leads:
            self._listed = None
            parts.front.learn(parts.daemon.controller.ledger)
            parts.pluginless.lead()
        else:
            self._forget_the_gone()
        self._look()

    def _forget_the_gone(self) -> None:
        """Who looks no more would take them for gone for ever; what the leader finds is in the stream."""
        roster = self._parts.roster
        for engine in [engine for engine in roster if engine.standing is Standing.GONE]:
            roster.put(replace(engine, standing=Standing.SERVING))

    def _look(self) -> None:
        self._changed.set()

    # Serving Envoy

    async def serve(self) -> None:
        """Be asked by Envoy while that is right, until cancelled."""
        parts, serving, was_leader, moves_on_s = self._parts, False, False, math.inf
        while True:
            is_leader = parts.daemon.is_leader
            wanted = self._may_serve(serving=serving)
            if was_leader and not is_leader:
                await parts.pluginless.stop()
                moves_on_s = current_time() + _FOUND_S
            if current_time() >= moves_on_s:
                # What is held here goes to the leader's picker, which tells of engines without a plugin. Before
                # Envoy had found that one, it would have gone around both, and so would what came meanwhile.
                moves_on_s = math.inf
                wanted = wanted and not parts.front.led_by_other(parts.daemon.boot_id)
            if wanted != serving:
                parts.picker.set_serving(wanted)
            serving, was_leader = wanted, is_leader and serving
            await sleep(_LOOK_S)

    def _may_serve(self, *, serving: bool) -> bool:
        parts = self._parts
        if parts.daemon.is_leader:
            return serving or parts.front.is_governed  # before it hears us, the gate lets everything pass
        if not parts.bus.connected:
            return False
        rank = parts.lease.leader_rank
        if parts.lease.leading or rank is None:
            return serving  # it is about to lead, or somebody is
        if parts.front.led_by_other(parts.daemon.boot_id):
            return rank < parts.lease.rank
        return parts.front.was_led  # nobody leads just now: turns wait here until somebody does

    # The lead

    async def ask_for_lead(self) -> None:
        """Who is preferred asks a leader that is less so to hand over, until cancelled."""
        parts, asked_s = self._parts, current_time()
        while True:
            rank, now_s = parts.lease.leader_rank, current_time()
            behind = rank is not None and rank > parts.lease.rank and not parts.daemon.is_leader
            if not (behind and parts.front.is_led and parts.bus.delivers):
                asked_s = now_s
            elif now_s - asked_s >= _ASK_FOR_LEAD_S:
                asked_s = now_s
                answer = await parts.bus.ask_to_hand_over()
                self._log.info("asked for the lead", rank=parts.lease.rank, answer=answer or "none")
            await sleep(_AGAIN_S)

    async def hand_over(self) -> str:
        """Let another daemon lead. What became of it, in words; held turns wait for whoever does."""
        if not self._parts.daemon.is_leader:
            return "this daemon does not lead"
        await self._parts.lease.hand_over()
        return "handed over"

    async def leave(self) -> None:
        """This daemon goes: another one leads before its held turns are sent there, if there is another."""
        parts = self._parts
        if parts.lease.leading:
            await parts.lease.free()
            with move_on_after(_LEAVE_S):
                while not parts.front.led_by_other(parts.daemon.boot_id):  # noqa: ASYNC110  its time runs, too
                    await sleep(_LOOK_S)
                rank = parts.lease.leader_rank
                if rank is None or rank <= parts.lease.rank:  # else it has served all along
                    await sleep(_FOUND_S)

    # The engines

    async def check(self) -> None:
        """Look whether the engines are there, while this daemon leads, until cancelled."""
        while True:
            if self._parts.daemon.is_leader:
                await self._check_while_leading()
            await sleep(_LOOK_S)

    async def _check_while_leading(self) -> None:
        checkup = Checkup(self._parts.roster, self._parts.pluginless, on_change=self._standing_changed)
        async with create_task_group() as tasks:
            tasks.start_soon(checkup.run)
            while self._parts.daemon.is_leader:  # noqa: ASYNC110  a lease ends by the clock
                await sleep(_LOOK_S)
            tasks.cancel_scope.cancel()

    def _standing_changed(self, engine: Engine, why: str) -> None:
        self._log.warning("engine", place=engine.place, standing=str(engine.standing), why=why)

    async def publish(self) -> None:
        """Keep the stream and Envoy told of the roster, until cancelled."""
        while True:
            self._changed = Event()
            settled = await self._publish()
            with move_on_after(None if settled else _AGAIN_S):
                await self._changed.wait()

    async def _publish(self) -> bool:
        """Whether all is told."""
        parts = self._parts
        await to_thread.run_sync(self._write, self._seen(), abandon_on_cancel=True)  # its disk may hang
        if not parts.daemon.is_leader:
            return False  # what the leader finds is seen in the stream
        engines = tuple(parts.roster)
        try:
            await parts.bus.join({engine.place.partition("/")[0] for engine in engines})
        except EngineUnavailable as error:
            self._log.warning("nodes not joined yet", error=str(error))
            return False
        listed = EnginesListed(
            serving=tuple(engine.place for engine in engines if engine.standing is Standing.SERVING),
            draining=tuple(engine.place for engine in engines if engine.standing is Standing.DRAINING),
        )
        in_stream = parts.daemon.controller.ledger.engines.lists(listed.serving, listed.draining)
        if listed == self._listed and in_stream:
            return not parts.bus.missing
        now_ns = parts.daemon.clock.now_ns()
        self._sequence += 1  # also where it is not confirmed: it may come all the same, and the next one is another
        batch = encode_events(self._publisher, self._sequence, [(now_ns, listed)])
        if await parts.bus.relay_events(CONTROL_ROLE, batch):
            if listed != self._listed:
                self._log.info(
                    "engines", serving=len(listed.serving), draining=len(listed.draining), of=len(engines)
                )
            self._listed = listed
        # A server has it, but a stream whose own leader was just lost keeps nothing, and decisions, and whoever
        # follows, go by what is in the stream.
        return False

    def _seen(self) -> list[Engine]:
        """The roster; of one that follows, with what the leader has found gone."""
        parts = self._parts
        listed = parts.daemon.controller.ledger.engines.listed
        if parts.daemon.is_leader or listed is None:
            return list(parts.roster)
        return [
            engine if engine.place in listed else replace(engine, standing=Standing.GONE) for engine in parts.roster
        ]

    def _write(self, engines: Iterable[Engine]) -> None:
        path, fence = self._parts.endpoints, self._parts.lease.fence
        if path is None:
            return
        try:
            write_endpoints(path, engines, version=str(fence))
        except (OSError, ConfigError) as error:
            self._log.error("endpoints not written", path=str(path), error=str(error))

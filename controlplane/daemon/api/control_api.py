"""What operators ask of a daemon: one method for each of ``proto/penstock/v1/control.proto``.

An order travels over the node's stream like everything else that decisions are made from: so it holds after a
restart, and a recorded run decides alike when it is replayed.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from anyio import Lock, move_on_after, sleep

from controlplane.config import show
from controlplane.core.model.errors import ConfigError, EngineUnavailable, UnknownProgram
from controlplane.core.model.events import OperatorOrders
from controlplane.core.model.types import Status as ProgramStatus
from controlplane.daemon.api.views import Listing, listing
from controlplane.daemon.daemon import Daemon
from controlplane.daemon.observe.samples import Sample, Samples
from controlplane.daemon.process.reload import ConfigState
from controlplane.daemon.shadow.shadow import FAILED
from controlplane.daemon.status.decisions import Decision
from controlplane.daemon.status.engines import EngineListing, engine_listing
from controlplane.daemon.status.status import Orders, Status
from controlplane.transport.subjects import CONTROL_ROLE, publisher_name
from controlplane.wire.codec import encode_events
from controlplane.wire.control import Fields

_APPLIED_WITHIN_S = 5.0
_LOOK_S = 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigText:
    """The reply of ``GetConfig``."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted:
    """The reply of ``Promote``: what is in force now, and what is its shadow."""

    config: ConfigState
    preset: str
    keep: tuple[str, ...]
    file: str
    shadow_preset: str
    shadow_settings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleListing:
    """The reply of ``ListSamples``."""

    samples: Sequence[Sample]


class ControlApi:
    """Requests are ``Fields`` of the method's message; replies are records with its reply's fields."""

    def __init__(self, daemon: Daemon, samples: Samples) -> None:
        self._daemon, self._samples = daemon, samples
        self._publisher = publisher_name(daemon.config.node, CONTROL_ROLE, daemon.boot_id)
        self._sequence = 0
        self._one_order = Lock()

    async def get_status(self, _: Fields) -> Status:
        return self._daemon.status()

    async def list_programs(self, request: Fields) -> Listing:
        controller = self._daemon.controller
        return listing(
            controller.ledger,
            self._daemon.clock.now_ns(),
            ended=request.ended,
            queued=request.queued,
            contains=request.contains,
            most=max(0, request.limit),
            page=max(0, request.page),
            holds=controller.holds,
        )

    async def list_engines(self, request: Fields) -> EngineListing:
        return engine_listing(list(self._daemon.engines()), self._daemon.moves, most=request.limit)

    async def list_samples(self, request: Fields) -> SampleListing:
        return SampleListing(samples=self._samples.since(request.after_ms))

    async def watch_decisions(self, request: Fields) -> AsyncIterator[Decision]:
        async for decision in self._daemon.decisions.watch(request.program_id):
            yield decision

    async def hold(self, request: Fields) -> Orders:
        root_id = self._root_of(request.program_id)
        async with self._one_order:
            orders = self._orders()
            return await self._order([*orders.held, root_id], orders.draining)

    async def release(self, request: Fields) -> Orders:
        async with self._one_order:
            orders, wanted = self._orders(), request.program_id
            if wanted not in orders.held:  # a program that is no more may be let go all the same
                wanted = self._root_of(wanted)
            if wanted not in orders.held:
                raise UnknownProgram(f"program {wanted!r} is not on hold; on hold are: {_names(orders.held)}")
            return await self._order([name for name in orders.held if name != wanted], orders.draining)

    async def drain(self, request: Fields) -> Orders:
        async with self._one_order:
            return await self._order(self._orders().held, not request.undo)

    async def set_preset(self, request: Fields) -> ConfigState:
        return _taken_over(self._daemon.reloader.set_preset(request.preset))

    async def promote(self, _: Fields) -> Promoted:
        """A shadow that failed is not made live: what it failed by would be the daemon's end."""
        shadow = self._daemon.status().shadow
        if shadow is not None and shadow.standing == FAILED:
            raise ConfigError(f"the shadow failed, and is not made live: {shadow.reason}")
        if not self._daemon.is_leader:
            raise ConfigError("this daemon stands by: promote the shadow of the one that leads")
        reloader = self._daemon.reloader
        state = _taken_over(reloader.promote())
        asked, changed = reloader.config.shadow, reloader.source.promoted
        return Promoted(
            config=state,
            preset=reloader.resolved.config.preset,
            keep=tuple(f"{key} = {_toml(changed[key])}" for key in sorted(changed, key=lambda key: key.count("."))),
            file=state.file,
            shadow_preset=asked.preset,
            shadow_settings=asked.settings,
        )

    async def reload(self, _: Fields) -> ConfigState:
        return _taken_over(self._daemon.reloader.reload("an operator asked for it"))

    async def get_config(self, _: Fields) -> ConfigText:
        resolved = self._daemon.reloader.resolved
        return ConfigText(text=show(resolved.config, origins=resolved.origins))

    # Orders

    def _orders(self) -> Orders:
        return Orders.of(self._daemon.controller)

    def _root_of(self, program_id: str) -> str:
        program = self._daemon.controller.ledger.programs.by_name.get(program_id)
        if program is None or program.status is ProgramStatus.ENDED:
            raise UnknownProgram(f"no program {program_id!r} here: `penstock programs` lists them")
        return program.root_id

    async def _order(self, held: Sequence[str], draining: bool) -> Orders:
        """Tell the stream, and wait until it came back."""
        event = OperatorOrders(held=tuple(dict.fromkeys(held)), draining=draining)
        if not self._daemon.bus.delivers:
            raise EngineUnavailable("the bus is away, or keeps nothing: nothing was changed")
        self._sequence += 1  # also where it is not confirmed: it may come all the same, and the next one is another
        batch = encode_events(self._publisher, self._sequence, [(self._daemon.clock.now_ns(), event)])
        if not await self._daemon.bus.relay_events(CONTROL_ROLE, batch):
            raise EngineUnavailable(
                "the bus did not confirm the order, which may still be carried out: check `penstock status`, and "
                "repeat it if need be"
            )
        wanted = Orders(held=tuple(event.held), draining=draining)
        with move_on_after(_APPLIED_WITHIN_S):
            while self._orders() != wanted:  # noqa: ASYNC110  it comes by the stream, to the controller
                await sleep(_LOOK_S)
            return wanted
        raise EngineUnavailable("the bus has not delivered the order yet: check `penstock status`")


def _taken_over(state: ConfigState) -> ConfigState:
    if state.refused:
        raise ConfigError(state.refused)
    return state


def _toml(value: Any) -> str:
    return "(take it out)" if value is None else msgspec.json.encode(value).decode()


def _names(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) or "none"

"""Virtual time for the gate's tests: an event loop that jumps to its next timer instead of sleeping."""

import asyncio
import functools
import inspect
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from controlplane.core.model.events import Event
from controlplane.core.model.types import seconds
from controlplane.gate import Gate, GateLimits, Ticket
from controlplane.wire.heartbeat import Heartbeat

Story = Callable[..., Coroutine[Any, Any, None]]


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, moves the clock by the timeout; waiting for nothing at all is a deadlock."""

    now_ns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits and no timer is set"
            self.now_ns += max(0, round(timeout * 1e9))
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """``now_ns`` is the virtual clock, which only timers move."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def now_ns(self) -> int:
        return self._jumping.now_ns

    def time(self) -> float:
        return self._jumping.now_ns / 1e9


Beat = functools.partial(Heartbeat, node="n", boot_id="boot-1", lease_ttl_ns=seconds(5), limit=4, window=4.0)


@dataclass
class Bench:
    """A gate in virtual time, and all that it sent."""

    loop: VirtualLoop
    gate: Gate
    sent: list[Event] = field(default_factory=list)
    urgent: list[Event] = field(default_factory=list)

    @property
    def granted(self) -> list[str]:
        """Programs whose grant the gate tells a daemon of."""
        return [grant.program_id for grant in self.gate.state().grants]

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.sent if type(event) is kind]

    def enter(self, name: str, **more: Any) -> "asyncio.Task[Any]":
        """Begin to enter with a turn of this name; the program is the part before the slash."""
        return asyncio.ensure_future(self.gate.enter(ticket(name, **more)))

    async def settle(self) -> None:
        """Let everything run that can run now."""
        for _ in range(10):
            await asyncio.sleep(0)

    async def heartbeats_for(self, duration_s: float, **beat: Any) -> None:
        """A daemon that lives: a heartbeat every quarter of a second."""
        end_ns = self.loop.now_ns() + seconds(duration_s)
        while self.loop.now_ns() < end_ns:
            self.gate.on_heartbeat(Beat(**beat))
            await asyncio.sleep(0.25)


def ticket(name: str, **more: Any) -> Ticket:
    return Ticket(turn_id=name, program_id=name.partition("/")[0], **more)


def in_virtual_time(*, governed: bool = True, **limits: Any) -> Callable[[Story], Callable[..., None]]:
    """Make a test of a story about a gate; ``governed``: a daemon was just heard."""

    def decorate(story: Story) -> Callable[..., None]:
        @functools.wraps(story)
        def test(**parameters: Any) -> None:
            loop = VirtualLoop()
            sent: list[Event] = []
            urgent: list[Event] = []

            def send(event: Event, now: bool) -> None:
                sent.append(event)
                if now:
                    urgent.append(event)

            gate = Gate(send=send, now_ns=loop.now_ns, limits=GateLimits(**limits))
            if governed:
                gate.on_heartbeat(Beat())
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                runner.run(story(Bench(loop, gate, sent, urgent), **parameters))

        _, *own = inspect.signature(story).parameters.values()
        test.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
        return test

    return decorate

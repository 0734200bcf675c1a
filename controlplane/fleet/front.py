"""A gate outside engines, which Envoy asks, and what brings it and a daemon together: the bus, as at any engine.

So a fleet's daemon hears the gate in its own process through the stream, which a standby reads too, and the gate
hears whichever daemon leads: its own, or another one, while it has turns yet to let go.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from controlplane.core.ledger import Ledger
from controlplane.core.model.events import Event
from controlplane.core.model.places import FLEET_GATE
from controlplane.core.model.types import Status
from controlplane.emit.emitter import Emitter
from controlplane.gate import Gate, GateLimits, GateLink, Inbox, Mode

_LED_S = 1.0  # four heartbeats


class Front:
    """A gate of ``node``, which may be a fleet, on the bus at ``url``. Use it in one event loop."""

    def __init__(
        self,
        node: str,
        url: str | Callable[[], str],
        *,
        now_ns: Callable[[], int],
        role: str = FLEET_GATE,
        limits: GateLimits | None = None,
        tenant_header: str = "",
        connect_options: dict[str, Any] | None = None,
    ) -> None:
        self.gate = Gate(send=self._send, now_ns=now_ns, limits=limits, tenant_header=tenant_header)
        link = GateLink(self.gate, send=self._send, publisher=lambda: self.emitter.publisher)
        self._inbox = Inbox(link.receive, now_ns=now_ns)
        self.emitter = Emitter(
            url=url,
            node=node,
            role=role,
            on_command=self._inbox.post,
            on_heartbeat=self._inbox.post,
            connect_options=connect_options,
        )

    def start(self) -> None:
        """Hear whoever leads, from now on."""
        self._inbox.attach(asyncio.get_running_loop())
        self.emitter.start()

    @property
    def is_governed(self) -> bool:
        """Whether a daemon was heard just now: until then the gate would let everything pass."""
        return self.gate.mode is Mode.GOVERNED

    @property
    def is_led(self) -> bool:
        """Whether some daemon was heard within a few heartbeats."""
        _, silent_ns = self.gate.daemon
        return silent_ns is not None and silent_ns < _LED_S * self.gate.limits.wall_second_ns

    @property
    def was_led(self) -> bool:
        """Whether any daemon was ever heard."""
        return self.gate.daemon[1] is not None

    def led_by_other(self, boot_id: str) -> bool:
        """Whether a daemon other than that one leads."""
        return self.is_led and self.gate.daemon[0] != boot_id

    def learn(self, ledger: Ledger) -> None:
        """Where programs are, and whose, as the daemon knows it from before: that was said to another gate."""
        for program in ledger.programs.by_name.values():
            if program.account and program.status is not Status.ENDED:
                self.gate.tenants.share(program.account, program.program_id)
            if (place := program.placed or program.replica) and program.status is not Status.ENDED:
                self.gate.places.assign(program.program_id, place)

    async def stop(self) -> None:
        """Say what is yet to be said, and hear no more."""
        await asyncio.to_thread(self.emitter.close)

    def _send(self, event: Event, urgent: bool) -> None:
        self.emitter.emit(event, urgent)

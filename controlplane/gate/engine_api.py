"""What an engine without a plugin obeys by its own HTTP API, as a gate before it asks for it.

Such an engine has no code of ours in it. Some have an API of their own for what a plugin would do: llama.cpp's
server has slots that are saved, restored and erased, SGLang's has sessions that are closed. An engine's folder
(``engine_hooks/NAME``) implements this protocol with it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from controlplane.core.model.commands import Command
from controlplane.core.model.events import Event, Pin, PoolSampled
from controlplane.gate.tickets import Ticket


class EngineApi(Protocol):
    """One engine. Everything is called in one event loop's thread, and nothing raises.

    What it does on its own, and what became of commands, it tells as events (``PinReclaimed``, ``ContextMoved``,
    ``CommandApplied``, ``CommandRejected``), by whatever it was made with.
    """

    async def run(self) -> None:
        """Do what was asked for until cancelled. Nothing is sent to the engine before this runs."""

    @property
    def yields_to(self) -> frozenset[str]:
        """Fields by which a client does for itself what this would: a turn whose body has one goes as it came."""

    @property
    def problem(self) -> str:
        """Why nothing obeys here now, for people; empty if it does."""

    async def before_turn(self, ticket: Ticket, path: str) -> Mapping[str, object]:
        """Make the engine ready for a turn that was let in: the fields to set in its JSON body, mostly none.

        ``path`` is the request's. It waits where the engine would queue the turn in a way that does harm, for as
        long as that takes. A turn for which this was called must be ended, also where the call was cancelled.
        """

    def turn_ended(self, ticket: Ticket) -> None:
        """The turn is over, whole or cut. A second call changes nothing."""

    def on_command(self, command: Command) -> None:
        """The daemon's word, about any program. What the engine cannot do is answered by ``CommandRejected``."""

    async def sample(self) -> PoolSampled | None:
        """Its pool now; None if its API does not say, and perhaps its metrics page does."""

    def pins(self) -> Sequence[Pin]:
        """What it keeps by command, for its publisher's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccess:
    """What an ``EngineApi`` is made with.

    ``address`` is ``HOST:PORT``. ``emit`` takes what it tells. ``saved_path`` is the folder where the engine itself
    saves contexts, None: there is none; ``saved_bytes`` is what they may take there together.
    """

    address: str
    emit: Callable[[Event], None]
    saved_path: Path | None = None
    saved_bytes: int = 0

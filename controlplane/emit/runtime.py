"""What an emitter needs from its process: a clock, chance, a thread and a NATS client."""

import asyncio
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nats.aio.client import Client

    from controlplane.emit.publisher_loop import PublisherLoop


def _thread(pump: "PublisherLoop", name: str) -> threading.Thread:
    thread = threading.Thread(target=pump.run, name=name, daemon=True)
    thread.start()
    return thread


def _client() -> "Client":
    from nats.aio.client import Client  # here: importing the emitter needs the standard library only

    return Client()


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """A clock, chance, an event loop with a thread that runs it, and a client of NATS.

    ``now_ns`` is monotonic; ``uniform`` draws a number between two bounds.
    """

    now_ns: Callable[[], int] = time.monotonic_ns
    uniform: Callable[[float, float], float] = random.uniform
    loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    thread: "Callable[[PublisherLoop, str], threading.Thread]" = _thread
    client: Callable[[], "Client"] = _client

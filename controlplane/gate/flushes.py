"""Requests by which a trainer ends what an engine has cached: calls of engines, and a word of our own.

With new weights every context is worth nothing, whether or not the engine empties its cache for them. A plugin
tells of a cache that was emptied in any other way.
"""

from collections.abc import Callable
from http import HTTPStatus

from controlplane.gate.asgi import Message, SendMessage

WEIGHTS_UPDATED = "/weights_updated"
"""Ours, answered at the gate with ``CONTEXTS_ENDED``: for updates that do not pass by it."""
CONTEXTS_ENDED = {"contexts_ended": True}
FLUSHING_PATHS = frozenset(
    {
        *(f"/update_weights_from_{source}" for source in ("disk", "tensor", "distributed", "ipc")),  # SGLang's
        *("/flush_cache", "/end_weight_update", "/release_memory_occupation"),
        *("/update_weights", "/finish_weight_update", "/reset_prefix_cache", "/sleep"),  # vLLM's
        "/release_kv_cache_memory",
    }
)


def where_taken(send: SendMessage, done: Callable[[], None]) -> SendMessage:
    """Call ``done`` as the answer begins, unless the engine refuses."""

    async def send_watched(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] < HTTPStatus.MULTIPLE_CHOICES:
            done()
        await send(message)

    return send_watched

"""Carries a turn's identity from the HTTP request to the scheduler, in ``sampling_params.extra_args``.

vLLM copies that dictionary to the scheduler's ``Request`` on every route and reads nothing of it that is not its
own. What leads from the one to the other is a context variable: the handler runs in the request's own context.
Clients write into that dictionary too, as ``vllm_xargs``: ours has a name that is made up anew for each server.
"""

import functools
import os
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from controlplane.core.model.ranks import rank_of
from controlplane.gate import GatedRequest
from controlplane.gate.asgi import App, Receive, Scope, SendMessage
from engine_hooks.engine.labels import gated_labels, ungated_labels
from engine_hooks.guard import Guard
from engine_hooks.vllm.engine_view import LABELS_VARIABLE

_CHOSEN = "data_parallel_rank"  # of a request: the rank that it is sent to
_SCOPE: ContextVar[Mapping[str, Any] | None] = ContextVar("penstock_scope", default=None)


class Carry:
    """The innermost ASGI middleware: whatever the handler asks of the engine belongs to this request."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: SendMessage) -> None:
        if scope["type"] == "http":
            _SCOPE.set(scope)  # each request is a task of its own, with a context of its own
        await self._app(scope, receive, send)


def labelling(add_request: Callable[..., Any], guard: Guard) -> Callable[..., Any]:
    """``AsyncLLM.add_request``, which labels what it is given first. A failure leaves the request as it was."""

    @functools.wraps(add_request)
    async def labelled(client: Any, request_id: Any, prompt: Any, params: Any, *args: Any, **more: Any) -> Any:
        scope = _SCOPE.get()
        for one in (params, getattr(prompt, "sampling_params", None)):  # a request that was made before has its own
            if hasattr(one, "extra_args"):
                guard.run("add_request", label, one, scope)
        more = guard.run("add_request", sent_to_its_rank, more, scope) or more
        return await add_request(client, request_id, prompt, params, *args, **more)

    return labelled


def sent_to_its_rank(more: dict[str, Any], scope: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arguments of ``add_request``, with the rank that the gate chose unless the client has named one."""
    gated = scope.get("penstock") if scope is not None else None
    rank = rank_of(gated.place) if isinstance(gated, GatedRequest) else None
    if rank is None or more.get(_CHOSEN, rank) is not None:
        return more
    return {**more, _CHOSEN: rank}


def label(params: Any, scope: Mapping[str, Any] | None) -> None:
    """Write the identity of the request with this ASGI ``scope`` into ``params.extra_args``."""
    if scope is None:
        return
    gated, own = scope.get("penstock"), params.extra_args or {}
    labels = (
        gated_labels(gated) if isinstance(gated, GatedRequest) else ungated_labels(scope, {"custom_params": own})
    )
    if labels:
        params.extra_args = {**own, os.environ[LABELS_VARIABLE]: labels}

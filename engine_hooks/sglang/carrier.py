"""Carries a turn's identity from the HTTP request to the scheduler: in ``sampling_params["custom_params"]``.

SGLang copies that dictionary to the scheduler's ``Req`` and reads nothing of it that is not its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

from controlplane.core.model.places import rank_of
from controlplane.gate import GatedRequest
from engine_hooks.engine.labels import OURS, gated_labels, outside_labels, ungated_labels
from engine_hooks.guard import Guard
from engine_hooks.sglang.processes import CHOSEN, no_gate


def carrier(request_type: type, guard: Guard) -> Callable[..., Any]:
    """An AROUND hook for ``TokenizerManager.generate_request``, which labels objects of ``request_type``.

    What the engine's function returns (an async generator) is returned untouched; a failure leaves the request as
    it was.
    """

    def carry(original: Callable[..., Any], manager: Any, obj: Any, request: Any = None, **more: Any) -> Any:
        scope = getattr(request, "scope", None)  # SGLang's own requests have none, nor have those over gRPC
        if isinstance(scope, Mapping) and isinstance(obj, request_type):
            is_gated = not no_gate(getattr(manager, "server_args", None))
            guard.run("generate_request", label, obj, scope, {} if is_gated else outside_labels(scope))
        return original(manager, obj, request, **more)

    return carry


def label(obj: Any, scope: Mapping[str, Any], outside: Mapping[str, str] | None = None) -> None:
    """Write the identity of the request with this ASGI ``scope`` into ``obj.sampling_params``.

    ``outside``: as a gate before the router has it, where none is at work here.

    Every request of a batch gets the same labels: it is one turn. The client's own dictionaries stay as they are.
    """
    gated = scope.get("penstock")
    if isinstance(gated, GatedRequest):
        send_to_its_rank(obj, gated.place)
    session_id = getattr(obj, "session_id", None)

    def labels_for(carried: Mapping[str, Any]) -> Mapping[str, str]:
        if outside:
            return outside
        if isinstance(gated, GatedRequest):
            return gated_labels(gated)
        return ungated_labels(scope, {"custom_params": carried, "session_id": session_id})

    params = obj.sampling_params
    if isinstance(params, list):
        obj.sampling_params = [_labelled(one, labels_for) for one in params]
    else:
        obj.sampling_params = _labelled(params, labels_for)


def send_to_its_rank(obj: Any, place: str) -> None:
    """Name the rank at ``place`` in the request, unless its client has named one."""
    rank = rank_of(place)
    if rank is not None and getattr(obj, CHOSEN, rank) is None:
        setattr(obj, CHOSEN, rank)


_Labels = Callable[[Mapping[str, Any]], Mapping[str, str]]


def _labelled(params: Any, labels_for: _Labels) -> Any:
    if params is not None and not isinstance(params, dict):
        return params
    carried = (params or {}).get("custom_params")
    if carried is not None and not isinstance(carried, dict):
        return params
    own = {name: value for name, value in (carried or {}).items() if name not in OURS}
    labels = labels_for(own)
    if not labels and own == (carried or {}):
        return params
    return {**(params or {}), "custom_params": {**own, **labels}}

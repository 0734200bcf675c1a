"""Ray Serve's requests placed by Penstock's policies: a ``request_router_class`` for deployments of engines.

    @serve.deployment(
        num_replicas=4,
        request_router_config=RequestRouterConfig(
            request_router_class="controlplane.fleet.ray_router:PenstockRouter",
            request_router_kwargs={"pool_tokens": 400_000},
        ),
    )

It places and does not admit: Ray holds requests by its own limit, ``max_ongoing_requests``. Each of Ray's proxies
and handles has a router of its own that knows what passed there, so a session's requests belong to one of them. A
replica may tell of its pool by ``record_routing_stats``: ``kv_total_tokens`` and ``kv_free_tokens``
(docs/how-to/place-on-ray-serve.md).
"""

from collections.abc import Mapping
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from controlplane import clocks
from controlplane.core.errors import UnknownPolicy
from controlplane.core.placement import PLACEMENT
from controlplane.emit.latest import Latest
from controlplane.fleet.sessions import Pool, Sessions
from controlplane.gate.identity import BadIdentity, Identity, identify
from controlplane.gate.sizing import prompt_size

_TOKENS_PER_BYTE = 0.25  # of text


class PenstockRouter(RequestRouter):
    """Sends a session's requests where the placement policy says."""

    def initialize_state(  # type: ignore[override]  # our keys
        self,
        *,
        pool_tokens: int,
        placement: str = "session",
        prefill_tokens_per_s: float = 10_000.0,
        forget_s: float = 600.0,
        **parameters: Any,
    ) -> None:
        """Ray calls it with ``request_router_kwargs``; ``parameters`` are the policy's own.

        ``pool_tokens``: the KV pool of a replica that does not tell of its own. Raises ``UnknownPolicy`` and
        ``ConfigError``.
        """
        if placement not in PLACEMENT:
            raise UnknownPolicy(f"no placement {placement!r}; there are: {', '.join(sorted(PLACEMENT))}")
        make: Any = PLACEMENT[placement]
        self._sessions = Sessions(make(**parameters), prefill_tokens_per_s=prefill_tokens_per_s, forget_s=forget_s)
        self._pool_tokens = pool_tokens
        self._asked: Latest[str, Identity] = Latest()  # by request: placed once, and not taken yet

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """The policy's replica alone; if that was full, which Ray finds out by asking it, the others behind it."""
        if pending_request is None:
            return [candidate_replicas]
        pending_request.routing_context.should_backoff = True  # else Ray asks again without a pause
        if len(candidate_replicas) < 2:
            return [candidate_replicas]
        request_id = pending_request.metadata.internal_request_id
        again = request_id in self._asked
        identity = self._asked.setdefault(request_id, identity_of(pending_request))
        by_name = {each.replica_id.unique_id: each for each in candidate_replicas}
        pools = {name: self._pool(each) for name, each in by_name.items()}
        tokens = prompt_tokens(pending_request)
        name, _ = self._sessions.place(identity.program_id, tokens, pools, clocks.awake_ns())
        others = [each for other, each in by_name.items() if other != name]
        return [[by_name[name]], others] if again else [[by_name[name]]]

    def _pool(self, replica: RunningReplica) -> Pool:
        told: Mapping[str, Any] = replica.routing_stats or {}
        return Pool(
            total_tokens=int(told.get("kv_total_tokens", self._pool_tokens)),
            free_tokens=int(told.get("kv_free_tokens", -1)),
        )

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """The request is with that replica."""
        request_id = pending_request.metadata.internal_request_id
        identity = self._asked.pop(request_id, None) or identity_of(pending_request)
        self._sessions.begin(
            request_id,
            identity.program_id,
            replica_id.unique_id,
            prompt_tokens(pending_request),
            clocks.awake_ns(),
            last=identity.anonymous,
        )

    def on_request_completed(self, replica_id: ReplicaID, internal_request_id: str) -> None:
        """The request is over, well or not."""
        self._sessions.end(internal_request_id, clocks.awake_ns())

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """Its contexts have gone with it."""
        super().on_replica_actor_died(replica_id)
        self._sessions.lost(replica_id.unique_id)

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Which there are now; contexts of those that left are lost."""
        gone = self._replica_id_set - {each.replica_id for each in replicas}
        super().update_replicas(replicas)
        for replica_id in gone:
            self._sessions.lost(replica_id.unique_id)

    def _remove_pending_request_from_indices(self, pending_request: PendingRequest) -> None:
        super()._remove_pending_request_from_indices(pending_request)
        if pending_request.future.cancelled():  # its client left: nobody will route it
            self._asked.pop(pending_request.metadata.internal_request_id, None)


def identity_of(request: PendingRequest) -> Identity:
    """Whose request it is: by Ray's own session id, else by what Penstock's gate goes by."""
    headers, body = _headers(request), _body(request)
    if session_id := request.metadata.session_id:
        headers = [(b"x-session-id", session_id.encode()), *headers]
    try:
        return identify(headers, body)
    except BadIdentity:  # the replica's own gate answers that with its 400; here it is somebody's request
        return identify((), None)


def prompt_tokens(request: PendingRequest) -> int:
    """How long its prompt is, estimated from the request's text, or where that is not here from its length."""
    if (body := _body(request)) is not None:
        size, tokens = prompt_size(body)
        return tokens or round(size * _TOKENS_PER_BYTE)
    lengths = (value for name, value in _headers(request) if name == b"content-length")
    length = next(lengths, b"")
    return round(int(length) * _TOKENS_PER_BYTE) if length.isdigit() else 0


def _headers(request: PendingRequest) -> list[tuple[bytes, bytes]]:
    """Of a request that came through Ray's HTTP proxy."""
    scope = getattr(request.args[0], "_asgi_scope", None) if request.args else None
    return list(scope.get("headers", ())) if isinstance(scope, Mapping) else []


def _body(request: PendingRequest) -> Mapping[str, Any] | None:
    """What a handle was called with: a mapping, or a record such as pydantic's that can be made one."""
    first = request.args[0] if request.args else None
    if isinstance(first, Mapping):
        return first
    dump = getattr(first, "model_dump", None)
    made = dump() if callable(dump) else None
    return made if isinstance(made, Mapping) else None

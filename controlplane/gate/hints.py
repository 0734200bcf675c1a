"""What clients ask for beside an answer, in their own words: one row a wish, the strongest spelling first.

The reference is made from these tables, and both gates read by them. A wish without an effect is not read:
``UNREAD`` says which are known, and why.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from controlplane.core.model.events import Event, TurnHinted
from controlplane.core.model.hints import HINT_FIELDS, NO_HINTS, Hints, ServiceTier
from controlplane.core.model.text import sanitize
from controlplane.core.model.types import seconds
from controlplane.gate.identity import Headers, Identity
from controlplane.gate.kv_hints import Bounds, envelope_of, granted
from controlplane.gate.tickets import Ticket

Found = Mapping[str, Any]
"""Fields of ``Hints``; empty where the value says nothing."""

_MOST_PROGRAMS = 16_384  # of which it is known what was told last; of one that is forgotten it is told again
_MOST_TOKENS = 10_000_000
_LAST_MESSAGES = 8  # in which breakpoints of the cache are looked for: clients set them at the end
_TTLS = {"5m": seconds(300), "1h": seconds(3600)}
_RETENTIONS = {"in-memory": (0, seconds(3600)), "in_memory": (0, seconds(3600)), "24h": (seconds(86_400),) * 2}

DEADLINES = {
    "x-penstock-timeout-s": 1.0,
    "x-stainless-timeout": 1.0,  # OpenAI's and Anthropic's SDKs
    "x-stainless-read-timeout": 1.0,
    "x-envoy-expected-rq-timeout-ms": 1e-3,
    "x-llm-d-slo-ttft-ms": 1e-3,
    "x-slo-ttft-ms": 1e-3,
}
"""Headers that say how long a client, or the proxy before it, waits; in what part of a second."""


ENGINES_PRIORITY = {"sglang": True, "vllm": False}
"""Whether of the ``priority`` in requests' bodies the higher number goes first, as engines come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One wish: where it stands, what it does, and what bounds it. A header is in lower case, a field is a path."""

    headers: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    read: Callable[[Any], Found]
    does: str
    bound: str
    by_engine: bool = False  # a number of which engines differ in whether the higher or the lower goes first


def _tier(value: Any) -> Found:
    return {"service_tier": value} if value in (ServiceTier.FLEX, ServiceTier.PRIORITY) else {}


def _higher_first(value: Any) -> Found:
    number = _number(value)
    if not number:
        return {}
    return {"service_tier": str(ServiceTier.PRIORITY if number > 0 else ServiceTier.FLEX)}


def _lower_first(value: Any) -> Found:
    number = _number(value)
    return _higher_first(-number) if number else {}


def _number(value: Any) -> int | float | None:
    """The number that a field or a header holds; None for none."""
    if isinstance(value, int | float):
        return None if isinstance(value, bool) else value
    digits = value.removeprefix("-") if isinstance(value, str) else ""
    return int(value) if digits.isdecimal() and digits.isascii() and len(digits) <= len(str(1 << 63)) else None


def _objective(value: Any) -> Found:
    return {"objective": sanitize(value)} if isinstance(value, str) and value else {}


def _tokens(value: Any) -> Found:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value <= _MOST_TOKENS
    return {"output_tokens": value} if is_count else {}


def _ttl(value: Any) -> Found:
    ttl_ns = _TTLS.get(value, 0) if isinstance(value, str) else 0
    return {"retain_least_ns": ttl_ns, "retain_most_ns": ttl_ns} if ttl_ns else {}


def _retention(value: Any) -> Found:
    least_ns, most_ns = _RETENTIONS.get(value, (0, 0)) if isinstance(value, str) else (0, 0)
    return {"retain_least_ns": least_ns, "retain_most_ns": most_ns} if most_ns else {}


_CACHE_TTL = "cache_control.ttl"
_TIERS = (
    "`priority` goes first within `control.hints.priority_share`; `flex` lets others go first, and gives way to "
    "them between two turns"
)
_KEEPS = "its context is kept for at least so long after a turn, and for no longer"
_RETAIN = "`control.hints.retain_most_s` (0: no context is kept for it)"
_SHARE = "`control.hints.priority_share` (0: priority is as any other); flex: `control.overdue_s`"

WISHES = (
    Wish(fields=("service_tier",), read=_tier, does=_TIERS, bound=_SHARE),
    Wish(
        fields=("nvext.agent_hints.priority",),
        read=_higher_first,
        does="above 0 as the priority tier, below as flex",
        bound=_SHARE,
    ),
    Wish(
        headers=("x-vllm-priority",),
        read=_lower_first,
        does="below 0 as the priority tier, above as flex: the lower goes first in vLLM",
        bound=_SHARE,
    ),
    Wish(
        fields=("priority",),
        read=_higher_first,
        by_engine=True,
        does="the same by the engine's own sense: the lower goes first in vLLM, the higher in SGLang unless it is "
        "told otherwise; read where it is known which engine is behind the gate",
        bound=_SHARE,
    ),
    Wish(
        headers=("x-llm-d-inference-objective", "x-gateway-inference-objective"),
        read=_objective,
        does="the tier that the operator gives the objective's name",
        bound=f"`control.hints.priority_objectives`, `control.hints.flex_objectives`; {_SHARE}",
    ),
    Wish(
        fields=("nvext.agent_hints.osl",),
        read=_tokens,
        does="the reply's length, in the estimate of what a held turn needs",
        bound="the engine's pool",
    ),
    Wish(fields=(_CACHE_TTL,), read=_ttl, does=_KEEPS, bound=_RETAIN),
    Wish(fields=("prompt_cache_retention",), read=_retention, does=_KEEPS, bound=_RETAIN),
)

UNREAD = {
    "nvext.agent_hints.strict_priority": "an order that nothing bounds",
    "nvext.agent_hints.speculative_prefill": "nothing here computes ahead of a turn",
    "x-llm-d-slo-tpot-ms, x-slo-tpot-ms": "the pace of a running turn is the engine's",
    "prompt_cache_options": "no part of it bounds for how long a context is kept",
    "kv_hints: kv.evict, kv.fetch, kv.share": "they name blocks, which only the engine knows; the receipt says so",
    "retention_directives": "the same is said by kv_hints",
    "x-smg-priority": "SGLang's gateway obeys it before a request comes here",
}
"""Wishes that are known and not read, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one request asks for, and the header that answers its ``kv_hints``; empty without them."""

    hints: Hints = NO_HINTS
    receipt: str = ""


class ClientHints:
    """Reads requests' wishes, and knows what the daemon was told of each program's last."""

    def __init__(self, bounds: Callable[[], Bounds]) -> None:
        self._bounds = bounds
        self.higher_first: bool | None = None  # of the ``priority`` that the engine takes; None: nobody knows which
        self._told: OrderedDict[str, tuple[Hints, str]] = OrderedDict()

    def asked(self, identity: Identity, headers: Headers, body: Mapping[str, Any] | None) -> Asked:
        """What a request of that program asks for."""
        fields = body if body is not None else {}
        texts = {
            name.decode("latin-1").lower(): value.decode("utf-8", "replace").strip() for name, value in headers
        }
        found: dict[str, Any] = {}
        for wish in WISHES:
            self._read(wish, texts, fields, found)
        envelope = envelope_of(fields)
        if envelope is None:
            return Asked(hints=Hints(**found)) if found else _NOTHING
        bounds = Bounds(refusal="the request names no program") if identity.is_one_turn else self._bounds()
        kv = granted(envelope, bounds, identity.program_id)
        if kv.retain_least_ns > found.get("retain_least_ns", 0):  # a wish of its own, without a cap
            found |= {"retain_least_ns": kv.retain_least_ns, "retain_most_ns": 0, "retain_by": kv.retain_by}
        return Asked(hints=Hints(**found, move=kv.move, move_by=kv.move_by), receipt=kv.receipt)

    def _read(self, wish: Wish, texts: Mapping[str, str], body: Mapping[str, Any], found: dict[str, Any]) -> None:
        if wish.by_engine and self.higher_first is None:
            return
        read = _lower_first if wish.by_engine and not self.higher_first else wish.read
        said = [(name, texts.get(name)) for name in wish.headers] + [
            (path, _at(body, path)) for path in wish.fields
        ]
        for name, value in said:
            more = read(value) if value is not None else {}
            if not more or not found.keys().isdisjoint(more):
                continue
            found |= more
            if "output_tokens" not in more:
                found["retain_by" if "retain_most_ns" in more else "tier_by"] = name

    def tell(self, ticket: Ticket, send: Callable[[Event, bool], None]) -> None:
        """Tell the daemon of a turn that comes, where something has changed since the program's last."""
        program_id, hints = ticket.program_id, ticket.hints
        told, turn_id = self._told.get(program_id, (NO_HINTS, ""))
        if turn_id == ticket.turn_id or (hints == told and not hints.move):
            return
        self._told.pop(program_id, None)
        if hints != NO_HINTS:
            self._told[program_id] = replace(hints, move="", move_by=""), ticket.turn_id
            if len(self._told) > _MOST_PROGRAMS:
                self._told.popitem(last=False)
        fields = {name: getattr(hints, name) for name in HINT_FIELDS}
        send(TurnHinted(program_id=program_id, turn_id=ticket.turn_id, **fields), False)

    def forget(self, program_id: str) -> None:
        """The program has ended."""
        self._told.pop(program_id, None)


_NOTHING = Asked()


def _at(body: Mapping[str, Any], path: str) -> Any:
    """What a field holds; of ``cache_control`` the longest that any of its places says."""
    if path == _CACHE_TTL:
        return max(_cache_ttls(body), key=lambda ttl: _TTLS.get(ttl, 0), default=None)
    value: Any = body
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _cache_ttls(body: Mapping[str, Any]) -> list[str]:
    """The lifetimes at the cache's breakpoints: of the request, its system prompt, its tools, its last messages."""
    messages = body.get("messages")
    parts: list[Any] = [body]
    for several in (body.get("system"), body.get("tools")):
        parts += several if isinstance(several, list) else ()
    for message in messages[-_LAST_MESSAGES:] if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        parts += [message, *(content if isinstance(content, list) else ())]
    controls = (part.get("cache_control") for part in parts if isinstance(part, dict))
    ttls = (each.get("ttl") for each in controls if isinstance(each, dict))
    return [ttl for ttl in ttls if isinstance(ttl, str)]

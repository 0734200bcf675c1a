"""Find the program that a request belongs to, from what clients already send.

An identity meant for us (``program_id``, ``parent_id``, ``parent_turn``, ``tenant``) must be valid, at most 256
printable characters, or the request is refused. An identity meant for somebody else (a session header) is made
valid: a bad one is replaced by its digest. So a client that works without Penstock also works with it, and its
turns still belong together. A value that is not text counts as absent. A request that names nobody is a program of
its own. So is one whose ids are placeholders, as ``undefined``: they count as absent (``placeholders.py``).
"""

import functools
import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.estimators.prompt_size import ANONYMOUS
from controlplane.core.model.errors import ControlPlaneError
from controlplane.core.model.tenancy import KEY_DIGEST
from controlplane.core.model.text import is_printable, sanitize
from controlplane.core.model.types import MOST_NAME
from controlplane.gate.agents import kind_of_agent
from controlplane.gate.carriers import (
    CLAUDE_CODE,
    CLAUDE_CODE_AGENT,
    CLAUDE_CODE_PARENT,
    FIELDS,
    HEADERS,
    PARENT_FIELDS,
    PARENT_HEADERS,
    SHARED,
    STANDS_FOR,
    Names,
)
from controlplane.gate.placeholders import is_placeholder

Headers = Iterable[tuple[bytes, bytes]]
Body = Mapping[str, Any]

PROGRAM_HEADER = "x-penstock-program-id"
_NATIVE_FIELDS = ("program_id", "custom_params.program_id", "vllm_xargs.program_id", "metadata.program_id")
SESSION_HEADERS = (PROGRAM_HEADER, *HEADERS)  # headers that name a program, the strongest first
_THEIRS = (*HEADERS, *PARENT_HEADERS)
_CLAUDE_CODE_USER = "metadata.user_id"  # names a session too: as JSON, before 2.1.78 behind the last of these
_CLAUDE_CODE_SESSION = "_session_"
_PARENT = ("x-penstock-parent-id", ("parent_id", "custom_params.parent_id", "metadata.parent_id"))
_PARENT_TURN = ("x-penstock-parent-turn", ("parent_turn", "custom_params.parent_turn", "metadata.parent_turn"))
_AGENT = "x-penstock-agent"
_TRACE = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_NOBODY_GUESSES = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|ses_[0-9A-Za-z]{26,}")  # UUIDs, OpenCode's
_KEY_HEADERS = ("authorization", "x-api-key", "api-key")  # OpenAI's and most servers', Anthropic's, Azure's
_BEARER = "bearer "
_BUDGET_TURNS = "x-penstock-budget-turns"
_BUDGET_KV = "x-penstock-budget-kv-token-s"
_MOST_DIGITS = 15
_GROUP = (
    "x-penstock-group-id",
    ("group_id", "custom_params.group_id", "vllm_xargs.group_id", "metadata.group_id"),
)
_GROUP_SIZE = (
    "x-penstock-group-size",
    ("group_size", "custom_params.group_size", "vllm_xargs.group_size", "metadata.group_size"),
)
MOST_IN_GROUP = 1024
"""Rollouts of one prompt: GRPO has 4 to 64."""
_TENANT = ("x-penstock-tenant", ("tenant", "custom_params.tenant", "metadata.tenant"))
CLAIMED = "claimed:"
"""Before the name of an owner for whom nobody vouches."""
FAIRNESS_HEADERS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
"""Whose a request is, as its client or a gateway claims in llm-d's words."""
_STRONG_HEADERS = tuple(each for each in HEADERS if STANDS_FOR[f"header {each}"] is Names.SESSION)
_STRONG_FIELDS = tuple(each for each in FIELDS if STANDS_FOR[f"body {each}"] is Names.SESSION)
_WEAK_HEADERS = tuple(each for each in HEADERS if each not in _STRONG_HEADERS)
_WEAK_FIELDS = tuple(each for each in FIELDS if each not in _STRONG_FIELDS)
_NATIVE_HEADERS = (PROGRAM_HEADER, _PARENT[0], _PARENT_TURN[0], _TENANT[0], _AGENT, _GROUP[0])
_NATIVE_SOURCES = frozenset((f"header {PROGRAM_HEADER}", *(f"body {path}" for path in _NATIVE_FIELDS)))
_NATIVE_PATHS = (*_NATIVE_FIELDS, *_PARENT[1], *_PARENT_TURN[1], *_TENANT[1], *_GROUP[1])


class BadIdentity(ControlPlaneError, ValueError):
    """An identity that was meant for us is invalid. ``source`` says where it was found."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"{source}: {problem}")
        self.source = source


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a request. ``source`` says what named the program; ``anonymous`` means that nothing did.
    ``hint``: an id that names no program by itself (``carriers.Names``).

    ``parent_id`` is what the request claims; ``parent_turn``, the id of a turn of that program, proves it. So it
    does to be ``within`` it: to carry that program's own name, as a sub-agent of a session that has one id for all,
    or to know a name that nobody guesses.
    ``aside``: it is one request beside those of its parent, as for a title; it ends with it.
    ``trace`` is the client's span, as W3C's ``traceparent`` has it; one that is not in that form counts as absent.
    ``placeholder`` is where one stood for an id; empty: nowhere.
    ``group_id`` and ``group_size``: it is one of so many rollouts of one prompt; either says nothing without the
    other.
    ``tenant`` is what it claims; ``account`` is what a gate vouches for: the digest of its API key, or the header
    that the gate was told to believe. The budgets are what the client allows the run with its children; 0: none.
    """

    program_id: str
    parent_id: str = ""
    parent_turn: str = ""
    within: bool = False
    tenant: str = ""
    account: str = ""
    agent: str = ""
    source: str = ""
    hint: str = ""
    anonymous: bool = False
    aside: bool = False
    placeholder: str = ""
    trace: str = ""
    budget_turns: int = 0
    budget_kv_token_s: int = 0
    group_id: str = ""
    group_size: int = 0

    @property
    def owner(self) -> str:
        """Whose it is: who is vouched for, or else who is claimed, and these are never the same; empty: no one."""
        return self.account or (self.tenant and CLAIMED + self.tenant)

    @property
    def is_one_turn(self) -> bool:
        """Whether the request is the program's whole life."""
        return self.anonymous or self.aside

    @property
    def is_ours(self) -> bool:
        """Whether it was named by an id that was meant for us."""
        return self.source in _NATIVE_SOURCES


def identify(headers: Headers, body: Body | None, tenant_header: str = "") -> Identity:
    """Find the identity of a request; ``body`` is its parsed JSON object, or None if it is not one.

    ``tenant_header``, in lower case: who its account is, as whoever sends the requests on was told to say there.

    An explicit program id wins over any session header, and a header over the body.

    Raises ``BadIdentity``.
    """
    texts, fields = _header_texts(headers), body if body is not None else {}
    placeholder = _drop_placeholders(texts, tenant_header) or _placeholder_in(fields)
    parent_id = _native_id(texts, fields, *_PARENT)[0]
    parent_turn = _native_id(texts, fields, *_PARENT_TURN)[0]
    tenant = _native_id(texts, fields, *_TENANT)[0] or _fairness_id(texts)
    trace = texts.get("traceparent", "")
    program_id, source = _native_id(texts, fields, PROGRAM_HEADER, _NATIVE_FIELDS)
    if not program_id:
        program_id, source = _session(texts, fields)
    hint = ""
    if not program_id:
        hint, source = _first_of(_WEAK_HEADERS, _WEAK_FIELDS, texts, fields)
        if is_one_turn(hint):
            hint = source = ""
    within = source == f"header {CLAUDE_CODE}" and bool(texts.get(CLAUDE_CODE_AGENT))
    if within:
        program_id, parent_id = _sub_agent(program_id, texts)
    elif not parent_id:
        parent_id, within = _foreign_parent(program_id, source, texts, fields)
    group_id, group_size = _group(texts, fields)
    anonymous = not program_id or is_one_turn(program_id)  # a gate before this one may have made the name up
    return Identity(
        program_id=program_id or f"{ANONYMOUS}{uuid.uuid4().hex}",
        parent_id=parent_id if parent_id != program_id else "",
        parent_turn=parent_turn,
        within=within,
        tenant=tenant,
        account=_account(texts, tenant_header),
        agent=sanitize(texts.get(_AGENT, "")) or kind_of_agent(fields),
        source=source,
        hint=hint,
        anonymous=anonymous,
        placeholder=placeholder,
        trace=trace if _TRACE.fullmatch(trace) else "",
        budget_turns=_budget(texts, _BUDGET_TURNS),
        budget_kv_token_s=_budget(texts, _BUDGET_KV),
        group_id=group_id,
        group_size=group_size,
    )


def _account(texts: Mapping[str, str], tenant_header: str) -> str:
    """What the header says that is believed, or else the digest of the request's API key; empty without either."""
    if tenant_header and (name := texts.get(tenant_header, "")):
        return _checked(name, f"header {tenant_header}")
    for header in _KEY_HEADERS:
        if credential := texts.get(header, ""):
            key = credential[len(_BEARER) :].strip() if credential.lower().startswith(_BEARER) else credential
            return KEY_DIGEST + hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
    return ""


def _group(texts: Mapping[str, str], body: Body) -> tuple[str, int]:
    """Whose rollout it is, and of how many; nothing where one of the two is missing."""
    group_id = _native_id(texts, body, *_GROUP)[0]
    size, source = _native_id(texts, body, *_GROUP_SIZE) if group_id else ("", "")
    if not size:
        return "", 0
    if not (size.isascii() and size.isdecimal() and len(size) <= _MOST_DIGITS and 1 <= int(size) <= MOST_IN_GROUP):
        raise BadIdentity(source, f"expected a whole number from 1 to {MOST_IN_GROUP}, got {size[:80]!r}")
    return group_id, int(size)


def _fairness_id(texts: Mapping[str, str]) -> str:
    return next((sanitize(texts[name]) for name in FAIRNESS_HEADERS if texts.get(name)), "")


def _budget(texts: Mapping[str, str], header: str) -> int:
    text = texts.get(header, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS) or not int(text):
        raise BadIdentity(f"header {header}", f"expected a whole number above 0, got {text[:80]!r}")
    return int(text)


def _sub_agent(session: str, texts: Mapping[str, str]) -> tuple[str, str]:
    """A sub-agent of a session and whose it is: the session's, or another sub-agent's of it."""
    above = texts.get(CLAUDE_CODE_PARENT, "")
    parent = sanitize(f"{session}/{above}") if above else session
    return sanitize(f"{session}/{texts[CLAUDE_CODE_AGENT]}"), parent


def _foreign_parent(program_id: str, source: str, texts: Mapping[str, str], body: Body) -> tuple[str, bool]:
    """Whose sub-agent the client says that it is, and whether it carries the session's name, too."""
    session = texts.get(SHARED.get(source.removeprefix("header "), ""), "")
    named = next((texts[header] for header in PARENT_HEADERS if texts.get(header)), "") or session
    if not named:
        value = next((value for path in PARENT_FIELDS if isinstance(value := _id_in(body, path), str)), "")
        named = value if isinstance(value, str) else ""
    parent_id = sanitize(named) if named else ""
    return parent_id, parent_id != program_id and (bool(session) or bool(_NOBODY_GUESSES.fullmatch(named)))


def is_one_turn(program_id: str) -> bool:
    """Whether ``identify`` made the name up, for one request and no other, at this gate or one before it."""
    return program_id.startswith(ANONYMOUS)


def _header_texts(headers: Headers) -> dict[str, str]:
    """The headers by lower-case name; the first value if a header is repeated."""
    texts: dict[str, str] = {}
    for name, value in headers:
        texts.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace").strip())
    return texts


def _drop_placeholders(texts: dict[str, str], tenant_header: str) -> str:
    """Take headers away whose id is none; say where the first of them was."""
    first = ""
    for name in (*_NATIVE_HEADERS, *_THEIRS, CLAUDE_CODE_AGENT, CLAUDE_CODE_PARENT, tenant_header):
        if (text := texts.get(name, "")) and is_placeholder(text, loose=name in _THEIRS):
            del texts[name]
            first = first or f"header {name}"
    return first


def _placeholder_in(body: Body) -> str:
    """The first field whose id is none; ``_id_in`` leaves it out."""
    for path in (*_NATIVE_PATHS, *FIELDS):
        if isinstance(value := _field(body, path), str) and value.strip() and _id_in(body, path) is None:
            return f"body {path}"
    session = _claude_code_session(_field(body, _CLAUDE_CODE_USER))
    return f"body {_CLAUDE_CODE_USER}" if session and is_placeholder(session, loose=True) else ""


def _id_in(body: Body, path: str) -> object:
    """What the field holds, if it may be an id."""
    value = _field(body, path)
    if not isinstance(value, str):
        return value
    text = value.strip()
    return None if not text or is_placeholder(text, loose=path in FIELDS or path in PARENT_FIELDS) else text


@functools.lru_cache(maxsize=64)
def _keys(path: str) -> list[str]:
    return path.split(".")


def _field(body: Body, path: str) -> object:
    top, *below = _keys(path)
    value = body.get(top)
    for key in below:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _native_id(texts: Mapping[str, str], body: Body, header: str, paths: Iterable[str]) -> tuple[str, str]:
    """The first of our own carriers that is present, checked; empty strings if there is none."""
    if text := texts.get(header, ""):
        return _checked(text, f"header {header}"), f"header {header}"
    for path in paths:
        value = _id_in(body, path)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise BadIdentity(f"body {path}", f"expected a string, got {type(value).__name__}")
        return _checked(str(value), f"body {path}"), f"body {path}"
    return "", ""


def _checked(text: str, source: str) -> str:
    if len(text) > MOST_NAME:
        raise BadIdentity(source, f"expected at most {MOST_NAME} characters, got {len(text)}")
    if not is_printable(text):
        raise BadIdentity(source, "expected printable characters only")
    return text


def _session(texts: Mapping[str, str], body: Body) -> tuple[str, str]:
    """The first id of a session that a client sends, and where it was."""
    session = _first_of(_STRONG_HEADERS, _STRONG_FIELDS, texts, body)
    if session[0]:
        return session
    name = _claude_code_session(_field(body, _CLAUDE_CODE_USER))
    if name and not is_placeholder(name, loose=True):
        return sanitize(name), f"body {_CLAUDE_CODE_USER}"
    return "", ""


def _first_of(
    headers: Iterable[str], fields: Iterable[str], texts: Mapping[str, str], body: Body
) -> tuple[str, str]:
    for header in headers:
        if text := texts.get(header, ""):
            return sanitize(text), f"header {header}"
    for path in fields:
        value = _id_in(body, path)
        if isinstance(value, str) and value:
            return sanitize(value), f"body {path}"
        if isinstance(value, int) and not isinstance(value, bool):
            return sanitize(str(value)), f"body {path}"
    return "", ""


def _claude_code_session(user: object) -> str:
    """The session in Claude Code's user id; a user without a session is no program."""
    if not isinstance(user, str):
        return ""
    try:
        session = json.loads(user)["session_id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        session = user.rpartition(_CLAUDE_CODE_SESSION)[2] if _CLAUDE_CODE_SESSION in user else ""
    return session if isinstance(session, str) else ""

"""Find the program that a request belongs to, from what clients already send.

An identity meant for us (``program_id``, ``parent_id``, ``parent_turn``, ``tenant``) must be valid, at most 256
printable characters, or the request is refused. An identity meant for somebody else (a session header) is made
valid: a bad one is replaced by its digest. So a client that works without Penstock also works with it, and its
turns still belong together. A value that is not text counts as absent. A request that names nobody is a program of
its own.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.core.errors import ControlPlaneError
from controlplane.core.types import MOST_NAME
from controlplane.gate.agents import kind_of_agent

Headers = Iterable[tuple[bytes, bytes]]
Body = Mapping[str, Any]

_OWN_HEADER = "x-penstock-program-id"
_OWN_FIELDS = ("program_id", "custom_params.program_id", "vllm_xargs.program_id", "metadata.program_id")
_BORROWED_HEADERS = (
    "x-litellm-session-id",
    "x-session-id",
    "x-claude-code-session-id",
    "x-smg-routing-key",
    "x-conversation-id",
    "x-session-affinity",
    "helicone-session-id",
    "session-id",
    "session_id",
    "conversation_id",
)
_BORROWED_FIELDS = (
    "session_id",
    "litellm_session_id",
    "session_params.id",
    "vllm_xargs.session_id",
    "metadata.session_id",
    "conversation_id",
    "conversation.id",
    "conversation",
    "prompt_cache_key",
    "job_id",  # Continuum's clients
)
_CLAUDE_CODE_USER = "metadata.user_id"  # names a session too: as JSON, before 2.1.78 behind the last of these
_CLAUDE_CODE_SESSION = "_session_"
_PARENT = ("x-penstock-parent-id", ("parent_id", "custom_params.parent_id", "metadata.parent_id"))
_PARENT_TURN = ("x-penstock-parent-turn", ("parent_turn", "custom_params.parent_turn", "metadata.parent_turn"))
_AGENT = "x-penstock-agent"
_TENANT = ("x-penstock-tenant", ("tenant", "custom_params.tenant", "metadata.tenant"))


class BadIdentity(ControlPlaneError, ValueError):
    """An identity that was meant for us is invalid. ``source`` says where it was found."""

    def __init__(self, source: str, problem: str) -> None:
        super().__init__(f"{source}: {problem}")
        self.source = source


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The identity of a request. ``source`` says what named the program; ``anonymous`` means that nothing did.

    ``parent_id`` is what the request claims; ``parent_turn``, the id of a turn of that program, proves it.
    """

    program_id: str
    parent_id: str = ""
    parent_turn: str = ""
    tenant: str = ""
    agent: str = ""
    source: str = ""
    anonymous: bool = False


def identify(headers: Headers, body: Body | None) -> Identity:
    """Find the identity of a request; ``body`` is its parsed JSON object, or None if it is not one.

    An explicit program id wins over any session header, and a header over the body.

    Raises ``BadIdentity``.
    """
    texts = _header_texts(headers)
    fields = body if body is not None else {}
    parent_id = _own(texts, fields, *_PARENT)[0]
    parent_turn = _own(texts, fields, *_PARENT_TURN)[0]
    tenant = _own(texts, fields, *_TENANT)[0]
    program_id, source = _own(texts, fields, _OWN_HEADER, _OWN_FIELDS)
    if not program_id:
        program_id, source = _borrowed(texts, fields)
    anonymous = not program_id
    return Identity(
        program_id=program_id or f"anonymous-{uuid.uuid4().hex}",
        parent_id=parent_id if parent_id != program_id else "",
        parent_turn=parent_turn,
        tenant=tenant,
        agent=made_good(texts.get(_AGENT, "")) or kind_of_agent(fields),
        source=source,
        anonymous=anonymous,
    )


def _header_texts(headers: Headers) -> dict[str, str]:
    """The headers by lower-case name; the first value if a header is repeated."""
    texts: dict[str, str] = {}
    for name, value in headers:
        texts.setdefault(name.decode("latin-1").lower(), value.decode("utf-8", "replace").strip())
    return texts


def _field(body: Body, path: str) -> object:
    value: object = body
    for key in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _own(texts: Mapping[str, str], body: Body, header: str, paths: Iterable[str]) -> tuple[str, str]:
    """The first of our own carriers that is present, checked; empty strings if there is none."""
    if text := texts.get(header, ""):
        return _checked(text, f"header {header}"), f"header {header}"
    for path in paths:
        value = _field(body, path)
        if value is None or value == "":
            continue
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise BadIdentity(f"body {path}", f"expected a string, got {type(value).__name__}")
        return _checked(str(value), f"body {path}"), f"body {path}"
    return "", ""


def _checked(text: str, source: str) -> str:
    if len(text) > MOST_NAME:
        raise BadIdentity(source, f"expected at most {MOST_NAME} characters, got {len(text)}")
    if not text.isprintable():
        raise BadIdentity(source, "expected printable characters only")
    return text


def _borrowed(texts: Mapping[str, str], body: Body) -> tuple[str, str]:
    for header in _BORROWED_HEADERS:
        if text := texts.get(header, ""):
            return made_good(text), f"header {header}"
    for path in _BORROWED_FIELDS:
        value = _field(body, path)
        if isinstance(value, str) and value:
            return made_good(value), f"body {path}"
        if isinstance(value, int) and not isinstance(value, bool):
            return made_good(str(value)), f"body {path}"
    session = _claude_code_session(_field(body, _CLAUDE_CODE_USER))
    return (made_good(session), f"body {_CLAUDE_CODE_USER}") if session else ("", "")


def _claude_code_session(user: object) -> str:
    """The session in Claude Code's user id; a user without a session is no program."""
    if not isinstance(user, str):
        return ""
    try:
        session = json.loads(user)["session_id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        session = user.rpartition(_CLAUDE_CODE_SESSION)[2] if _CLAUDE_CODE_SESSION in user else ""
    return session if isinstance(session, str) else ""


def made_good(text: str) -> str:
    """The text, or its digest if it is not a valid identity."""
    if len(text) <= MOST_NAME and text.isprintable():
        return text
    return "sha256-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]

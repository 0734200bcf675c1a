"""Find out what a reply asks of its program: to call these tools, nothing more, or what nobody can tell.

**Paper**: Continuum §5.1: its handler looks at each finished reply for a tool call. Only names leave this file.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from controlplane.core.model.events import CalledTool, ReplyRead
from controlplane.core.model.text import sanitize
from controlplane.gate.reply_forms import Reply, form_of, stop_sequences
from controlplane.gate.reply_stream import Documents
from controlplane.gate.usage import WITHIN, Usage, usage_of
from controlplane.tool_calls.calls import tools_called

_MOST_PROGRAMS = 65_536
_MOST_IDS = 64  # of one reply's calls
Calls = Sequence[CalledTool]
_UNREADABLE = ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError


class ReplyTape:
    """Reads one reply as it passes by. What it keeps is bounded, however long the reply is.

    ``request``: the body that asked for it; None where it does not matter what the reply says.
    """

    def __init__(self, path: str, request: Mapping[str, Any] | None) -> None:
        self.status = 0  # until the reply begins
        self.reply_id = ""  # by which its client may name it later; empty: it has not been told
        self.form = form_of(path)
        self._reply = Reply(stops=stop_sequences(request)) if request is not None else None
        self._documents: Documents | None = None
        self._is_complete = False

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Take the reply's first message, with its status and headers."""
        self.status = status
        named = {name.lower(): value.decode("latin-1") for name, value in headers}
        is_plain = named.get(b"content-encoding", "identity").lower() == "identity"
        if self._reply is not None and is_plain and HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            self._documents = Documents(named.get(b"content-type", ""))

    def add(self, body: bytes, *, is_last: bool = False) -> None:
        """Take a part of the body. Parsing 16 KiB of it takes a millisecond."""
        documents, reply = self._documents, self._reply
        if documents is None or reply is None:
            return
        try:
            for document in documents.feed(body):
                self.reply_id = self.reply_id or _id_in(document)
                self.form.read(reply, document)
            if is_last:
                for document in documents.end():
                    self.reply_id = self.reply_id or _id_in(document)
                    self.form.read(reply, document)
                self._is_complete = documents.is_complete or bool(reply.ends)
        except _UNREADABLE:
            self._documents = None

    @property
    def reply(self) -> Reply | None:
        """What the reply says; None if it cannot be read, or was cut."""
        return self._reply if self._is_complete else None

    @property
    def calls(self) -> tuple[CalledTool, ...]:
        """Its calls that have an id."""
        calls = self.reply.calls if self.reply is not None else ()
        return tuple(
            CalledTool(call_id=sanitize(call.call_id), tool=sanitize(call.name)) for call in calls if call.call_id
        )[:_MOST_IDS]

    @property
    def usage(self) -> Usage | None:
        """What it has said of its size so far; None if nothing."""
        return usage_of(self._reply.sizes) if self._reply is not None else None

    @property
    def refusal(self) -> str:
        """Why the turn did not run; empty if it may have."""
        if self.status >= HTTPStatus.BAD_REQUEST:
            return f"the engine's server answered {self.status}"
        is_error = self._reply is not None and self._reply.failed and self._reply.is_empty
        return "the engine's server answered with an error" if is_error else ""


def _id_in(document: Any) -> str:
    """Of a whole reply, or of an event that holds it."""
    within = (document.get(name) for name in WITHIN) if isinstance(document, dict) else ()
    for holder in (document, *within):
        if isinstance(holder, dict) and isinstance(name := holder.get("id"), str):
            return name
    return ""


def said_by_reply(program_id: str, turn_id: str, tools: Sequence[str], calls: Calls, *, is_last: bool) -> ReplyRead:
    """What a turn's reply calls, as an event: ``tools`` by name, and ``calls`` by their ids."""
    return ReplyRead(
        program_id=program_id,
        turn_id=turn_id,
        tool=sanitize(tools[0]) if tools else "",  # a model may write anything
        tool_calls=len(tools),
        is_last=is_last,
        calls=calls,
    )


class ReplyReader:
    """Reads the replies of one server.

    A reply without a call means that a program rests only if calls would have been found: its request offered
    tools, or an earlier reply of the program had a call in its text. Agents of unknown form are left alone.
    """

    def __init__(self) -> None:
        self._calls_in_text: OrderedDict[str, None] = OrderedDict()

    def called(self, program_id: str, request: Mapping[str, Any], tape: ReplyTape) -> tuple[str, ...] | None:
        """The tools that the taped reply calls, in order; empty: it is finished; None: neither is proven."""
        reply, form = tape.reply, tape.form
        if reply is None or reply.failed or not (form.finished | form.calling).issuperset(reply.ends.values()):
            return None
        if reply.calls:
            return tuple(call.name for call in reply.calls)
        for text in reply.texts.values():
            if not text.is_whole:
                return None
            if names := tools_called(str(text)):
                self._remember(program_id)
                return names
        finds_calls = request.get("tools") or request.get("functions") or program_id in self._calls_in_text
        is_finished = reply.ended_with(form.finished) and not (reply.unclear or reply.is_empty)
        return () if finds_calls and is_finished else None

    def _remember(self, program_id: str) -> None:
        self._calls_in_text[program_id] = None
        self._calls_in_text.move_to_end(program_id)
        if len(self._calls_in_text) > _MOST_PROGRAMS:
            self._calls_in_text.popitem(last=False)

"""What a reply's documents say, in the form of each API: which tools they call, their text, and how they ended.

To add a form: a function here that adds a document to ``Reply``, and a line in ``FORMS``; names of fields that no
form had before go into ``reply_stream.FIELDS``, too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.gate.problems import ANTHROPIC_PATH
from controlplane.gate.usage import sizes_in
from controlplane.tool_calls.calls import MOST_CHARACTERS, called_name

_MOST_CALLS = 256
_MOST_ARGUMENTS = 1 << 16  # characters: what a longer call runs is not looked for
_STOP_SEQUENCE = "stop_sequence"  # Anthropic's word; the client acts on the text before it, in a form of its own


@dataclass(slots=True)
class Call:
    """A call whose arguments may come piece by piece."""

    call_id: str
    tool: str
    arguments: Any = ""

    @property
    def name(self) -> str:
        """What it counts as."""
        return called_name(self.tool, self.arguments)

    def add(self, arguments: object) -> None:
        if not isinstance(arguments, str):
            self.arguments = arguments or self.arguments
        elif isinstance(self.arguments, str) and len(self.arguments) <= _MOST_ARGUMENTS:
            self.arguments += arguments[:_MOST_ARGUMENTS]


class Text:
    """A text of which no more is kept than can be a call."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        self.size += len(piece)
        if self.is_whole:
            self._pieces.append(piece)

    @property
    def is_whole(self) -> bool:
        return self.size <= MOST_CHARACTERS

    def __str__(self) -> str:
        return "".join(self._pieces)


@dataclass(slots=True)
class Reply:
    """What one reply has said so far. A reply may have several choices, each with its own text and end."""

    stops: frozenset[str] = frozenset()  # the request's stop sequences
    calls: list[Call] = field(default_factory=list)
    texts: dict[int, Text] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)  # why each choice ended, in the API's word
    failed: bool = False  # it tells of an error
    unclear: bool = False  # something in it may be for the client to act on
    sizes: dict[str, Any] = field(default_factory=dict)  # as ``usage.sizes_in`` gives them
    _open: dict[tuple[int, Any], Call] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it calls nothing and has no text."""
        return not self.calls and not any(text.size for text in self.texts.values())

    def ended_with(self, words: frozenset[str]) -> bool:
        """Whether each choice has ended, and with one of these words."""
        return bool(self.ends) and self.texts.keys() <= self.ends.keys() and words.issuperset(self.ends.values())

    def text(self, choice: int, piece: object) -> None:
        """Add to a choice's text: a string, or content in parts."""
        if isinstance(piece, str):
            if (text := self.texts.get(choice)) is None:
                text = self.texts[choice] = Text()
            text.add(piece)
            return
        for part in piece if isinstance(piece, list) else ():
            self.unclear = self.unclear or part.get("type") == "refusal"
            self.text(choice, part.get("text") or "")

    def call(self, choice: int, index: object, call_id: object, tool: object, arguments: object) -> None:
        """Add a call, or a part of one: servers repeat names, leave out indexes and ids, number all alike."""
        key = choice, index
        known = self._open.get(key)
        is_other = known is None or (call_id != known.call_id if call_id else index is None or tool != known.tool)
        if tool and is_other:
            known = self._open[key] = Call(str(call_id or ""), str(tool))
            if len(self.calls) < _MOST_CALLS:
                self.calls.append(known)
        if known is not None:
            known.add(arguments)

    def ended(self, choice: int, why: object, matched: object = None) -> None:
        """``why`` a choice ended, if it has; ``matched``: the stop sequence that ended it, or a token."""
        if isinstance(why, str) and why:
            self.ends[choice] = _STOP_SEQUENCE if matched in self.stops else why


def _openai(reply: Reply, part: Mapping[str, Any]) -> None:
    """OpenAI's chat completions and completions, whole and streamed."""
    for choice in part.get("choices") or ():
        number = choice.get("index") or 0
        message = choice.get("message") or choice.get("delta") or {}
        for place, call in enumerate(message.get("tool_calls") or ()):
            _openai_call(reply, number, call, call.get("index") if "delta" in choice else place)
        if called := message.get("function_call"):
            reply.call(number, "function_call", "", called.get("name"), called.get("arguments"))
        reply.unclear = reply.unclear or bool(message.get("refusal"))
        reply.text(number, message.get("content") or choice.get("text") or "")
        if why := choice.get("finish_reason"):
            reply.ended(number, why, choice.get("matched_stop") or choice.get("stop_reason"))


def _openai_call(reply: Reply, choice: int, call: Mapping[str, Any], index: object) -> None:
    inner = call.get("function") or call.get("custom") or {}
    reply.call(choice, index, call.get("id"), inner.get("name"), inner.get("arguments"))


_SERVERS_BLOCKS = frozenset(
    ["text", "thinking", "redacted_thinking", "server_tool_use", "mcp_tool_use", "container_upload", "compaction"]
)


def _anthropic(reply: Reply, part: Mapping[str, Any]) -> None:
    """Anthropic's messages, whole and streamed: there a call's arguments follow it piece by piece."""
    for number, block in enumerate(part.get("content") or ()):
        _block(reply, number, block)
    if block := part.get("content_block"):
        _block(reply, part.get("index"), block)
    delta = part.get("delta") or {}
    reply.text(0, delta.get("text") or "")
    if arguments := delta.get("partial_json"):
        reply.call(0, part.get("index"), "", "", arguments)
    reply.ended(0, part.get("stop_reason") or delta.get("stop_reason"))


def _block(reply: Reply, index: object, block: Mapping[str, Any]) -> None:
    kind = block.get("type") or ""
    reply.text(0, block.get("text") or "")
    if kind == "tool_use":
        reply.call(0, index, block.get("id"), block.get("name"), block.get("input") or "")
    elif kind not in _SERVERS_BLOCKS and not kind.endswith("_tool_result"):
        reply.unclear = True


def _named(item: Mapping[str, Any]) -> tuple[object, object]:
    return item.get("name"), item.get("arguments")


def _shell(item: Mapping[str, Any]) -> tuple[object, object]:
    return "shell", item.get("action")


_CLIENTS_ITEMS: dict[str, Callable[[Mapping[str, Any]], tuple[object, object]]] = {
    "function_call": _named,
    "custom_tool_call": lambda item: (item.get("name"), ""),
    "local_shell_call": _shell,
    "shell_call": _shell,
    "apply_patch_call": lambda _: ("apply_patch", ""),
    "computer_call": lambda _: ("computer", ""),
    "mcp_approval_request": lambda _: ("mcp_approval", ""),
    "tool_search_call": lambda _: ("tool_search", ""),
}
"""By the type of an item on which the client acts: the tool that it counts as, and the arguments."""

_SERVERS = """
message reasoning web_search_call file_search_call code_interpreter_call image_generation_call mcp_call
mcp_list_tools compaction tool_search_output shell_call_output
"""
_SERVERS_ITEMS = frozenset(_SERVERS.split())
_LAST_EVENTS = {f"response.{status}": status for status in ("completed", "failed", "incomplete", "cancelled")}


def _responses(reply: Reply, part: Mapping[str, Any]) -> None:
    """OpenAI's Responses: a stream tells items as they are done, and its last event repeats them, or should."""
    kind = part.get("type") or ""
    if kind == "response.output_item.done":
        _item(reply, part["item"])
    elif kind in _LAST_EVENTS or not kind:
        whole = part.get("response") or part
        before, reply.calls = reply.calls, []
        if output := whole.get("output"):
            reply.texts.clear()
            for item in output:
                _item(reply, item)
        reply.calls = reply.calls or before
        reply.ended(0, whole.get("status") or _LAST_EVENTS.get(kind))
        reply.failed = reply.failed or bool(whole.get("error"))
        reply.unclear = reply.unclear or whole.get("end_turn") is False


def _item(reply: Reply, item: Mapping[str, Any]) -> None:
    kind = item.get("type") or ""
    if _is_run_by_server(item):
        reply.unclear = reply.unclear or item.get("status") == "incomplete"
    elif kind in _CLIENTS_ITEMS:
        tool, arguments = _CLIENTS_ITEMS[kind](item)
        reply.call(0, None, "", tool, arguments)
    else:
        reply.unclear = True
    if kind == "message":
        reply.unclear = reply.unclear or item.get("end_turn") is False
        if item.get("phase") != "commentary":
            reply.text(0, item.get("content"))


def _is_run_by_server(item: Mapping[str, Any]) -> bool:
    kind, environment = item.get("type"), item.get("environment") or {}
    if kind == "tool_search_call":
        return item.get("execution") == "server"
    return kind in _SERVERS_ITEMS or (kind == "shell_call" and environment.get("type") == "container_reference")


def _sglang(reply: Reply, part: Mapping[str, Any]) -> None:
    """SGLang's ``/generate``: each part has the whole text so far, or with a server's option the next piece."""
    choice, piece, meta = part.get("index") or 0, part.get("text") or "", part.get("meta_info") or {}
    before = reply.texts.get(choice)
    if before is not None and before.is_whole and piece.startswith(str(before)):
        del reply.texts[choice]
    reply.text(choice, piece)
    if isinstance(why := meta.get("finish_reason"), dict):
        reply.ended(choice, why.get("type"), why.get("matched"))


def _ollama(reply: Reply, part: Mapping[str, Any]) -> None:
    """Ollama's chat and generate, whose stream has a line for each part."""
    message = part.get("message") or {}
    for call in message.get("tool_calls") or ():
        _openai_call(reply, 0, call, None)
    reply.text(0, message.get("content") or part.get("response") or "")
    if part.get("done") is True:
        reply.ended(0, part.get("done_reason") or "stop")


def _cohere(reply: Reply, part: Mapping[str, Any]) -> None:
    """Cohere's chat of version 2, whole and streamed."""
    inner = part.get("delta") or part
    message = inner.get("message") or {}
    calls = message.get("tool_calls") or ()
    for call in [calls] if isinstance(calls, dict) else calls:
        _openai_call(reply, 0, call, part.get("index"))
    content = message.get("content") or ""
    reply.text(0, [content] if isinstance(content, dict) else content)
    reply.ended(0, inner.get("finish_reason"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How an API writes replies. ``finished`` and ``calling``: its words for the end of an answer, or of calls.

    After any other word the reply is not what the model meant to say.
    """

    add: Callable[[Reply, Mapping[str, Any]], None]
    finished: frozenset[str]
    calling: frozenset[str]

    def read(self, reply: Reply, document: object) -> None:
        """Add a document. Raises TypeError, AttributeError or KeyError for one that is not of this form."""
        for number, part in enumerate(document if isinstance(document, list) else (document,)):
            reply.sizes |= sizes_in(part)
            if part.get("error") or "error" in (part.get("type"), part.get("object")):
                reply.failed = True
            else:
                self.add(reply, part if number == 0 else {"index": number, **part})


def _form(add: Callable[[Reply, Mapping[str, Any]], None], finished: str, calling: str) -> Form:
    return Form(
        add=add, finished=frozenset(finished.split()), calling=frozenset((*calling.split(), _STOP_SEQUENCE))
    )


_CHAT = _form(_openai, "stop", "tool_calls function_call")
_OLLAMA = _form(_ollama, "stop", "")
FORMS: dict[str, Form] = {
    ANTHROPIC_PATH: _form(_anthropic, "end_turn", "tool_use"),
    "/v1/responses": _form(_responses, "completed", ""),
    "/generate": _form(_sglang, "stop", ""),
    "/api/chat": _OLLAMA,
    "/api/generate": _OLLAMA,
    "/cohere/v2/chat": _form(_cohere, "COMPLETE", "TOOL_CALL"),
}
"""By the path of the request; any other has the form of OpenAI's chat completions, or none that is known."""


def form_of(path: str) -> Form:
    """The form of the replies to requests on this path."""
    return FORMS.get(path, _CHAT)


def stop_sequences(request: Mapping[str, Any]) -> frozenset[str]:
    """The texts at which the request wants its reply to stop."""
    sampling = request.get("sampling_params")
    stops: list[object] = []
    for within in (request, sampling if isinstance(sampling, dict) else {}):
        stop = within.get("stop")
        stops += stop if isinstance(stop, list) else (stop,)
    return frozenset(stop for stop in stops if isinstance(stop, str))

"""A gate before a scripted model, for real agents: what they send is real, and so is what the gate makes of it.

The model is a double: it speaks OpenAI's chat completions and responses and Anthropic's messages, whole or
streamed, and says what a script tells it to. What a harness sent can be kept without its words, and sent again.
"""

import asyncio
import hashlib
import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import uvicorn

from controlplane import clocks
from controlplane.core.model.events import Event, ProgramEnded, ReplyRead
from controlplane.gate import Gate, GatedRequest, GateMiddleware
from controlplane.gate.asgi import send_json
from controlplane.gate.carriers import CLAUDE_CODE_AGENT, HEADERS, PARENT_HEADERS
from controlplane.gate.requests import GATED_PATHS

_KEPT_HEADERS = frozenset((*HEADERS, *PARENT_HEADERS, CLAUDE_CODE_AGENT, "user-agent"))
_KEPT_FIELDS = ("stream", "messages", "input", "system", "instructions", "tools", "metadata", "prompt_cache_key")
_SHORT = 40  # characters: names and types; what is longer is kept as its digest and its length
_DIGESTED = re.compile(r"<([0-9a-f]{8}):([0-9]+)>")


@dataclass(frozen=True, slots=True)
class Said:
    """What the model says: a text, or with ``tool`` its name and arguments; how long its prompt was, in tokens."""

    text: str = "done, as you asked"
    tool: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = ""  # of the tool: Codex has tools in such
    prompt_tokens: int = 10
    after_s: float = 0.3  # so that what a harness asks at one time is here at one time


Script = Callable[[Mapping[str, Any]], Said]
"""Of a request's body."""


@dataclass(slots=True)
class Seen:
    """A program as the gate saw it, and what is known of its end."""

    program_id: str
    parent_id: str
    warms_up: bool = False
    turns: int = 0
    tools: list[str] = field(default_factory=list)
    end: str = ""  # "rests": its last reply calls no tool; "ended": the gate said so


@dataclass
class GatedModel:
    """``programs``: in the order in which they came, by id. ``sent``: as ``sent_again`` takes them.

    What comes while it ``warms_up`` is in no row.
    """

    script: Script
    url: str = ""
    warms_up: bool = False
    programs: dict[str, Seen] = field(default_factory=dict)
    sent: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._open: set[int] = set()
        self.came = threading.Semaphore(0)  # once for each turn

    @contextmanager
    def serving(self) -> Iterator["GatedModel"]:
        """While the block runs it is at ``url``."""
        app = GateMiddleware(self._app, Gate(send=self._hear, now_ns=clocks.awake_ns))
        server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.01)
        self.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.should_exit = True
            thread.join()

    def rows(self) -> list[tuple[str, str, int, str, str]]:
        """Each program's number (of those without a parent first), its parent's, its turns, its tools, its end."""
        programs = [each for each in self.programs.values() if not each.warms_up]
        programs.sort(key=lambda each: bool(each.parent_id))
        numbers = {each.program_id: str(number) for number, each in enumerate(programs, start=1)}
        return [
            (numbers[each.program_id], numbers.get(each.parent_id, ""), each.turns, " ".join(each.tools), each.end)
            for each in programs
        ]

    def _hear(self, event: Event, _urgent: bool) -> None:
        if isinstance(event, ReplyRead):
            seen = self.programs[event.program_id]
            seen.tools += [event.tool] if event.tool else []
            seen.end = "" if event.tool else "rests"
        elif isinstance(event, ProgramEnded):
            self.programs[event.program_id].end = "ended"

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        path, data, more = scope["path"], b"", True
        while scope["method"] == "POST" and more:
            message = await receive()
            data, more = data + message.get("body", b""), message.get("more_body", False)
        if path not in GATED_PATHS:
            models = [{"id": "m", "object": "model"}]
            await send_json(send, 200, {"object": "list", "data": models, "input_tokens": 9})
            return
        body = json.loads(data)
        said, number = self.script(body), len(self.sent)
        self._note(scope["penstock"])
        self.sent.append(
            _without_words(scope, body)
            | {"during": sorted(self._open), "tool": said.tool}
            | {"warms_up": self.warms_up}
        )
        self._open.add(number)
        self.came.release()
        await asyncio.sleep(said.after_s)
        self._open.discard(number)
        events = _FORMS[path](said, body.get("model", "m"))
        if not body.get("stream"):
            await send_json(send, 200, _whole(path, events, said))
            return
        kind = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": kind})
        lines = "".join(f"event: {name}\n" * bool(name) + f"data: {_text(each)}\n\n" for name, each in events)
        await send({"type": "http.response.body", "body": lines.encode()})

    def _note(self, gated: GatedRequest) -> None:
        identity = gated.identity
        seen = self.programs.setdefault(identity.program_id, Seen(identity.program_id, "", self.warms_up))
        seen.turns += 1
        seen.parent_id = seen.parent_id or identity.parent_id


# -- what was sent, without its words ----------------------------------------------------------------------------


def _without_words(scope: Any, body: Mapping[str, Any]) -> dict[str, Any]:
    headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
    return {
        "path": scope["path"],
        "headers": {name: value for name, value in headers.items() if name in _KEPT_HEADERS},
        "body": {name: _digested(body[name], name) for name in _KEPT_FIELDS if name in body},
    }


def _digested(value: Any, key: str = "") -> Any:
    """Equal texts stay equal, and as long as they were."""
    if isinstance(value, dict):
        kept = {"name", "type", "function", "tools"} if key == "tools" else value.keys()
        return {name: _digested(each, key) for name, each in value.items() if name in kept}
    if isinstance(value, list):
        return [_digested(each, key) for each in value]
    if not isinstance(value, str) or len(value) <= _SHORT:
        return value
    return f"<{hashlib.sha256(value.encode()).hexdigest()[:8]}:{len(value)}>"


def _undigested(value: Any) -> Any:
    text = json.dumps(value)
    return json.loads(_DIGESTED.sub(lambda found: (found[1] * (int(found[2]) // 8 + 1))[: int(found[2])], text))


async def sent_again(sent: Sequence[Mapping[str, Any]]) -> GatedModel:
    """Send what a harness sent, in the same order, and as much of it at one time; what the gate made of it."""
    said = iter([Said(tool=each["tool"]) for each in sent])
    model = GatedModel(lambda _: next(said))
    with model.serving():
        async with aiohttp.ClientSession(model.url) as client:
            asked: list[asyncio.Task[int]] = []
            for each in sent:
                model.warms_up = each["warms_up"]
                before = [task for index, task in enumerate(asked) if index not in each["during"]]
                await asyncio.gather(*before)
                asked.append(asyncio.ensure_future(_post(client, each)))
                await asyncio.to_thread(model.came.acquire)
            assert set(await asyncio.gather(*asked)) == {200}
    return model


async def _post(client: aiohttp.ClientSession, sent: Mapping[str, Any]) -> int:
    body = _undigested(sent["body"])
    async with client.post(sent["path"], json=body, headers=sent["headers"]) as answer:
        await answer.read()
        return answer.status


# -- the model's words in each API -------------------------------------------------------------------------------

Events = list[tuple[str, Any]]


def _text(event: Any) -> str:
    return event if isinstance(event, str) else json.dumps(event)


def _new(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:16]}"


def _chat(said: Said, model: str) -> Events:
    chunk = {"id": _new("chatcmpl"), "object": "chat.completion.chunk", "created": 1, "model": model}
    delta: dict[str, Any] = {"role": "assistant", "content": None if said.tool else said.text}
    if said.tool:
        function = {"name": said.tool, "arguments": json.dumps(said.arguments)}
        delta["tool_calls"] = [{"index": 0, "id": _new("call"), "type": "function", "function": function}]
    why = "tool_calls" if said.tool else "stop"
    tokens = {"prompt_tokens": said.prompt_tokens, "completion_tokens": 1, "total_tokens": said.prompt_tokens + 1}
    return [
        ("", chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}),
        ("", chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": why}], "usage": tokens}),
        ("", "[DONE]"),
    ]


def _responses(said: Said, model: str) -> Events:
    if said.tool:
        item: dict[str, Any] = {"type": "function_call", "id": _new("fc"), "call_id": _new("call")}
        item |= {"name": said.tool, "arguments": json.dumps(said.arguments)}
        item |= {"namespace": said.namespace} if said.namespace else {}
    else:
        content = [{"type": "output_text", "text": said.text, "annotations": []}]
        item = {"type": "message", "id": _new("msg"), "role": "assistant", "content": content}
    item["status"] = "completed"
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    tokens = {"input_tokens": said.prompt_tokens, "output_tokens": 1, "total_tokens": said.prompt_tokens + 1}
    response = {"id": _new("resp"), "object": "response", "created_at": 1, "model": model, "output": []}
    response |= {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    done = response | {"status": "completed", "output": [item], "usage": tokens | details}
    return [
        ("response.created", {"type": "response.created", "response": response | {"status": "in_progress"}}),
        ("response.output_item.done", {"type": "response.output_item.done", "output_index": 0, "item": item}),
        ("response.completed", {"type": "response.completed", "response": done}),
    ]


def _messages(said: Said, model: str) -> Events:
    block: dict[str, Any] = {"type": "text", "text": ""}
    delta: dict[str, Any] = {"type": "text_delta", "text": said.text}
    if said.tool:
        block = {"type": "tool_use", "id": _new("toolu"), "name": said.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(said.arguments)}
    message: dict[str, Any] = {"id": _new("msg"), "type": "message", "role": "assistant", "model": model}
    message |= {
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": said.prompt_tokens, "output_tokens": 1},
    }
    end: dict[str, Any] = {"stop_reason": "tool_use" if said.tool else "end_turn", "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]
    return [(event["type"], event) for event in events]


_FORMS = {"/v1/chat/completions": _chat, "/v1/responses": _responses, "/v1/messages": _messages}


def _whole(path: str, events: Events, said: Said) -> dict[str, Any]:
    """The same reply in one piece."""
    documents = [event for _, event in events]
    if path == "/v1/responses":
        return dict(documents[-1]["response"])
    if path == "/v1/messages":
        block = documents[1]["content_block"] | ({"input": said.arguments} if said.tool else {"text": said.text})
        return dict(
            documents[0]["message"] | {"content": [block], "stop_reason": documents[4]["delta"]["stop_reason"]}
        )
    choice = {"index": 0, "message": documents[0]["choices"][0]["delta"]}
    choice["finish_reason"] = documents[1]["choices"][0]["finish_reason"]
    return dict(documents[0] | {"object": "chat.completion", "choices": [choice], "usage": documents[1]["usage"]})

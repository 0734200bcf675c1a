"""A double of the model: an OpenAI-compatible endpoint that says what a script tells it to.

Everything else about an agent's run is real: its framework, its tools, its requests. With an engine behind it
(``upstream``) so are its turns: each request is that engine's, and only what the reply says is the script's.
"""

import json
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any

from support.pages import Answering, serving

_OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls", "stream_options")  # that the engine was set up without
_UPSTREAM_TOKENS = 16

Reply = str | list[tuple[str, dict[str, Any]]]
"""A text, or the tools that it calls, each with its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What came in. Header names are in lower case; times are this machine's monotonic clock."""

    headers: dict[str, str]
    body: dict[str, Any]
    at_ns: int

    @property
    def first_user_text(self) -> str:
        return next((_text(message) for message in self.body["messages"] if message["role"] == "user"), "")

    @property
    def program(self) -> str:
        """As the gate would name it."""
        own = self.headers.get("x-penstock-program-id", "")
        return own or self.headers.get("x-litellm-session-id", "")


@dataclass
class ScriptedModel:
    """``scripts``: by a piece of a conversation's first message, its replies in order; the last one is repeated."""

    scripts: dict[str, list[Reply]]
    think_s: float = 0.02
    upstream: str = ""  # the URL of a real engine, or none
    requests: list[Request] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)  # statuses of the next requests, before anything is said

    def __enter__(self) -> "ScriptedModel":
        self._said: dict[str, int] = {}
        self._lock = threading.Lock()
        self._serving = serving(self._handler())
        self.url = f"{self._serving.__enter__()}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__(None, None, None)

    def answer(self, request: Request) -> tuple[int, dict[str, Any]]:
        with self._lock:
            self.requests.append(request)
            if self.failures:
                return self.failures.pop(0), {"error": {"message": "as the test asked", "type": "server_error"}}
            key = next((key for key in self.scripts if key in request.first_user_text), "")
            if not key:
                return 400, {"error": {"message": f"no script for {request.first_user_text[:200]!r}"}}
            said = self._said.get(f"{key}/{request.program}", 0)
            self._said[f"{key}/{request.program}"] = said + 1
            replies = self.scripts[key]
            reply = replies[min(said, len(replies) - 1)]
            number = len(self.requests)
        if self.upstream:
            return 200, _completion(reply, number) | {"usage": self._run(request)}
        time.sleep(self.think_s)
        return 200, _completion(reply, number)

    def _run(self, request: Request) -> Any:
        """The turn in the engine: its prompt, a few tokens of its own, and what it counts."""
        body = {key: value for key, value in request.body.items() if key not in _OF_TOOLS}
        body |= {"model": "default", "stream": False, "max_tokens": _UPSTREAM_TOKENS, "max_completion_tokens": None}
        headers = {name: value for name, value in request.headers.items() if name.startswith("x-")}
        asked = urllib.request.Request(
            f"{self.upstream}/v1/chat/completions",
            json.dumps(body).encode(),
            {**headers, "content-type": "application/json"},
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.load(answer)["usage"]

    def _handler(self) -> type[Answering]:
        model = self

        class Handler(Answering):
            def do_GET(self) -> None:  # noqa: N802  http.server calls it
                self.answer(200 if self.path == "/health" else 404, b"{}")

            def do_POST(self) -> None:  # noqa: N802  http.server calls it
                at_ns = time.monotonic_ns()
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status, answer = model.answer(Request(headers=headers, body=body, at_ns=at_ns))
                self.answer(status, json.dumps(answer).encode())

        return Handler


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def _completion(reply: Reply, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply if isinstance(reply, str) else ""}
    if not isinstance(reply, str):
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(reply)
        ]
    return {
        "id": f"reply-{number}",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [
            {"index": 0, "message": message, "finish_reason": "stop" if isinstance(reply, str) else "tool_calls"}
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }

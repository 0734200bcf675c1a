"""The two APIs of the day's clients: chat completions, and the Responses as Codex speaks them."""

import json
from typing import Any, ClassVar

OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "local_shell_call": "function_call_output",
}
"""By the item that calls: the one that answers it, in Codex' spelling."""
MADE_CALLS = (
    {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": "make"}'},
    {"type": "custom_tool_call", "name": "apply_patch", "input": "*** Begin Patch"},
)
"""For a model that cannot call, whose reply was cut: SGLang and vLLM render both."""


class Api:
    """Chat completions, whole."""

    path, limit, within = "/v1/chat/completions", "max_tokens", "messages"
    more: ClassVar[dict[str, Any]] = {}

    def user(self, content: Any) -> dict[str, Any]:
        return {"role": "user", "content": content}

    def read(self, text: str) -> list[Any]:
        """What of a reply is in the next prompt."""
        return [{"role": "assistant", "content": json.loads(text)["choices"][0]["message"]["content"]}]


class Responses(Api):
    """Streamed, with reasoning that only the server can read."""

    path, limit, within = "/v1/responses", "max_output_tokens", "input"
    more: ClassVar[dict[str, Any]] = {
        "instructions": "You are Codex.",
        "tools": [
            {"type": "function", "name": "exec_command", "parameters": {"type": "object", "properties": {}}},
            {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
            {"type": "local_shell"},
        ],
        "include": ["reasoning.encrypted_content"],
        "parallel_tool_calls": True,
        "store": False,
        "stream": True,
    }

    def user(self, content: Any) -> dict[str, Any]:
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": content}]}

    def read(self, text: str) -> list[Any]:
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
        assert events[-1]["type"] in ("response.completed", "response.incomplete"), f"{events[-1]!r:.200}"
        items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        return [{key: item[key] for key in item if key not in ("id", "status")} for item in items]


CHAT, RESPONSES = Api(), Responses()

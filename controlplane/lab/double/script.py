"""What the double says where it is told: replies in their order, with the tools that each calls.

An agent whose model is the double then works on a task with its own tools. The words are as meaningless as ever.
"""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec

from controlplane.core.model.errors import ConfigError
from controlplane.lab.double.chat_request import ChatRequest
from controlplane.wire.files import read_bytes

_MOST_BYTES = 64 << 20


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call, as the agent's harness names tool and arguments."""

    tool: str
    arguments: dict[str, Any] = {}


class Reply(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One reply: its length in output tokens, whatever the request allows, and the tools that it calls."""

    tokens: Annotated[int, msgspec.Meta(ge=1)] = 16
    calls: tuple[Call, ...] = ()


Script = dict[str, Annotated[tuple[Reply, ...], msgspec.Meta(min_length=1)]]
"""By a piece of a conversation's first user message: its replies, of which the last one is repeated."""


def read_script(path: Path) -> Script:
    """The JSON file's script. Raises ``ConfigError`` and says what of it is wrong."""
    try:
        return msgspec.json.decode(read_bytes(path, _MOST_BYTES), type=Script)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"script {path}: {error}", field="script") from error


def scripted(script: Script, request: ChatRequest, turn_id: str) -> ChatRequest:
    """The request with what its reply is to be; unchanged where the script has no such conversation.

    Which reply comes next is told by the replies that the prompt holds: a request that is sent again gets the same.
    """
    first = next((message.text for message in request.messages if message.role == "user"), "")
    replies = next((replies for piece, replies in script.items() if piece in first), ())
    if not replies:
        return request
    said = sum(message.role == "assistant" for message in request.messages)
    reply = replies[min(said, len(replies) - 1)]
    calls = tuple(
        {
            "id": f"call_{turn_id}_{number}",
            "type": "function",
            "function": {"name": call.tool, "arguments": msgspec.json.encode(call.arguments).decode()},
        }
        for number, call in enumerate(reply.calls)
    )
    return replace(request, output_tokens=reply.tokens, calls=calls, stops="tool_calls" if calls else "stop")

"""The forms that replies have: a name, the path, the documents of a reply, and the tools that it calls.

No tools: the reply is finished. None: neither is proven. A new form is a line in ``FORMS``.
"""

import json
from typing import Any

CHAT, TEXT, GENERATE = "/v1/chat/completions", "/v1/completions", "/generate"
MESSAGES, RESPONSES, OLLAMA, COHERE = "/v1/messages", "/v1/responses", "/api/chat", "/cohere/v2/chat"
BASH = "THOUGHT: look.\n\n```bash\nls -la && pytest -q\n```\n"
SHELL = '{"command": "cd /repo && timeout 60 pytest -q"}'
TOOLS: dict[str, Any] = {"tools": [{"type": "function"}], "stop": ["Observation:"]}
TOOLS["sampling_params"] = {"stop": "Observation:"}
DONE = object()
Tools = tuple[str, ...] | None
Form = tuple[str, str, list[Any], Tools]


def chat(why: Any = "stop", index: int = 0, **message: Any) -> Any:
    return {"choices": [{"index": index, "message": message, "finish_reason": why}]}


def delta(why: Any = None, index: int = 0, **delta: Any) -> Any:
    return {"choices": [{"index": index, "delta": delta, "finish_reason": why}]}


def call(name: str, arguments: str = "{}", **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, "arguments": arguments}, **more}


def items(*output: Any, status: Any = "completed", **more: Any) -> Any:
    return {"object": "response", "status": status, "output": list(output), **more}


def item(kind: str, **more: Any) -> Any:
    return {"type": kind, **more}


def said(text: str = "All done.", **more: Any) -> Any:
    return item("message", content=[{"type": "output_text", "text": text}], **more)


def message(*blocks: Any, why: Any = "end_turn") -> Any:
    return {"type": "message", "content": list(blocks), "stop_reason": why}


def event(kind: str, **more: Any) -> Any:
    return {"type": kind, **more}


def generated(text: str, why: Any = None, **more: Any) -> Any:
    return {"text": text, "meta_info": {"finish_reason": why and {"type": why, **more}}}


ANSWER = {"type": "text", "text": "All done."}
USE = {"type": "tool_use", "id": "t", "name": "Bash", "input": json.loads(SHELL)}
ITEM = "response.output_item.done"
ERROR = {"error": {"message": "TimeoutError", "code": 504}}

FORMS: list[Form] = [
    (
        "whole",
        CHAT,
        [chat("tool_calls", content=None, tool_calls=[call("a", id="1"), call("b", id="1")])],
        ("a", "b"),
    ),
    ("named for a choice", CHAT, [chat("stop", tool_calls=[call("bash", SHELL)])], ("pytest",)),
    ("legacy", CHAT, [chat("function_call", function_call={"name": "old", "arguments": "{}"})], ("old",)),
    ("custom", CHAT, [chat(None, tool_calls=[item("custom", custom={"name": "patch", "input": "*"})])], ("patch",)),
    (
        "in the second choice",
        CHAT,
        [{"choices": [*chat()["choices"], *chat(None, 1, tool_calls=[call("b")])["choices"]]}],
        ("b",),
    ),
    (
        "second choice, text",
        CHAT,
        [{"choices": [*chat(content="x")["choices"], *chat("stop", 1, content=BASH)["choices"]]}],
        ("ls", "pytest"),
    ),
    ("answer", CHAT, [chat(content="All done.")], ()),
    ("answer in parts", CHAT, [chat(content=[{"type": "text", "text": "All done."}])], ()),
    ("no reason", CHAT, [chat(None, content="All done.")], None),
    ("empty", CHAT, [chat(content="", reasoning_content="<tool_call>")], None),
    ("refusal", CHAT, [chat(content="x", refusal="I cannot")], None),
    (
        "one choice unfinished",
        CHAT,
        [{"choices": [*chat(content="x")["choices"], *chat("length", 1, content="x")["choices"]]}],
        None,
    ),
    *((why, CHAT, [chat(why, content="All done.")], None) for why in ("length", "abort", "content_filter", "new")),
    ("length within a call", CHAT, [chat("length", tool_calls=[call("a", "{")])], None),
    (
        "stop sequence",
        CHAT,
        [{"choices": [{**chat(content="Action: x")["choices"][0], "stop_reason": "Observation:"}]}],
        None,
    ),
    ("token that stops", CHAT, [{"choices": [{**chat(content="x")["choices"][0], "matched_stop": 128009}]}], ()),
    ("error", CHAT, [ERROR], None),
    ("error as an object", CHAT, [{"object": "error", "message": "x"}], None),
    (
        "stream",
        CHAT,
        [
            delta(role="assistant", content=""),
            delta(tool_calls=[call("bash", "", index=0, id="x")]),
            *(
                delta(tool_calls=[{"index": 0, "function": {"arguments": part}}])
                for part in (SHELL[:11], SHELL[11:30])
            ),
            delta(tool_calls=[{"index": 0, "function": None}]),
            delta(tool_calls=[{"index": 0, "id": "x", "function": {"arguments": SHELL[30:]}}]),
            delta(tool_calls=[call("now", index=1, id="y")]),
            delta("tool_calls"),
            {"choices": [], "usage": {}},
            DONE,
        ],
        ("pytest", "now"),
    ),
    (
        "stream, all index 0",
        CHAT,
        [delta(tool_calls=[call("a", index=0, id="x")]), delta(tool_calls=[call("b", index=0, id="y")]), DONE],
        ("a", "b"),
    ),
    ("stream, no index", CHAT, [delta(tool_calls=[call("a")]), delta(tool_calls=[call("a")]), DONE], ("a", "a")),
    ("stream, index null", CHAT, [delta(tool_calls=[call("a", index=None, id="x")]), DONE], ("a",)),
    (
        "stream of text",
        CHAT,
        [*(delta(content=part) for part in (BASH[:20], BASH[20:])), delta("stop"), DONE],
        ("ls", "pytest"),
    ),
    ("stream of an answer", CHAT, [delta(content="All "), delta(content="done."), delta("stop"), DONE], ()),
    ("stream, no reason", CHAT, [delta(content="All done."), DONE], None),
    ("stream with an error", CHAT, [delta(content="I will"), ERROR, DONE], None),
    ("completion", TEXT, [{"choices": [{"text": BASH, "finish_reason": "stop"}]}], ("ls", "pytest")),
    (
        "completion, streamed",
        TEXT,
        [{"choices": [{"text": "x"}]}, {"choices": [{"text": "", "finish_reason": "stop"}]}],
        (),
    ),
    ("generate", GENERATE, [generated(BASH, "stop")], ("ls", "pytest")),
    ("generate several", GENERATE, [[generated("x", "stop"), generated(BASH, "stop")]], ("ls", "pytest")),
    ("generate, streamed", GENERATE, [generated(BASH[:30]), generated(BASH, "stop"), DONE], ("ls", "pytest")),
    ("generate, in pieces", GENERATE, [generated(BASH[:30]), generated(BASH[30:], "stop"), DONE], ("ls", "pytest")),
    ("generate an answer", GENERATE, [generated("x"), generated("xy", "stop", matched=2), DONE], ()),
    ("generate to a stop", GENERATE, [generated("x", "stop", matched="Observation:")], None),
    ("generate, aborted", GENERATE, [generated("x", "abort")], None),
    (
        "messages",
        MESSAGES,
        [message({"type": "thinking", "thinking": "x"}, ANSWER, USE, why="tool_use")],
        ("pytest",),
    ),
    (
        "messages, answer",
        MESSAGES,
        [message(item("server_tool_use", name="web_search"), item("web_search_tool_result"), ANSWER)],
        (),
    ),
    ("messages, unknown", MESSAGES, [message(ANSWER, item("new_use"))], None),
    *(
        (why, MESSAGES, [message(ANSWER, why=why)], None)
        for why in ("max_tokens", "pause_turn", "refusal", "stop_sequence", None)
    ),
    (
        "messages, streamed",
        MESSAGES,
        [
            event("message_start", message=message(why=None)),
            event("ping"),
            event(
                "content_block_start",
                index=0,
                content_block={"type": "tool_use", "id": "t", "name": "Bash", "input": {}},
            ),
            *(
                event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": part})
                for part in (SHELL[:9], SHELL[9:])
            ),
            event("content_block_stop", index=0),
            event("message_delta", delta={"stop_reason": "tool_use"}),
            event("message_stop"),
        ],
        ("pytest",),
    ),
    (
        "messages, an answer streamed",
        MESSAGES,
        [
            event("content_block_start", index=0, content_block={"type": "text", "text": ""}),
            event("content_block_delta", index=0, delta={"type": "text_delta", "text": "Done."}),
            event("message_delta", delta={"stop_reason": "end_turn"}),
            event("message_stop"),
        ],
        (),
    ),
    (
        "messages, overloaded",
        MESSAGES,
        [event("message_start", message=message(why=None)), event("error", error={"type": "overloaded_error"})],
        None,
    ),
    (
        "function_call",
        RESPONSES,
        [items(item("reasoning"), item("function_call", name="shell", arguments=SHELL))],
        ("pytest",),
    ),
    (
        "parallel",
        RESPONSES,
        [items(item("function_call", name="f"), item("custom_tool_call", name="apply_patch", input="*"))],
        ("f", "apply_patch"),
    ),
    (
        "local_shell_call",
        RESPONSES,
        [items(item("local_shell_call", action={"command": ["bash", "-lc", "pytest"]}))],
        ("pytest",),
    ),
    ("shell_call", RESPONSES, [items(item("shell_call", action={"commands": ["pytest"]}))], ("pytest",)),
    (
        "hosted shell",
        RESPONSES,
        [items(item("shell_call", environment={"type": "container_reference"}), said())],
        (),
    ),
    ("apply_patch_call", RESPONSES, [items(item("apply_patch_call", operation={}))], ("apply_patch",)),
    ("computer_call", RESPONSES, [items(item("computer_call", action={"type": "click"}))], ("computer",)),
    ("mcp_approval_request", RESPONSES, [items(item("mcp_approval_request", name="x"))], ("mcp_approval",)),
    ("tool_search_call", RESPONSES, [items(item("tool_search_call", execution="client"))], ("tool_search",)),
    (
        "hosted search",
        RESPONSES,
        [items(item("tool_search_call", execution="server"), item("web_search_call"), item("mcp_call"), said())],
        (),
    ),
    ("text", RESPONSES, [items(said(BASH))], ("ls", "pytest")),
    ("unknown item", RESPONSES, [items(said(), item("new_call"))], None),
    ("comment before more", RESPONSES, [items(said(phase="commentary"))], None),
    ("turn goes on", RESPONSES, [items(said(), end_turn=False)], None),
    ("refused", RESPONSES, [items(item("message", content=[{"type": "refusal", "refusal": "x"}]))], None),
    ("bare call", RESPONSES, [{"output": [item("function_call", name="f")]}], ("f",)),
    ("bare answer", RESPONSES, [{"output": [said()]}], None),
    *(
        (status, RESPONSES, [items(said(), status=status)], None)
        for status in ("incomplete", "failed", "cancelled", "queued", "in_progress")
    ),
    (
        "responses, streamed",
        RESPONSES,
        [
            event("response.created", response=items(status="in_progress")),
            event(ITEM, item=item("function_call", id="1", name="g")),
            event("response.completed", response=items(item("function_call", id="1", name="g"))),
        ],
        ("g",),
    ),
    (
        "last event is empty",
        RESPONSES,
        [event(ITEM, item=item("function_call", name="g")), event("response.completed", response=items())],
        ("g",),
    ),
    (
        "responses, an answer streamed",
        RESPONSES,
        [event(ITEM, item=said()), event("response.completed", response=items(said()))],
        (),
    ),
    (
        "responses, streamed and failed",
        RESPONSES,
        [event(ITEM, item=said()), event("response.failed", response=items(status="failed", error={"code": "x"}))],
        None,
    ),
    (
        "responses, streamed and incomplete",
        RESPONSES,
        [event(ITEM, item=said()), event("response.incomplete", response=items(said(), status=None))],
        None,
    ),
    ("responses, an error", RESPONSES, [event(ITEM, item=said()), event("error", code="x", message="x")], None),
    (
        "ollama",
        OLLAMA,
        [
            {
                "message": {"tool_calls": [{"function": {"name": "bash", "arguments": json.loads(SHELL)}}]},
                "done": False,
            },
            {"message": {"content": ""}, "done": True, "done_reason": "stop"},
        ],
        ("pytest",),
    ),
    (
        "ollama, an answer",
        OLLAMA,
        [{"message": {"content": "x"}, "done": False}, {"message": {"content": ""}, "done": True}],
        (),
    ),
    ("ollama, cut", OLLAMA, [{"message": {"content": "x"}, "done": True, "done_reason": "length"}], None),
    ("cohere", COHERE, [{"message": {"tool_calls": [call("f", id="x")]}, "finish_reason": "TOOL_CALL"}], ("f",)),
    (
        "cohere, streamed",
        COHERE,
        [
            event("tool-call-start", index=0, delta={"message": {"tool_calls": call("f", id="x")}}),
            event("message-end", delta={"finish_reason": "TOOL_CALL"}),
        ],
        ("f",),
    ),
    (
        "cohere, an answer",
        COHERE,
        [
            event("content-delta", index=0, delta={"message": {"content": {"text": "x"}}}),
            event("message-end", delta={"finish_reason": "COMPLETE"}),
        ],
        (),
    ),
]

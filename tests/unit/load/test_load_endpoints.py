"""Endpoints as they are: what each sends as a reply, what it wants to be sent, and what of it becomes a figure."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from endpoint_double import EndpointDouble, serving
from replay_runs import program, run
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.model.errors import ConfigError, ControlPlaneError
from controlplane.lab.compare.terminal import without_secrets
from controlplane.lab.load.options import header_of
from controlplane.lab.load.sse import ReplyBroken, ReplyStream

ROLE = {"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None}
FIRST_TOKENS: dict[str, dict[str, Any]] = {
    "text": {"content": "w"},
    "text in parts": {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "w"}]}]},
    "reasoning of vLLM, OpenRouter": {"reasoning": "w"},
    "reasoning of SGLang, DeepSeek": {"reasoning_content": "w", "content": None},
    "reasoning in details": {"content": "", "reasoning_details": [{"type": "reasoning.text", "text": "w"}]},
    "thinking": {"thinking": "w"},
    "a tool call": {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "ls", "arguments": ""}}]},
    "a function call": {"function_call": {"name": "ls", "arguments": ""}},
    "a refusal": {"refusal": "w"},
    "audio": {"audio": {"id": "a", "transcript": "w"}},
    "an image": {"images": [{"type": "image_url", "image_url": {"url": "data:"}}]},
}
END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 2}}
# What comes after a token: lines of the stream, and (finish, output tokens, cached tokens) or the error's text.
ENDS: dict[str, tuple[list[Any], tuple[str, int | None, int | None] | str]] = {
    "usage at the end": ([END, {"choices": [], "usage": USAGE}, "[DONE]"], ("stop", 3, 2)),
    "usage with null in it": (
        [END, {"choices": None, "usage": USAGE | {"prompt_tokens_details": None}}],
        ("stop", 3, None),
    ),
    "usage in every chunk": (
        [{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}, END | {"usage": USAGE}],
        ("stop", 3, 2),
    ),
    "no usage": ([END, {"choices": [], "usage": None}, "[DONE]"], ("stop", None, None)),
    "length": ([{"choices": [{"delta": None, "finish_reason": "length"}]}, "[DONE]"], ("length", None, None)),
    "no reason": (["[DONE]"], ("done", None, None)),
    "cut": ([], ("", None, None)),
    "an error": ([{"error": {"message": "out of memory", "code": 500}}], "out of memory"),
    "an error in words": ([{"error": "out of memory"}, "[DONE]"], "out of memory"),
    "an error's event": ([": ping", "event: error", {"detail": "out of memory"}], "out of memory"),
    "an object that is an error": ([{"object": "error", "message": "out of memory"}], "out of memory"),
    "aborted": ([{"choices": [{"delta": {}, "finish_reason": "abort"}]}, "[DONE]"], "'abort'"),
    "a failure": ([{"choices": [{"delta": {}, "finish_reason": "error"}], "error": None}], "'error'"),
}


def lines_of(items: list[Any]) -> bytes:
    """Chunks as data; what has a colon is a line of its own."""
    texts = [
        item
        if isinstance(item, str) and ":" in item
        else f"data: {item if item == '[DONE]' else json.dumps(item)}\n"
        for item in items
    ]
    return "".join(f"{text}\r\n" for text in texts).encode()


def fed(data: bytes, piece: int) -> ReplyStream:
    stream = ReplyStream()
    for start in range(0, len(data), piece):
        stream.feed(data[start : start + piece])
    return stream


@pytest.mark.parametrize("delta", FIRST_TOKENS.values(), ids=FIRST_TOKENS)
def test_a_first_token_of_any_kind_counts(delta: dict[str, Any]) -> None:
    stream = ReplyStream()
    stream.feed(b": keep-alive\n\n" + lines_of([{"choices": [{"index": 0, "delta": ROLE}]}]))
    assert not stream.begun
    stream.feed(lines_of([{"choices": [{"index": 0, "delta": delta}]}]))
    assert stream.begun


@pytest.mark.parametrize("piece", [1, 1 << 20])
@pytest.mark.parametrize(("items", "expected"), ENDS.values(), ids=ENDS)
def test_how_a_reply_ends(items: list[Any], expected: tuple[Any, ...] | str, piece: int) -> None:
    data = lines_of([{"choices": [{"delta": {"content": "w"}}]}, *items])
    if isinstance(expected, str):
        with pytest.raises(ReplyBroken, match=expected):
            fed(data, piece)
        return
    stream = fed(data, piece)
    assert (stream.finish, stream.output_tokens, stream.cached_tokens) == expected
    assert stream.text == "w"


@pytest.mark.parametrize("line", [b"data: Internal Server Error\n", b"data: 7\n"])
def test_what_is_no_chunk_breaks_the_reply(line: bytes) -> None:
    with pytest.raises((msgspec.DecodeError, ReplyBroken)):
        ReplyStream().feed(line)


def refusing(status: int, message: str, **headers: str) -> Any:
    async def answer(request: web.Request, _body: dict[str, Any]) -> web.Response:
        text = message.replace("KEY", request.headers.get("authorization", "").removeprefix("Bearer "))
        return web.json_response({"error": {"message": text}}, status=status, headers=headers)

    return answer


async def test_key_and_headers_go_to_the_endpoint_and_nowhere_else() -> None:
    other = EndpointDouble()
    async with serving(other):
        moved = refusing(307, "", location=f"{other.url}/v1/chat/completions")
        endpoint = EndpointDouble(script=[moved, refusing(401, "no such key: KEY")])
        result, recorder = await run(
            endpoint,
            *(program(name, (10, 2)) for name in "abc"),
            api_key="sk-a-secret",
            headers={"X-Team": "blue", "Authorization": "Bearer sk-another"},
        )
    assert [headers["x-team"] for headers in endpoint.headers] == ["blue"] * 3
    assert {headers["authorization"] for headers in endpoint.headers} == {"Bearer sk-another"}
    assert other.requests == []
    errors = sorted(each.error for each in result.programs if each.failed)
    assert errors[0].startswith("HTTP 307: ")
    assert errors[1].startswith("HTTP 401: no such key: *** (a key: --api-key")
    assert "sk-a" not in f"{recorder.notes} {result}"


async def test_who_refuses_a_field_is_asked_without_it() -> None:
    script = [
        refusing(400, "Unrecognized request argument supplied: ignore_eos"),
        refusing(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."),
        refusing(400, "the prompt is too long"),
    ]
    endpoint = EndpointDouble(script=script)
    result, _ = await run(endpoint, program("a", (10, 2)))
    assert [each.error for each in result.programs] == ["HTTP 400: the prompt is too long"]
    assert "ignore_eos" not in endpoint.requests[1]
    assert endpoint.requests[2]["max_completion_tokens"] == 2
    assert "max_tokens" not in endpoint.requests[2]
    assert result.facts["fields that the endpoint refused"] == "ignore_eos, max_tokens"


@pytest.mark.parametrize(("script", "status"), [([], 0), ([refusing(500, "broken")], 1)])
async def test_a_failed_program_fails_the_command(script: list[Any], status: int, tmp_path: Path) -> None:
    trace = tmp_path / "own.jsonl"
    turns = [{"input_tokens": 20, "output_tokens": 2}]
    trace.write_text("".join(json.dumps({"program_id": name, "turns": turns}) + "\n" for name in "ab"))
    async with serving(EndpointDouble(script=script)) as endpoint:
        command = ["replay", str(trace), "--url", f"{endpoint.url}/v1/", "-a", "closed:1", "--no-bus", "--json"]
        from anyio import to_thread

        found = await to_thread.run_sync(lambda: CliRunner().invoke(app, [*command, "--api-key", "sk-a-secret"]))
    told = json.loads(found.stdout)[0]
    assert (told["programs_failed"], told["routed_stay"]) == (status, None)
    assert {each["authorization"] for each in endpoint.headers} == {"Bearer sk-a-secret"}
    if status:
        assert isinstance(found.exception, ControlPlaneError)
        assert str(found.exception) == "1 of 2 programs failed: HTTP 500: broken"
    else:
        assert found.exit_code == 0


@pytest.mark.parametrize("text", ["no colon", ": value", "a name: value", "name: a\nb"])
def test_what_is_no_header_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="header: expected") as raised:
        header_of(text)
    assert "value" not in str(raised.value)


def test_a_report_names_its_command_without_keys() -> None:
    command = "replay -n 2 --api-key k1 --api-key=k2 -H k3:k4 -Hk5:k6 --header=k7 --nats nats://u:k8@host --url u"
    shown = " ".join(without_secrets(command.split()))
    assert shown == "replay -n 2 --api-key *** --api-key=*** -H *** -H *** --header=*** --nats nats://host --url u"

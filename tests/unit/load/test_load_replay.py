"""Replaying programs: every one is run to its end, timed and counted."""

import asyncio
import os
import signal
import threading
from itertools import accumulate
from typing import Any

import pytest
from aiohttp import web
from endpoint_double import EndpointDouble, data_line, serving
from replay_runs import Recorder, program, run

from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.replay import replay
from controlplane.lab.load.tools import ToolOptions
from controlplane.lab.workload.arrivals import Closed, Poisson
from controlplane.lab.workload.trace import Trace


def refuse(status: int, **headers: str) -> Any:
    async def answer(_request: web.Request, _body: dict[str, Any]) -> web.Response:
        return web.json_response(
            {"error": {"message": f"scripted {status}"}},
            status=status,
            headers={name.replace("_", "-"): value for name, value in headers.items()},
        )

    return answer


async def test_every_program_ends_and_prompts_grow_as_the_trace_says() -> None:
    endpoint = EndpointDouble()
    result, recorder = await run(
        endpoint,
        program("a", (50, 5), (80, 5), (100, 5)),
        program("b", (40, 3), (60, 3)),
        program("c", (30, 2)),
        shared_prefix=10,
        label="grow",
    )
    assert [p.failed for p in result.programs] == [False] * 3
    assert result.summary.turns_ended == 6
    assert sorted(turn.prompt_tokens for turn in result.turns) == [30, 40, 50, 60, 80, 100]
    assert {turn.output_tokens for turn in result.turns} == {5, 3, 2}
    assert all(turn.queued_ns < turn.first_token_ns <= turn.ended_ns for turn in result.turns)
    assert recorder.seen[-1].programs_ended == 3
    assert len({p.program_id for p in result.programs}) == 3
    assert all(p.program_id.startswith("grow-") for p in result.programs)
    assert {headers["x-session-id"] for headers in endpoint.headers} == {p.program_id for p in result.programs}
    by_length = sorted(endpoint.requests, key=lambda body: len(body["messages"]))
    first = [body["messages"] for body in by_length if len(body["messages"]) == 2]
    assert len(first) == 3
    assert all(messages[0] == first[0][0] for messages in first), "they share the system message"
    assert len({messages[1]["content"][:40] for messages in first}) == 3, "and nothing behind it"
    grown = by_length[-1]["messages"]
    assert [message["role"] for message in grown] == ["system", "user", *["assistant", "tool"] * 2]
    assert grown[:2] in first
    assert grown[2]["content"].split() == ["w0", "w1", "w2", "w3", "w4"]
    edges = sorted(edge for p in result.programs for edge in ((p.arrived_ns, 1), (p.ended_ns, -1)))
    assert max(accumulate(step for _, step in edges)) <= 2, "as the arrivals are closed"


async def test_with_a_run_id_the_programs_say_the_same_words_again() -> None:
    async def said(**options: Any) -> tuple[set[str], list[Any]]:
        endpoint = EndpointDouble()
        result, _ = await run(endpoint, program("a", (50, 5), (80, 5)), program("b", (40, 5)), seed=3, **options)
        bodies = sorted(endpoint.requests, key=lambda body: len(str(body["messages"])))
        return {p.program_id for p in result.programs}, [body["messages"] for body in bodies]

    assert await said(run_id="again") == await said(run_id="again")
    assert (await said(run_id="again"))[0] == {"replay-again-00000", "replay-again-00001"}
    assert await said() != await said()


async def test_who_came_first_has_the_lowest_number_in_all_its_turns() -> None:
    endpoint = EndpointDouble()
    programs = [program(name, (10, 1), (20, 1)) for name in "abc"]
    await run(endpoint, *programs, run_id="x", arrival=Poisson(100.0), first_come=True)
    ids = [headers["x-session-id"] for headers in endpoint.headers]
    numbers = {(program_id, body["priority"]) for program_id, body in zip(ids, endpoint.requests, strict=True)}
    assert numbers == {(f"replay-x-{number:05d}", number) for number in range(3)}

    unasked = EndpointDouble()
    await run(unasked, program("a", (10, 1)))
    assert "priority" not in unasked.requests[0]


async def test_a_refusal_is_waited_out_and_its_time_counts() -> None:
    endpoint = EndpointDouble(script=[refuse(429, Retry_After="0.1"), refuse(503, Retry_After="0.1")])
    result, recorder = await run(endpoint, program("a", (10, 1)))
    (turn,) = result.turns
    assert not turn.error
    assert turn.first_token_ns - turn.queued_ns >= 200_000_000
    assert turn.hold_ns >= 200_000_000
    assert recorder.seen[-1].retries == 2
    assert result.facts["retries"] == "2"


async def test_refusals_without_end_fail_the_program_with_the_reason() -> None:
    endpoint = EndpointDouble(script=[refuse(503, Retry_After="0.02")] * 50)
    result, _ = await run(endpoint, program("a", (10, 1)), give_up_after_s=0.1)
    (ended,) = result.programs
    assert ended.failed
    assert "HTTP 503: scripted 503" in ended.error
    assert "retries" in ended.error


async def test_a_bus_that_is_away_is_said_and_all_is_measured() -> None:
    result, recorder = await run(EndpointDouble(), program("a", (50, 5), (80, 5)), nats="nats://127.0.0.1:9")
    assert result.summary.programs_ended == 1
    assert any("tool events never reached the bus" in note for note in recorder.notes)


async def test_a_failed_turn_fails_its_program_only_and_is_said_once() -> None:
    endpoint = EndpointDouble(script=[refuse(400), refuse(400)])
    result, recorder = await run(
        endpoint, *(program(str(n), (10, 1), (20, 1)) for n in range(4)), arrival=Closed(1)
    )
    assert result.summary.programs_failed == 2
    assert result.summary.programs_ended == 2
    assert [p.error for p in result.programs[:2]] == ["HTTP 400: scripted 400"] * 2
    assert len([note for note in recorder.notes if "scripted" in note]) == 1
    assert recorder.seen[-1].programs_failed == 2


async def test_a_stream_cut_short_is_a_failure_not_a_short_reply() -> None:
    async def cut(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(data_line({"choices": [{"delta": {"content": "half a "}}]}))
        await response.write_eof()
        return response

    result, _ = await run(EndpointDouble(script=[cut]), program("a", (10, 4)))
    assert result.programs[0].error == "the stream was cut before its end"


async def test_the_gates_hold_is_taken_from_its_header() -> None:
    result, _ = await run(EndpointDouble(hold_ms="1500"), program("a", (10, 1)))
    assert result.turns[0].hold_ns >= 1_500_000_000


async def test_a_reply_that_began_while_its_turn_was_held_tells_of_hold_and_refusal_in_its_stream() -> None:
    """As the gate ends it: the first is refused there, the second is served."""

    async def begun(request: web.Request, told: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": waiting, 1st\n\n" + told)
        return response

    async def refused(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        error = {"message": "no slot", "status": 503, "retry_after_s": 0.1}
        return await begun(request, data_line({"error": error}) + b"data: [DONE]\n\n")

    async def served(request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        chunk = {"choices": [{"delta": {"content": "w"}, "finish_reason": "stop"}]}
        return await begun(request, b": x-penstock-hold-ms: 1500\n\n" + data_line(chunk))

    result, _ = await run(EndpointDouble(script=[refused, served]), program("a", (10, 1)))
    (turn,) = result.turns
    assert not turn.error
    assert turn.hold_ns >= 1_600_000_000
    assert result.facts["retries"] == "1"


async def test_identity_in_the_body_or_nowhere() -> None:
    body = EndpointDouble()
    result, _ = await run(body, program("a", (10, 1)), identity="body")
    assert body.requests[0]["program_id"] == result.programs[0].program_id
    nowhere = EndpointDouble()
    await run(nowhere, program("a", (10, 1)), identity="none")
    assert "program_id" not in nowhere.requests[0]
    assert "x-session-id" not in nowhere.headers[0]


async def test_think_time_is_slept_through_and_not_reported_as_a_tool() -> None:
    result, recorder = await run(
        EndpointDouble(), program("a", (10, 1), (20, 1), tool="human", tool_ms=400), tools=ToolOptions(slots=1)
    )
    assert result.summary.jct_mean_s >= 0.4
    assert all(progress.tools_running == 0 for progress in recorder.seen)


def test_nobody_at_the_url_is_said_at_once_with_what_to_do() -> None:
    asked = ReplayOptions(
        trace=Trace(programs=(program("a", (10, 1)),), rejected=[]),
        url="http://127.0.0.1:9",
        arrival=Closed(1),
    )
    with pytest.raises(EngineUnavailable, match=r"nobody answers at http://127\.0\.0\.1:9 .*engine-double"):
        replay(asked, Recorder())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_scale": 0}, "expected 0 < time_scale, got 0"),
        ({"url": "localhost:30000"}, "expected http://HOST:PORT"),
        ({"identity": "cookie"}, "expected one of header, body, none, got 'cookie'"),
        ({"tokens_per_word": 0}, "expected 1 <= tokens_per_word"),
    ],
)
def test_bad_options_are_refused_with_the_range(options: dict[str, Any], message: str) -> None:
    base: dict[str, Any] = {
        "trace": Trace(programs=(program("a", (10, 1)),), rejected=[]),
        "url": "http://127.0.0.1:9",
        "arrival": Closed(1),
    }
    with pytest.raises(ConfigError, match=message):
        ReplayOptions(**{**base, **options})


def test_ctrl_c_stops_and_says_that_the_figures_are_cut() -> None:
    endpoint = EndpointDouble()
    recorder = Recorder()
    ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        endpoint.gate = asyncio.Event()
        async with serving(endpoint):
            ready.set()
            await endpoint.asked.wait()
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.to_thread(stop.wait, 60)
            endpoint.gate.set()

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    assert ready.wait(60)
    result = replay(
        ReplayOptions(
            trace=Trace(programs=tuple(program(str(n), (10, 1)) for n in range(5)), rejected=[]),
            url=endpoint.url,
            arrival=Closed(1),
        ),
        recorder,
    )
    stop.set()
    server.join()
    assert result.cut
    assert result.summary.programs_failed == 1
    assert any("biased" in note for note in recorder.notes)

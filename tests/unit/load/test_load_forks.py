"""Replaying programs that send sub-agents and wait for all of them."""

from dataclasses import replace
from typing import Any

import pytest
from endpoint_double import EndpointDouble
from replay_runs import program, run

from controlplane.core import events as ev
from controlplane.lab.load import replay
from controlplane.lab.workload.arrivals import Closed

pytestmark = pytest.mark.asyncio


class EmitterDouble:
    """Keeps what is reported."""

    events: list[ev.Event]

    def __init__(self, **_options: Any) -> None:
        type(self).events = []
        self.stats = type("Stats", (), {"sent": 10**9, "last_error": ""})()

    def emit(self, event: ev.Event) -> None:
        self.events.append(event)

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


def tree() -> list[Any]:
    root = program("root", (50, 2), (90, 2), tool="Task", tool_ms=0.0)
    child = program("child", (40, 2), (60, 2), tool_ms=1.0)
    children = [
        replace(child, program_id=f"c{n}", parent_id="root", spawn_turn=0, family_tokens=20) for n in range(2)
    ]
    return [root, *children, program("alone", (30, 2))]


async def test_a_parents_next_turn_waits_for_all_of_its_sub_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "Emitter", EmitterDouble)
    endpoint = EndpointDouble()
    result, recorder = await run(
        endpoint, *tree(), arrival=Closed(1), shared_prefix=10, nats="nats://127.0.0.1:9", label="fork"
    )
    roots = [each for each in result.programs if not each.parent_id]
    children = [each for each in result.programs if each.parent_id]
    assert (len(roots), len(children), result.summary.programs_ended) == (2, 2, 2)
    root = next(each for each in roots if each.turns == 2)
    last = next(each for each in result.turns if each.program_id == root.program_id and each.index == 1)
    assert last.queued_ns >= max(each.ended_ns for each in children)
    assert {each.parent_id for each in children} == {root.program_id}
    assert recorder.seen[-1].programs_ended == recorder.seen[-1].programs == 2
    arrived = {
        each.program_id: each.parent_id for each in EmitterDouble.events if isinstance(each, ev.ProgramArrived)
    }
    assert [arrived[each.program_id] for each in children] == [root.program_id] * 2
    calls = [each for each in EmitterDouble.events if isinstance(each, ev.ToolStarted | ev.ToolEnded)]
    whose = [(type(each), each.program_id) for each in calls]
    assert whose[0] == (ev.ToolStarted, root.program_id)
    assert (ev.ToolEnded, root.program_id) in whose[-1:] or whose[-1][1] != root.program_id


async def test_siblings_have_the_beginning_of_their_system_message_in_common() -> None:
    endpoint = EndpointDouble()
    await run(endpoint, *tree(), arrival=Closed(1), shared_prefix=10)
    systems = {}
    for body, headers in zip(endpoint.requests, endpoint.headers, strict=True):
        systems.setdefault(headers["x-litellm-session-id"], body["messages"][0]["content"].split())
    by_length = sorted(systems.values(), key=len)
    assert [len(words) for words in by_length] == [10, 10, 30, 30]
    assert by_length[2] == by_length[3]
    assert by_length[2][:10] == by_length[0]

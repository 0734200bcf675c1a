"""Real agents through the real gate, in one table: whose turns they are, their parents, tools and ends.

The model is a double that says what a script tells it to. All else is real: `penstock gate` with Envoy, daemon and
bus, the agents, and the spans that they send to the daemon over OTLP.
"""

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.agent_runs import NODE, python_of, run_agent
from support.daemon_process import until
from support.heard import Heard
from support.outside_gates import gate_outside
from support.ports import free_port
from support.scripted_model import Reply, ScriptedModel

from controlplane.core.model.events import ProgramArrived, ProgramEnded, ReplyRead, ToolEnded, TurnEnded
from controlplane.daemon.otlp.receiver import OUTCOMES
from controlplane.gate.identity import identify
from controlplane.transport.endpoint import read_endpoint

BEGIN = "please begin"
LOOK: Reply = [("look", {"seconds": 0.2})]
FINISH: Reply = [("finish", {"message": "done"})]
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def shell(command: str, tool: str = "terminal") -> Reply:
    return [(tool, {"command": command})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """A run, and what is to be heard of it. Programs are numbered in the order of their first turn, from 0."""

    frameworks: str
    script: str
    replies: dict[str, list[Reply]]
    told: dict[str, Any] = field(default_factory=dict)
    name: str = ""  # of its program, where the agent does not make it up
    parents: tuple[int | None, ...] = (None,)
    calls: tuple[tuple[int, str], ...] = ()  # by program, as replies have them
    spans: tuple[tuple[int, str], ...] = ()  # tool calls that came over OTLP
    reports: tuple[tuple[int, str], ...] = ()  # and by an adapter
    ends: tuple[int, ...] = ()  # programs of whose end somebody told


def instrumented(agent: str, **more: Any) -> Agent:
    return Agent(
        frameworks="others",
        script="instrumented_run.py",
        replies={BEGIN: [LOOK, "done"]},
        told={"agent": agent, "program": agent},
        name=agent,
        calls=((0, "look"),),
        **more,
    )


AGENTS = {
    "openai": instrumented("openai", ends=(0,)),
    "openai-agents": instrumented("openai-agents", spans=((0, "look"),)),
    "LangGraph": instrumented("langgraph", spans=((0, "look"),)),
    "mini-swe-agent": Agent(
        frameworks="openhands",
        script="mini_swe_agent_run.py",
        replies={BEGIN: [shell("sleep 0.2", "bash"), shell(SUBMIT, "bash")]},
        calls=((0, "sleep"), (0, "echo")),
        reports=((0, "sleep"), (0, "echo")),
        ends=(0,),
    ),
    "OpenHands": Agent(
        frameworks="openhands",
        script="openhands_run.py",
        replies={BEGIN: [shell("sleep 0.2"), FINISH]},
        told={"adapter": False},
        calls=((0, "sleep"), (0, "finish")),
        spans=((0, "sleep"), (0, "finish")),
    ),
    "OpenHands with its adapter": Agent(
        frameworks="openhands",
        script="openhands_run.py",
        replies={
            BEGIN: [
                [("delegate", {"command": "spawn", "ids": ["maps"], "agent_types": ["helper"]})],
                [("delegate", {"command": "delegate", "tasks": {"maps": "look at maps"}})],
                FINISH,
            ],
            "look at maps": [shell("sleep 0.2"), FINISH],
        },
        parents=(None, 0),
        calls=((0, "delegate"), (0, "delegate"), (0, "finish"), (1, "finish"), (1, "sleep")),
        reports=((0, "delegate"), (0, "delegate"), (0, "finish"), (1, "finish"), (1, "sleep")),
        ends=(0, 1),
    ),
}


@dataclass(frozen=True, slots=True)
class Served:
    """A gate before the model, its daemon's bus, its page, and where it takes spans."""

    gate: str
    heard: Heard
    bus: str
    page: str
    otlp: str


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[ScriptedModel], Served]]:
    page, otlp = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config = tmp_path / "penstock.toml"
    config.write_text(f'[http]\nlisten = "{page}"\n[otlp]\nhttp = "{otlp}"\n')
    opened: list[Any] = []

    def serve(model: ScriptedModel) -> Served:
        options = ("--pool-tokens", "100000", "--node", NODE, "--config", str(config))
        opened.append(gate_outside(model.url.removesuffix("/v1"), tmp_path, tmp_path / "gate.log", *options))
        gate, _ = opened[0].__enter__()
        url = until(lambda: read_endpoint(NODE, tmp_path), "endpoint").url
        heard = Heard(url, NODE)
        opened.append(heard)
        until(lambda: "governed" in page_of(f"{gate}/penstock/health"), "gate that is governed")
        return Served(gate, heard, url, f"http://{page}", f"http://{otlp}/v1/traces")

    try:
        yield serve
    finally:
        if len(opened) > 1:
            opened[1].close()
        if opened:
            opened[0].__exit__(None, None, None)


def page_of(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_an_agents_programs_parents_tools_and_ends(
    name: str, served: Callable[[ScriptedModel], Served], tmp_path: Path
) -> None:
    agent = AGENTS[name]
    python = python_of(agent.frameworks)
    with ScriptedModel(agent.replies) as model:
        at = served(model)
        told = agent.told | {"message": BEGIN, "url": f"{at.gate}/v1", "workspace": str(tmp_path)}
        spans = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": at.otlp,
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        }
        run_agent(python, agent.script, told, at.bus if agent.reports else "", **(spans if agent.spans else {}))
        heard = at.heard
        turns = len(model.requests)
        heard.until(lambda: len(heard.of(TurnEnded)) == turns, "end of each turn")
        heard.until(lambda: len(heard.of(ToolEnded)) >= len(agent.spans + agent.reports), "tools")
        heard.until(lambda: len({*ended(heard)}) >= len(agent.ends), "ends")
        programs = list(dict.fromkeys(event.program_id for event in heard.of(TurnEnded)))
        number = {program: place for place, program in enumerate(programs)}

        assert not agent.name or programs == [agent.name]
        parents = {event.program_id: event.parent_id for event in heard.of(ProgramArrived)}
        assert tuple(number.get(parents.get(program, "")) for program in programs) == agent.parents
        calls = [(number[event.program_id], call.tool) for event in heard.of(ReplyRead) for call in event.calls]
        assert tuple(sorted(calls)) == tuple(sorted(agent.calls))
        for reported, by_span in ((agent.spans, True), (agent.reports, False)):
            events = [event for event in heard.of(ToolEnded) if bool(event.told_after_ns) is by_span]
            assert tuple(sorted((number[event.program_id], event.tool) for event in events)) == tuple(
                sorted(reported)
            )
            assert all(event.duration_ns > 0.2e9 for event in events if event.tool in ("sleep", "look"))
        assert {number[program] for program in ended(heard)} == set(agent.ends)
        metrics = page_of(f"{at.page}/metrics")
        counts = dict.fromkeys(OUTCOMES, 0) | {"taken": len(agent.spans)}
        told_of = re.findall(r'penstock_otlp_tool_spans_total\{outcome="(\w+)"\} (\d+)', metrics)
        assert {outcome: int(count) for outcome, count in told_of} == counts
        assert 'penstock_tools{state="active"} 0.0' in metrics


SENT = Path(__file__).parent / "harnesses" / "python.jsonl"
NAMES = {"openai": "run-1", "OpenHands": "00000000-0000-4000-8000-000000000000"}  # the others name nobody


def test_what_they_send_by_themselves_names_them_or_nobody() -> None:
    """Captures of their requests without their words, which are read wherever the agents are not."""
    for request in map(json.loads, SENT.read_text().splitlines()):
        headers = [(name.encode(), value.encode()) for name, value in request["headers"].items()]
        identity = identify(headers, request["body"])
        name = identity.hint if identity.anonymous else identity.program_id  # a cache key is a hint
        assert name == NAMES.get(request["harness"], "")


def ended(heard: Heard) -> list[str]:
    """Programs of whose end a client or an adapter told."""
    events = [*heard.of(ProgramEnded), *heard.of(ReplyRead, is_last=True)]
    return [event.program_id for event in events]

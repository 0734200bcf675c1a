"""A real OpenHands agent with real tools and a scripted model: what the bus hears beside what the clock says."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.agent_runs import (
    NODE,
    ImportedOnce,
    answers,
    environment,
    run_agent,
)
from support.daemon_process import TIMEOUT_S, running, until
from support.heard import Heard
from support.ports import free_port
from support.scripted_model import Reply, ScriptedModel

from controlplane.core.model.events import (
    HostSampled,
    ProgramArrived,
    ProgramEnded,
    ToolEnded,
    ToolEnqueued,
    ToolStarted,
)

TWO_CLOCKS_NS = 10_000_000  # the adapter's and the script's
CALLS = 3  # of a tool. A fourth that is alike is "stuck".
FINISH: Reply = [("finish", {"message": "done"})]


def bash(command: str) -> tuple[str, dict[str, Any]]:
    return "terminal", {"command": command, "security_risk": "LOW", "summary": "runs it"}


def create(path: Path) -> tuple[str, dict[str, Any]]:
    arguments = {
        "command": "create",
        "path": str(path),
        "file_text": "text\n",
        "security_risk": "LOW",
        "summary": "-",
    }
    return "file_editor", arguments


def matches_the_clock(heard: Heard, told: dict[str, Any], program: str, tool: str) -> None:
    """Each call was told of around its execution. A terminal's is told as what it runs."""
    clock = [one for one in told["tools"] if one["tool"] == tool]
    name = "sleep" if tool == "terminal" else tool
    started, ended = heard.of(ToolStarted, tool=name), heard.of(ToolEnded, tool=name)
    assert len(clock) == len(started) == len(ended) > 0
    assert {event.program_id for event in (*started, *ended)} == {program}
    are_in_order([event.at_ns for event in started], [one["began_ns"] for one in clock])
    are_in_order([one["ended_ns"] for one in clock], [event.at_ns for event in ended])
    are_in_order([one["ended_ns"] - one["began_ns"] for one in clock], [event.duration_ns for event in ended])


def are_in_order(before_ns: list[int], after_ns: list[int]) -> None:
    """Calls that run side by side may be told in another order."""
    pairs = list(zip(sorted(before_ns), sorted(after_ns), strict=True))
    assert all(before < after + TWO_CLOCKS_NS for before, after in pairs), pairs


@pytest.fixture(scope="module")
def openhands(agent_python: str) -> Iterator[ImportedOnce]:
    """Runs of the SDK, whose import takes longer than any of them; so does what its first request imports."""
    tools = ("terminal", "file_editor", "task", "task_tracker")
    modules = ["openhands.sdk", *(f"openhands.tools.{one}" for one in tools)]
    modules += ["openai.resources.beta.beta", "openai.resources.admin"]
    runs = ImportedOnce(agent_python, "openhands_run.py", *modules)
    yield runs
    runs.close()


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "workspace").mkdir()
    return {"workspace": str(tmp_path / "workspace"), "message": "please begin"}


def test_runs_and_tools_are_told_as_they_happen(
    openhands: ImportedOnce, nats_server: Any, heard: Heard, told: dict[str, Any], tmp_path: Path
) -> None:
    plan = {"command": "plan", "task_list": [{"title": "it", "notes": "", "status": "todo"}]}
    script: list[Reply] = [
        *[[bash(f"sleep 0.3{number} && echo slept")] for number in range(CALLS)],
        *[[create(tmp_path / "workspace" / f"new{number}.txt")] for number in range(CALLS)],
        [("task_tracker", {**plan, "security_risk": "LOW", "summary": "-"})],
        FINISH,
    ]
    with ScriptedModel({"please begin": script}) as model:
        said = openhands.run(told | {"url": model.url}, nats_server.url)
    program = said["conversation"]
    heard.until(lambda: bool(heard.of(ProgramEnded, program_id=program)), "end of the run")
    assert said["status"] == "finished"
    assert {request.program for request in model.requests} == {program}, "the engine knows it by the same name"
    called = [*["sleep"] * CALLS, *["file_editor"] * CALLS, "task_tracker", "finish"]
    assert [event.tool for event in heard.of(ToolEnqueued)] == called
    assert all(event.ok for event in heard.of(ToolEnded))
    matches_the_clock(heard, said, program, "terminal")
    matches_the_clock(heard, said, program, "file_editor")
    (arrived,), (ended,) = heard.of(ProgramArrived), heard.of(ProgramEnded)
    assert said["began_ns"] - TWO_CLOCKS_NS < arrived.at_ns < said["tools"][0]["began_ns"]
    assert said["tools"][-1]["ended_ns"] < ended.at_ns
    assert (ended.reason, said["failures"], said["dropped"]) == ("finished", {}, 0)


def test_parallel_tools_and_one_that_waits_for_them(
    openhands: ImportedOnce, nats_server: Any, heard: Heard, told: dict[str, Any], tmp_path: Path
) -> None:
    """Two at a time: the third is enqueued with them, and starts when one of them has ended."""
    script: list[Reply] = [
        [bash("sleep 0.4"), bash("sleep 0.6"), create(tmp_path / "workspace" / f"new{number}.txt")]
        for number in range(CALLS)
    ]
    with ScriptedModel({"please begin": [*script, FINISH]}) as model:
        asked = told | {"url": model.url, "parallel": 2}
        said = openhands.run(asked, nats_server.url)
    heard.until(lambda: bool(heard.of(ProgramEnded)), "end of the run")
    matches_the_clock(heard, said, said["conversation"], "terminal")
    matches_the_clock(heard, said, said["conversation"], "file_editor")
    enqueued, sleeps = heard.of(ToolEnqueued), heard.of(ToolStarted, tool="sleep")
    slept, waited = heard.of(ToolEnded, tool="sleep"), heard.of(ToolStarted, tool="file_editor")
    for number in range(CALLS):
        asked_for = enqueued[3 * number :][:3]
        first_end_ns = min(event.at_ns for event in slept[2 * number :][:2])
        assert asked_for[2].at_ns < first_end_ns
        assert sleeps[2 * number + 1].at_ns < first_end_ns, "side by side"
        assert waited[number].at_ns >= first_end_ns


def test_tools_wait_for_a_slot_of_the_host(
    openhands: ImportedOnce, nats_server: Any, heard: Heard, told: dict[str, Any], tmp_path: Path
) -> None:
    """The agent would run two at a time; the daemon has one slot."""
    config = "[host]\ncpus = 1\n[control.tool_slots]\nper_cpu = 1\nbusy = 0\n"
    with running(tmp_path, "--nats", nats_server.url, config=config, node=NODE):
        heard.until(lambda: bool(heard.of(HostSampled)), "daemon")
        script: list[Reply] = [[bash(f"sleep 0.3{number}"), bash(f"sleep 0.4{number}")] for number in range(CALLS)]
        with ScriptedModel({"please begin": [*script, FINISH]}) as model:
            asked = told | {"url": model.url, "parallel": 2}
            said = openhands.run(asked, nats_server.url, PENSTOCK_TOOL_SLOTS="on")
        heard.until(lambda: bool(heard.of(ProgramEnded)), "end of the run")
    assert said["status"] == "finished"
    calls = sorted((one for one in said["tools"]), key=lambda one: one["began_ns"])
    for first, second in zip(calls[::2], calls[1::2], strict=True):
        assert second["began_ns"] >= first["ended_ns"], "one after the other"
    matches_the_clock(heard, said, said["conversation"], "terminal")


def test_a_command_that_names_no_time_is_given_one_and_text_is_clean(
    openhands: ImportedOnce, nats_server: Any, heard: Heard, told: dict[str, Any], tmp_path: Path
) -> None:
    """MARS §5: default timeouts and argument sanitization."""
    editor, written = create(tmp_path / "workspace" / "new.txt")
    script: list[Reply] = [[(editor, written | {"file_text": "cle\0an\n"})], [bash("sleep 20")], FINISH]
    bounds = {"PENSTOCK_TOOL_TIMEOUT_S": "1.5", "PENSTOCK_TOOL_CLEAN": "on"}
    for tries in range(1, 6):  # on a busy machine the terminal may take an earlier prompt for the command's end
        (tmp_path / "workspace" / "new.txt").unlink(missing_ok=True)
        with ScriptedModel({"please begin": script}) as model:
            asked = told | {"url": model.url, "terminal": "subprocess"}  # in tmux it loses more of them
            said = openhands.run(asked, nats_server.url, **bounds)
        heard.until(lambda tries=tries: len(heard.of(ProgramEnded)) >= tries, "end of the run")
        assert (said["status"], said["failures"]) == ("finished", {})
        assert (tmp_path / "workspace" / "new.txt").read_text() == "clean\n"
        ended = heard.of(ToolEnded, tool="sleep")[-1]
        if ended.duration_ns >= 1.5e9:
            break
    assert 1.5e9 <= ended.duration_ns < 15e9
    assert "timed out after 1.5 seconds" in str(model.requests[2].body)


def test_a_sub_agent_is_a_child_of_the_run_whose_tool_it_is(
    openhands: ImportedOnce, nats_server: Any, heard: Heard, told: dict[str, Any]
) -> None:
    task = {"prompt": "help with it", "subagent_type": "helper", "description": "help"}
    scripts: dict[str, list[Reply]] = {
        "please begin": [[("task", {**task, "security_risk": "LOW", "summary": "-"})], FINISH],
        "help with it": [*[[bash(f"sleep 0.2{number}")] for number in range(CALLS)], FINISH],
    }
    with ScriptedModel(scripts) as model:
        said = openhands.run(told | {"url": model.url}, nats_server.url)
    parent = said["conversation"]
    heard.until(lambda: bool(heard.of(ProgramEnded, program_id=parent)), "end of the run")
    arrived = {event.program_id: event for event in heard.of(ProgramArrived)}
    (child,) = set(arrived) - {parent}
    assert (arrived[parent].parent_id, arrived[child].parent_id) == ("", parent)
    assert {request.program for request in model.requests} == {parent, child}
    (began,), (ended,) = heard.of(ToolStarted, tool="task"), heard.of(ToolEnded, tool="task")
    (child_ended,) = heard.of(ProgramEnded, program_id=child)
    assert began.at_ns < arrived[child].at_ns < child_ended.at_ns < ended.at_ns
    matches_the_clock(heard, said, child, "terminal")


def test_sub_agents_that_are_sent_side_by_side_are_children_whom_one_tool_waits_for(
    openhands: ImportedOnce, nats_server: Any, heard: Heard, told: dict[str, Any]
) -> None:
    more = {"security_risk": "LOW", "summary": "-"}
    spawn = {"command": "spawn", "ids": ["maps", "roads"], "agent_types": ["helper", "helper"], **more}
    delegate = {"command": "delegate", "tasks": {"maps": "look at maps", "roads": "look at roads"}, **more}
    scripts: dict[str, list[Reply]] = {
        "please begin": [[("delegate", spawn)], [("delegate", delegate)], FINISH],
        "look at maps": [[bash("sleep 0.2")], FINISH],
        "look at roads": [[bash("sleep 0.3")], FINISH],
    }
    with ScriptedModel(scripts) as model:
        said = openhands.run(told | {"url": model.url}, nats_server.url)
    parent = said["conversation"]
    assert (said["status"], said["failures"]) == ("finished", {})
    heard.until(lambda: bool(heard.of(ProgramEnded, program_id=parent)), "end of the run")
    arrived = {event.program_id: event for event in heard.of(ProgramArrived)}
    children = set(arrived) - {parent}
    assert {name: event.parent_id for name, event in arrived.items()} == {
        parent: "",
        **dict.fromkeys(children, parent),
    }
    assert len(children) == 2
    assert {request.program for request in model.requests} == {parent, *children}
    began, ended = heard.of(ToolStarted, tool="delegate")[1], heard.of(ToolEnded, tool="delegate")[1]
    ends = [event for event in heard.of(ProgramEnded) if event.program_id in children]
    assert all(began.at_ns < arrived[child].at_ns for child in children)
    assert all(event.at_ns < ended.at_ns for event in ends)
    assert len(ends) == 2


def test_an_attempt_that_fails_is_made_again_under_the_same_name(
    openhands: ImportedOnce, nats_server: Any, heard: Heard, told: dict[str, Any]
) -> None:
    with ScriptedModel({"please begin": [FINISH]}, failures=[500]) as model:
        said = openhands.run(told | {"url": model.url}, nats_server.url)
    assert (said["status"], len(model.requests)) == ("finished", 2)
    assert {request.program for request in model.requests} == {said["conversation"]}


TWICE: list[Reply] = [[bash("echo one")], [bash("echo two")], FINISH]


@pytest.fixture(scope="module")
def events_without_adapter(openhands: ImportedOnce, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the agent does where there is no Penstock."""
    asked = {"workspace": str(tmp_path_factory.mktemp("bare")), "message": "please begin", "adapter": False}
    with ScriptedModel({"please begin": TWICE}) as model:
        said = openhands.run(asked | {"url": model.url}, "")
    events: list[str] = said["events"]
    return events


@pytest.mark.parametrize("trouble", ["bus down", "every report fails", "SDK moved"])
def test_an_agent_runs_on_whatever_becomes_of_its_reports(
    openhands: ImportedOnce, nats_server: Any, told: dict[str, Any], trouble: str, events_without_adapter: list[str]
) -> None:
    asked = {"broken": trouble == "every report fails", "moved": trouble == "SDK moved"}
    url = "nats://127.0.0.1:9" if trouble == "bus down" else nats_server.url
    with ScriptedModel({"please begin": TWICE}) as model:
        said = openhands.run(told | {"url": model.url} | asked, url)
    assert said["events"] == events_without_adapter
    assert bool(said["failures"]) is (trouble == "every report fails"), "each was caught and counted"
    if trouble == "SDK moved":
        assert "_execute_action_event" in said["stderr"]
        assert "nothing is reported" in said["stderr"]


@pytest.fixture
def agent_server(agent_python: str, nats_server: Any, tmp_path: Path) -> Iterator[str]:
    """The agent server as its users start it, with the adapter among the modules that it imports."""
    port = free_port()
    command = [agent_python, "-m", "openhands.agent_server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--import-modules", "engine_hooks.tools.openhands"]
    home = {"HOME": str(tmp_path), "OH_CONVERSATIONS_PATH": str(tmp_path / "conversations")}
    log = tmp_path / "agent-server.log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            command, env=environment(nats_server.url) | home, stdout=file, stderr=file, cwd=tmp_path
        )
    url = f"http://127.0.0.1:{port}"
    try:
        until(lambda: answers(f"{url}/health"), f"agent server; its log: {log}")
        yield url
    except AssertionError as error:
        raise AssertionError(f"{error}\n{log.read_text()[-4000:]}") from None
    finally:
        server.terminate()
        server.wait(TIMEOUT_S)


def test_an_agent_server_reports_its_conversations(
    agent_python: str, nats_server: Any, heard: Heard, told: dict[str, Any], agent_server: str
) -> None:
    scripts: dict[str, list[Reply]] = {
        "Generate a title": ["A title"],
        "please begin": [[bash("sleep 0.3 && echo slept")], FINISH],
    }
    with ScriptedModel(scripts) as model:
        asked = told | {"url": model.url, "server": agent_server}
        said = run_agent(agent_python, "openhands_remote_run.py", asked, nats_server.url)
    program = said["conversation"]
    assert said["status"] == "finished"
    heard.until(lambda: bool(heard.of(ProgramEnded, program_id=program)), "end of the run")
    (started,), (ended,) = heard.of(ToolStarted, tool="sleep"), heard.of(ToolEnded, tool="sleep")
    assert started.program_id == ended.program_id == program
    assert ended.duration_ns > 0.3e9
    turns = [request for request in model.requests if request.program == program]
    assert len(turns) == 2, "the request for a title is no turn of the conversation"
    assert turns[0].at_ns < started.at_ns < ended.at_ns < turns[1].at_ns

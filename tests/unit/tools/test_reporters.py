"""Whoever reports: what becomes of a long tool, of a reporter that is gone, of children, of a wait for a person."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from support.core_driver import Driver, Publisher, of
from support.reports import Reports

from controlplane.core.model.commands import StateRequest
from controlplane.core.model.types import Status
from controlplane.emit import tool_reporter
from controlplane.tool_calls.claude_code import events_of
from engine_hooks.tools.mcp_session import Owner, Session

ROOT, CHILD, TOOL = "session", "session/a1", "make"


class Sdk:
    """A ``ToolReporter`` in the agent's process, on the bus or a socket: while it lives it answers."""

    can_be_asked = True

    def __init__(self, driver: Driver, name: str) -> None:
        self.driver, self.lives = driver, True
        self.to, self.publisher = Reports(), Publisher(f"node/tool/{name}")

    def send(self) -> None:
        for event in self.to.events:
            values = {name: getattr(event, name) for name in event.__dataclass_fields__}
            del values["publisher"], values["sequence"]
            self.driver.send(self.publisher(type(event), **values))
        self.to.events.clear()

    def answer(self) -> None:
        self.to.events.append(self.to._state())
        self.send()

    def asks_a_person(self) -> None:
        self.to.tool_enqueued(ROOT, "c", TOOL)
        self.send()

    def starts(self, program: str = ROOT) -> None:
        self.to.tool_started(program, "c", TOOL)
        self.send()

    def ends(self, took_s: float) -> None:
        self.to.tool_ended(ROOT, "c")
        self.send()

    def child_begins(self) -> None:
        self.to.program_started(CHILD, parent_id=ROOT)
        self.send()

    def child_ends(self) -> None:
        self.to.program_ended(CHILD)
        self.send()

    def says_goodbye(self) -> None:
        self.to.program_ended(ROOT)
        self.send()


class Mcp(Sdk):
    """A proxy before an MCP server: it sees calls alone; runs are its client's to report."""

    def __init__(self, driver: Driver, name: str) -> None:
        super().__init__(driver, name)
        self.session = Session(self.to, Owner(self.to, ROOT))

    def asks_a_person(self) -> None:
        """The client calls once it may."""

    def starts(self, program: str = ROOT) -> None:
        parameters = {"name": TOOL, "_meta": {"program_id": program}}
        call = {"id": 1, "method": "tools/call", "params": parameters}
        self.session.from_client(json.dumps(call).encode(), 0.0)
        self.send()

    def ends(self, took_s: float) -> None:
        self.session.from_server(b'{"id": 1, "result": {}}')
        self.send()


class Hook(Sdk):
    """Claude Code's hooks, in the daemon's name: nobody is there to be asked."""

    can_be_asked = False

    def hook(self, kind: str, **more: Any) -> None:
        data = {"session_id": ROOT, "hook_event_name": kind, **more}
        self.to.events += events_of(json.dumps(data).encode())
        self.send()

    def tool(self, kind: str, **more: Any) -> None:
        self.hook(kind, tool_name="Bash", tool_use_id="c", tool_input={"command": "make -j"}, **more)

    def asks_a_person(self) -> None:
        self.tool("PreToolUse")

    def starts(self, program: str = ROOT) -> None:
        self.tool("PreToolUse", **({"agent_id": "a1"} if program == CHILD else {}))

    def ends(self, took_s: float) -> None:
        self.tool("PostToolUse", duration_ms=took_s * 1000)

    def child_begins(self) -> None:
        self.hook("SubagentStart", agent_id="a1")

    def child_ends(self) -> None:
        self.hook("SubagentStop", agent_id="a1")

    def says_goodbye(self) -> None:
        self.hook("Stop")


REPORTERS = {"sdk": (Sdk, "boot"), "mcp": (Mcp, "proxy"), "hook": (Hook, "hooks-1")}


@pytest.fixture(params=REPORTERS)
def reporter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sdk:
    """On a node that knows the tool to take a second, and gaps to be as short."""
    kind, name = REPORTERS[request.param]
    driver = Driver()
    clock = SimpleNamespace(monotonic_ns=lambda: driver.now_ns, monotonic=lambda: driver.now_ns / 1e9)
    monkeypatch.setattr(tool_reporter, "time", clock)
    for number in range(60):
        driver.run_turn("before", f"before.{number}", tool=TOOL)
        driver.start_tool("before", tool=TOOL)
        driver.wait(1)
        driver.end_tool("before", tool=TOOL)
    driver.run_turn(ROOT, tool=TOOL)
    return kind(driver, name)


def passes(reporter: Sdk, for_s: float) -> list[str]:
    """Time goes by; the publishers that are asked meanwhile. The reporter answers while it can."""
    driver, asked = reporter.driver, []
    for _ in range(int(for_s / 2)):
        for command in of(StateRequest, driver.tick(2)):
            asked.append(command.publisher)
            if command.publisher == reporter.publisher.name and reporter.lives and reporter.can_be_asked:
                reporter.answer()
    return asked


def longest_s(driver: Driver) -> float:
    return float(driver.ledger.estimates.tools[TOOL].all.ascending[-1] / 1e9)


def test_a_tool_of_ten_minutes_runs_until_its_end(reporter: Sdk) -> None:
    driver = reporter.driver
    reporter.starts()
    asked = passes(reporter, 600)
    assert (reporter.publisher.name in asked) == reporter.can_be_asked
    assert (driver.program(ROOT).open_tools, driver.program(ROOT).status) == (1, Status.ACTIVE)
    reporter.ends(600)
    assert driver.program(ROOT).open_tools == 0
    assert longest_s(driver) == pytest.approx(600)


def test_who_is_killed_is_forgotten_and_who_was_short_lived_is_not(reporter: Sdk) -> None:
    reporter.starts()
    reporter.lives = False
    passes(reporter, 300)
    assert len(reporter.driver.ledger.tools.calls) == (0 if reporter.can_be_asked else 1)
    passes(reporter, 3400)
    assert reporter.driver.ledger.tools.calls == {}, "nothing is for ever"


@pytest.mark.parametrize("busy", ["turn", "tool", "between"])
def test_a_session_that_ends_waits_for_its_children(reporter: Sdk, busy: str) -> None:
    driver = reporter.driver
    reporter.child_begins()
    driver.submit(CHILD)
    if busy != "turn":
        driver.finish(CHILD, calls=1)
    if busy == "tool":
        reporter.starts(CHILD)
    reporter.says_goodbye()
    passes(reporter, 6 if busy == "between" else 30)
    assert [driver.program(name).status for name in (ROOT, CHILD)] == [Status.ACTIVE, Status.ACTIVE]
    if busy == "turn":
        driver.finish(CHILD, calls=0)
    reporter.child_ends()
    passes(reporter, 16)
    assert driver.program(ROOT).status is Status.ENDED


def test_a_persons_permission_is_no_time_of_the_tool(reporter: Sdk) -> None:
    driver = reporter.driver
    reporter.asks_a_person()
    driver.wait(300)
    if reporter.can_be_asked:
        reporter.starts()
    driver.wait(2)
    reporter.ends(2)
    assert longest_s(driver) == pytest.approx(2)


def test_a_silent_process_leaves_no_name_behind(reporter: Sdk) -> None:
    names = reporter.driver.ledger.publishers.sequences
    reporter.starts()
    reporter.ends(1)
    assert reporter.publisher.name in names
    passes(reporter, 3800)
    assert reporter.publisher.name not in names


# Claude Code's own stories: hooks, and turns of the session between them. How many of its tools run in the end.

PRE, POST = ("PreToolUse", {}), ("PostToolUse", {"duration_ms": 5})
TURN, LAST, ASIDE = ("turn", {"calls": 1}), ("turn", {"calls": 0}), ("turn", {"calls": -1})
SHELL = {"id": "b1", "type": "shell", "status": "running", "command": "npm run dev"}
IN_BACKGROUND = {"background_tasks": [SHELL, {"id": "a1", "type": "subagent", "status": "running"}]}


def of_call(step: tuple[str, dict[str, Any]], call: str) -> tuple[str, dict[str, Any]]:
    return step[0], {**step[1], "tool_use_id": call}


STORIES: dict[str, tuple[Sequence[tuple[str, dict[str, Any]]], int, Status]] = {
    "it runs": ([TURN, PRE], 1, Status.ACTIVE),
    "it ends": ([TURN, PRE, POST], 0, Status.ACTIVE),
    "its end is heard first": ([TURN, POST, PRE], 0, Status.ACTIVE),
    "calls are numbered anew each turn": ([TURN, PRE, POST, TURN, PRE], 1, Status.ACTIVE),
    "two at once": ([TURN, PRE, of_call(PRE, "d"), POST], 1, Status.ACTIVE),
    "a person said no, and it goes on": ([TURN, PRE, TURN], 0, Status.ACTIVE),
    "a request aside says nothing": ([TURN, PRE, ASIDE], 1, Status.ACTIVE),
    "a person said no, and it is done": ([TURN, PRE, LAST, ("Stop", {})], 0, Status.ACTIVE),
    "a rule said no": ([TURN, PRE, ("PermissionDenied", {})], 0, Status.ACTIVE),
    "it was interrupted": ([TURN, PRE, ("PostToolUseFailure", {"is_interrupt": True})], 0, Status.ACTIVE),
    "it stops, and nobody goes on": ([LAST, ("Stop", {}), ("wait", {"s": 8})], 0, Status.ENDED),
    "a hook of Stop wants it to go on": ([LAST, ("Stop", {}), TURN, ("wait", {"s": 8})], 0, Status.ACTIVE),
    "tasks run on": ([LAST, ("Stop", IN_BACKGROUND), ("wait", {"s": 600})], 1, Status.ACTIVE),
    "tasks are over": ([LAST, ("Stop", IN_BACKGROUND), LAST, ("Stop", {})], 0, Status.ACTIVE),
    "the process ends with what ran": ([TURN, PRE, ("SessionEnd", {"reason": "exit"})], 0, Status.ENDED),
}


@pytest.mark.parametrize("story", STORIES)
def test_what_claude_code_does(story: str) -> None:
    steps, tools, status = STORIES[story]
    driver = Driver()
    hook = Hook(driver, "hooks-1")
    for number, (kind, more) in enumerate(steps):
        driver.tick(0.1)
        if kind == "turn":
            driver.submit(ROOT, f"t{number}")
            driver.tick(0.1)
            driver.finish(ROOT, f"t{number}", **more)
        elif kind == "wait":
            passes(hook, more["s"])
        elif kind in ("Stop", "SessionEnd"):
            hook.hook(kind, **more)
        else:
            hook.hook(kind, **{"tool_name": "Bash", "tool_use_id": "c", "tool_input": {"command": "make"}, **more})
    driver.tick(0.1)
    assert (driver.program(ROOT).open_tools, driver.program(ROOT).status) == (tools, status)
    assert driver.counts.contradictions == 0


def test_a_root_that_goes_on_after_its_end_is_the_same_program_with_its_children() -> None:
    driver = Driver()
    hook = Hook(driver, "hooks-1")
    driver.run_turn(ROOT, calls=0)
    hook.child_begins()
    driver.run_turn(CHILD, calls=0)
    hook.says_goodbye()
    passes(hook, 20)
    assert driver.program(ROOT).status is Status.ENDED
    driver.ask(ROOT, "next")
    assert driver.admitted() == [ROOT]
    assert (driver.program(ROOT).turn_index, driver.program(CHILD).root_id) == (1, ROOT)
    driver.run_turn(ROOT, "next", calls=0)
    hook.says_goodbye()
    passes(hook, 1800)  # the person thinks
    driver.ask(ROOT, "third")
    assert (driver.admitted(), driver.program(ROOT).turn_index) == ([ROOT], 2)
    driver.run_turn(ROOT, "third", calls=0)
    hook.says_goodbye()
    passes(hook, 3800)
    assert driver.ledger.programs.by_name == {}


NOT_LEARNED: list[dict[str, Any]] = [
    {},  # before 2.1.119
    {"duration_ms": True},
    {"duration_ms": -1},
    {"duration_ms": 7, "tool_name": "Task"},
    {"duration_ms": 7, "tool_name": "AskUserQuestion"},
    {"duration_ms": 7, "tool_input": {"command": "make", "run_in_background": True}},
]


@pytest.mark.parametrize("more", NOT_LEARNED)
def test_what_is_not_the_tools_own_time_is_not_learned(more: dict[str, Any]) -> None:
    hook = {"session_id": "s", "hook_event_name": "PostToolUse", "tool_use_id": "c", "tool_name": "Bash", **more}
    (ended,) = events_of(json.dumps(hook).encode())
    assert ended.duration_ns == 0  # type: ignore[attr-defined]

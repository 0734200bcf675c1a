"""What a reporter says of runs and calls; the emitter below it is not started, and its queue is read."""

import asyncio
import os
import threading
import time

import pytest
from support.reports import Reports

from controlplane.core.model.commands import StartTool
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import (
    OpenTool,
    ProgramArrived,
    ProgramEnded,
    ToolEnded,
    ToolEnqueued,
    ToolStarted,
)
from controlplane.emit import slot_wait
from controlplane.emit.tool_reporter import ToolReporter


def test_a_call_is_told_from_its_asking_to_its_end() -> None:
    reports = Reports()
    reports.program_started("run", parent_id="parent", tenant="team")
    reports.tool_enqueued("run", "call", "bash")
    reports.tool_started("run", "call", "bash")
    reports.tool_ended("run", "call", ok=False)
    reports.program_ended("run", "finished")
    ended = reports.events.pop(3)
    assert isinstance(ended, ToolEnded)
    assert (ended.tool, ended.ok) == ("bash", False)
    assert 0 < ended.duration_ns < 1e9
    assert reports.events == [
        ProgramArrived(program_id="run", parent_id="parent", tenant="team"),
        ToolEnqueued(program_id="run", call_id="call", tool="bash"),
        ToolStarted(program_id="run", call_id="call", tool="bash"),
        ProgramEnded(program_id="run", reason="finished"),
    ]


def test_what_is_told_twice_or_out_of_order_is_told_once() -> None:
    reports = Reports()
    reports.tool_ended("run", "never began")
    reports.tool_started("run", "call", "bash")
    reports.tool_enqueued("run", "call", "bash")
    reports.tool_started("run", "call", "bash")
    reports.tool_ended("run", "call")
    reports.tool_ended("run", "call")
    assert [type(event) for event in reports.events] == [ToolStarted, ToolEnded]


def test_a_call_that_never_ran_took_no_time() -> None:
    reports = Reports()
    reports.tool_enqueued("run", "refused", "bash")
    reports.tool_ended("run", "refused", ok=False)
    assert isinstance(ended := reports.events[-1], ToolEnded)
    assert ended.duration_ns == 0


def test_a_run_takes_its_open_calls_with_it() -> None:
    reports = Reports()
    reports.tool_started("run", "one", "bash")
    reports.tool_enqueued("run", "two", "bash")
    reports.tool_started("another", "one", "bash")
    reports.program_ended("run")
    assert [type(event) for event in reports.events[3:]] == [ToolEnded, ToolEnded, ProgramEnded]
    assert reports._state().open_tools == (
        OpenTool(program_id="another", call_id="one", tool="bash", started=True),
    )


def test_empty_names_are_not_told() -> None:
    reports = Reports()
    reports.program_started("")
    reports.program_ended("")
    reports.tool_enqueued("", "call", "bash")
    reports.tool_started("run", "", "bash")
    reports.tool_started("run", "call", "")
    assert reports.events == []


def test_a_child_process_does_not_report_its_parents_calls() -> None:
    reports = Reports()
    reports.tool_started("run", "call", "bash")
    child = os.fork()
    if child == 0:
        os._exit(len(reports._state().open_tools))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(reports._state().open_tools) == 1


def test_many_threads_report_at_once() -> None:
    reports = Reports()

    def work(number: int) -> None:
        for call in range(200):
            reports.tool_enqueued(f"run-{number}", f"{call}", "bash")
            reports.tool_started(f"run-{number}", f"{call}", "bash")
            reports._state()
            reports.tool_ended(f"run-{number}", f"{call}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(reports.events) == 8 * 200 * 3
    assert reports._state().open_tools == ()


def test_a_bad_name_of_the_node_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="node"):
        ToolReporter(url="unix:/nowhere", node="no name")


def test_a_disabled_reporter_starts_nothing() -> None:
    reporter = ToolReporter(url="", node="test", enabled=False)
    before = threading.active_count()
    reporter.tool_started("run", "call", "bash")
    reporter.close()
    assert (threading.active_count(), reporter.stats.queued) == (before, 0)


# Slots of the host


def test_a_call_waits_until_it_is_told_that_the_host_has_room() -> None:
    reports = Reports(slots=True)
    reports.tool_enqueued("run", "call", "bash")
    answer = threading.Timer(0.05, reports._obey, [StartTool(program_id="run", call_id="call")])
    answer.start()
    reports._last_seen_s = time.monotonic()
    reports.wait_for_slot("run", "call", "bash")
    reports.tool_started("run", "call", "bash")
    answer.join()
    assert reports.events == [
        ToolEnqueued(program_id="run", call_id="call", tool="bash"),
        ToolEnqueued(program_id="run", call_id="call", tool="bash", wants_slot=True),
        ToolStarted(program_id="run", call_id="call", tool="bash"),
    ]
    assert reports.unanswered == 0
    reports._obey(StartTool(program_id="run", call_id="call"))  # told again, for nothing
    reports._obey(StartTool(program_id="run", call_id="unknown"))


def test_a_call_that_waits_is_in_the_state_with_its_question() -> None:
    reports = Reports(slots=True)
    asked = reports._ask("run", "call", "bash")
    assert asked is not None
    assert reports._ask("run", "call", "bash") is None, "once"
    (waiting,) = reports._state().open_tools
    assert (waiting.started, waiting.wants_slot) == (False, True)
    reports.tool_started("run", "call", "bash")
    (running,) = reports._state().open_tools
    assert (running.started, running.wants_slot) == (True, False)
    assert reports._ask("run", "call", "bash") is None, "it runs"


def test_a_call_that_nobody_answers_starts_without_and_is_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slot_wait, "_SILENT_S", 0.02)
    monkeypatch.setattr(slot_wait, "_LOOK_S", 0.01)
    reports = Reports(slots=True)
    for call in ("one", "two"):
        reports.wait_for_slot("run", call, "bash")
    asyncio.run(reports.until_slot("run", "three", "bash"))
    assert reports.unanswered == 3
    assert [record.message for record in caplog.records] == [
        "penstock: nobody says that the host has room for a tool: it starts without"
    ]


async def test_a_thread_with_an_event_loop_is_not_held_up() -> None:
    reports = Reports(slots=True)

    reports.wait_for_slot("run", "call", "bash")
    assert reports.events == []


async def test_without_slots_nobody_waits_or_asks() -> None:
    reports = Reports()
    reports.wait_for_slot("run", "call", "bash")
    await reports.until_slot("run", "call", "bash")
    assert reports.events == []


def test_nobody_is_silent_before_anybody_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy host, where slots matter most, a process imports its client for longer than silence may last."""
    monkeypatch.setattr(slot_wait, "_SILENT_S", 0.1)
    monkeypatch.setattr(slot_wait, "_LOOK_S", 0.01)
    loaded = threading.Event()

    def url() -> str:
        loaded.wait(60)
        raise RuntimeError("no such place")

    reporter = ToolReporter(url=url, node="n", slots=True)
    waiting = threading.Thread(target=reporter.wait_for_slot, args=("run", "call", "bash"), daemon=True)
    waiting.start()
    waiting.join(1.0)
    assert waiting.is_alive(), "it is not asked yet"
    loaded.set()
    waiting.join(60)
    assert not waiting.is_alive(), "nobody answers"
    assert reporter.unanswered == 1
    reporter.close()

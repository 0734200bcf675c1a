"""What the OpenHands adapter tells of children, and when. The SDK's objects are doubles."""

from types import SimpleNamespace
from typing import Any

from engine_hooks.tools.openhands import Reports


class Told:
    """A reporter that writes down which runs began."""

    def __init__(self) -> None:
        self.began: list[tuple[str, str, bool]] = []

    def program_started(self, program_id: str, *, parent_id: str = "", aside: bool = False) -> None:
        self.began.append((program_id, parent_id, aside))

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: None


def conversation(name: str) -> Any:
    return SimpleNamespace(id=name, get_llm_call_context=lambda: SimpleNamespace(session_id=name))


def test_a_sub_agents_run_is_announced_before_its_first_request() -> None:
    told = Told()
    reports = Reports(told)  # type: ignore[arg-type]
    parent, child = conversation("parent"), conversation("child")
    call = SimpleNamespace(tool_call_id="c1", id="c1", tool_name="task", action=None)
    reports.run_begins((parent,), {})
    kept = reports.tool_begins((None, parent, call), {})
    reports.made(None, (child,), None, None)
    reports.run_begins((child,), {})
    reports.tool_ends(kept, (), [], None)
    reports.run_begins((conversation("next"),), {})
    assert told.began == [("parent", "", False), ("child", "parent", False), ("next", "", False)]


def test_a_request_for_a_title_is_announced_as_one_that_nobody_waits_for() -> None:
    told = Told()
    reports = Reports(told)  # type: ignore[arg-type]
    kwargs: dict[str, Any] = {"extra_headers": {"x-litellm-session-id": "parent"}}
    reports.name_the_aside((), kwargs)
    assert told.began == [], "a turn of the conversation"
    kept = reports.title_begins((), {})
    reports.name_the_aside((), kwargs)
    reports.title_ends(kept, (), None, None)
    assert told.began == [("parent/title", "parent", True)]
    assert kwargs["extra_headers"]["x-penstock-program-id"] == "parent/title"
    assert kwargs["extra_headers"]["x-penstock-parent-id"] == "parent"

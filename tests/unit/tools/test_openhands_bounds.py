"""What OpenHands' tools are called with; the agent itself is in tests/agents."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
from support.reports import Reports as Sent

from engine_hooks.tools.openhands import Reports


@dataclass(frozen=True)
class Command:
    """A double of the SDK's terminal action, a pydantic model."""

    model_fields: ClassVar[dict[str, Any]] = {"command": None, "timeout": None}
    command: str
    timeout: float | None = None

    def model_copy(self, *, update: dict[str, Any]) -> "Command":
        return replace(self, **update)


@dataclass(frozen=True)
class Look:
    """One that takes no time."""

    model_fields: ClassVar[dict[str, Any]] = {"path": None}
    path: str


def bounded(action: object, monkeypatch: pytest.MonkeyPatch, **variables: str) -> Any:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Reports(Sent()).bounded(action)


def test_a_command_without_a_time_is_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bounded(Command("make"), monkeypatch, PENSTOCK_TOOL_TIMEOUT_S="90") == Command("make", 90)


def test_a_time_that_the_model_names_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Command("make", 600)
    assert bounded(own, monkeypatch, PENSTOCK_TOOL_TIMEOUT_S="90") is own


def test_an_action_that_takes_no_time_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Look("a\0")
    assert bounded(look, monkeypatch, PENSTOCK_TOOL_TIMEOUT_S="90") is look


def test_text_is_cleaned_in_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Command("ls\0 -l")
    assert bounded(said, monkeypatch, PENSTOCK_TOOL_CLEAN="on") == Command("ls -l")
    assert said == Command("ls\0 -l"), "the conversation keeps what the model said"

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


MAKE, LOOK, NUL = Command("make", 600), Look("a\0"), Command("ls\0 -l")
BOUNDED: dict[str, tuple[Any, dict[str, str], Any]] = {
    "without a time it is given one": (Command("make"), {"PENSTOCK_TOOL_TIMEOUT_S": "90"}, Command("make", 90)),
    "a time that the model names is its own": (MAKE, {"PENSTOCK_TOOL_TIMEOUT_S": "90"}, MAKE),
    "what takes no time is left alone": (LOOK, {"PENSTOCK_TOOL_TIMEOUT_S": "90"}, LOOK),
    "text is cleaned in a copy": (NUL, {"PENSTOCK_TOOL_CLEAN": "on"}, Command("ls -l")),
}


@pytest.mark.parametrize("row", BOUNDED)
def test_what_an_action_becomes(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    action, variables, expected = BOUNDED[row]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    before = replace(action)
    bounded = Reports(Sent()).bounded(action)
    assert bounded == expected
    assert bounded is action or expected is not action
    assert action == before, "the conversation keeps what the model said"

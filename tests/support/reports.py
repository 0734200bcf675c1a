"""A double of the way out of a ``ToolReporter``: reports are kept instead of sent."""

from typing import Any

from controlplane.core.model.events import Event
from controlplane.emit.tool_reporter import ToolReporter


class Reports(ToolReporter):
    """``events``: what would have been sent, in order."""

    def __init__(self, **options: Any) -> None:
        super().__init__(url="unix:/nowhere", node="test", **options)
        self.events: list[Event] = []

    def _emit(self, event: Event, urgent: bool = False) -> None:
        self.events.append(event)

"""Which program a span is of: by its conversation, by the call that a reply had, or by the trace of a turn."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from controlplane.core.ledger import Ledger
from controlplane.core.model.commands import Command
from controlplane.core.model.events import Event, ReplyRead, TurnQueued, TurnSubmitted
from controlplane.daemon.otlp.spans import ToolSpan

_MOST_CALLS = 32_768
_MOST_TRACES = 16_384
_MOST_PROGRAMS = 8  # of a trace


class SpanPrograms:
    """A recorder of what turns tell of calls and traces: the latest of either."""

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger
        self._calls: OrderedDict[str, tuple[str, str]] = OrderedDict()  # program and tool; empty: of several
        self._traces: OrderedDict[str, dict[str, None]] = OrderedDict()  # programs

    def event(self, event: Event, now_ns: int) -> None:
        """Something happened."""
        if isinstance(event, ReplyRead):
            for call in event.calls:
                known = self._calls.pop(call.call_id, None)
                is_new = known is None or known[0] == event.program_id
                self._calls[call.call_id] = (event.program_id, call.tool) if is_new else ("", "")
            _shorten(self._calls, _MOST_CALLS)
        elif isinstance(event, TurnQueued | TurnSubmitted) and event.trace:
            _, _, rest = event.trace.partition("-")  # W3C's: version, trace, span, flags
            trace_id = rest.partition("-")[0].lower()
            programs = self._traces[trace_id] = self._traces.pop(trace_id, {})
            if len(programs) < _MOST_PROGRAMS:
                programs[event.program_id] = None
            _shorten(self._traces, _MOST_TRACES)

    def tick(self, now_ns: int) -> None:
        """Nothing."""

    def command(self, command: Command, now_ns: int) -> None:
        """Nothing."""

    def config(self, text: str, now_ns: int) -> None:
        """Nothing."""

    def find(self, span: ToolSpan) -> tuple[str, str]:
        """The span's program, empty if it is not known, and what its tool counts as.

        Of a conversation the call tells whether it is a sub-agent's. A trace of several programs is their root's.
        """
        programs = self._ledger().programs.by_name
        called, tool = self._calls.get(span.call_id, ("", "")) if span.call_id else ("", "")
        if called not in programs:
            called, tool = "", ""
        tool = tool if tool and not span.is_shell else span.tool
        named = next((name for name in span.conversations if name in programs), "")
        if called and (not named or programs[called].root_id == programs[named].root_id):
            return called, tool
        if named:
            return named, span.tool
        traced = [name for name in self._traces.get(span.trace_id, ()) if name in programs]
        if len(traced) > 1:
            traced = list({programs[name].root_id for name in traced})
        return (traced[0], span.tool) if len(traced) == 1 else ("", span.tool)


def _shorten(table: OrderedDict[str, Any], most: int) -> None:
    while len(table) > most:
        table.popitem(last=False)

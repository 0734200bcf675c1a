"""OpenHands' events: a trajectory (an array, or lines), or a result whose ``history`` or ``events`` they are.

**Source**: events of openhands-sdk 1.58.2 (``kind``; a reply's events have one ``llm_response_id``, and its tokens
stand in the metrics' ``token_usages``), and of OpenHands up to 0.62 (``action``, ``observation``; a reply is in its
``tool_call_metadata``, its tokens there or in ``llm_metrics``, which add up).
"""

from collections.abc import Iterator

from controlplane.lab.workload.imports.calls import Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.tool_calls.calls import called_name

_LISTS = ("history", "events")
_SAID = ("content", "llm_message", "system_prompt", "tools", "observation", "args")
_ASKS = ("MessageEvent", "AgentErrorEvent", "message", "system")
_SUMS = "llm_metrics.accumulated_token_usage"


def read_events(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """The one session that the records are events of."""
    events = _Events(reading.session(), {})
    yield from reading.each(records, events.take)
    yield events.session


def read_results(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """One session a record."""

    def take(result: Fields) -> Iterator[Session]:
        by_usage = Fields(result.any("stats.usage_to_metrics") or {}).value.values()
        metrics = [Fields(each) for each in (result.any("metrics") or {}, *by_usage)]
        used = {each.text("response_id"): each for one in metrics for each in one.objects("token_usages")}
        events = _Events(reading.session(result.text("instance_id") or result.text("id")), used)
        for event in result.objects(next((name for name in _LISTS if result.any(name)), "events")):
            events.take(event)
        yield events.session

    return reading.each(records, take)


class _Events:
    """``used``: tokens by the reply's id."""

    def __init__(self, session: Session, used: dict[str, Fields]) -> None:
        self.session, self.used = session, used
        self.sums = (0, 0)

    def take(self, event: Fields) -> None:
        observed = event.any("observation")
        reply_id = event.text("llm_response_id") or event.text("tool_call_metadata.model_response.id")
        if reply_id and not observed:
            self.replies(event, reply_id)
        elif observed or event.any("system_prompt") or (event.any("kind") or event.any("action")) in _ASKS:
            person = event.text("source") == "user"
            self.session.ask(event.time("timestamp"), *map(event.any, _SAID), person=person)

    def replies(self, event: Fields, reply_id: str) -> None:
        is_new = reply_id != self.session.reply_id
        at = event.time("timestamp") if is_new else None  # its parts are told one by one, tools between
        name = event.text("tool_name") or event.text("tool_call_metadata.function_name")
        tools = [called_name(name, event.any("args") or event.any("action"))] if name else []
        texts = map(event.any, ("thought", "tool_call", "llm_message", "args"))
        call = self.session.reply(at, *texts, tools=tools, reply_id=reply_id)
        if reply_id in self.used:
            call.count(Fields({"usage": self.used[reply_id].value}), "usage")
        else:
            call.count(event, "tool_call_metadata.model_response.usage")
        if event.any(_SUMS):
            sums = event.count(f"{_SUMS}.prompt_tokens"), event.count(f"{_SUMS}.completion_tokens")
            if not call.input_tokens:
                call.input_tokens, call.output_tokens = (max(0, sums[i] - self.sums[i]) for i in (0, 1))
            self.sums = sums

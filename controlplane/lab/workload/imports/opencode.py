"""opencode's sessions, as ``opencode export SESSION`` prints them.

**Source**: what opencode 1.18.33 printed. A message is one model call, or one for each ``step-finish`` among its
parts. Its tokens leave out what was cached, and its reply ends where its first tool starts.
"""

from collections.abc import Iterator

from controlplane.lab.workload.imports.calls import Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.tool_calls.calls import called_name


def read(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """One session a record."""

    def take(export: Fields) -> Iterator[Session]:
        session = reading.session(export.text("info.id"), export.text("info.parentID"))
        for message in export.objects("messages"):
            if message.text("info.role") == "assistant":
                _replies(session, message)
            else:
                session.ask(None, *(part.any("text") for part in message.objects("parts")), person=True)
        yield session

    return reading.each(records, take)


def _replies(session: Session, message: Fields) -> None:
    session.ask(message.time("info.time.created"), rewrites=message.any("info.summary") is True)
    step: list[Fields] = []
    for part in message.objects("parts"):
        step.append(part)
        if part.text("type") != "step-finish":
            continue
        tools = [each for each in step if each.text("type") == "tool"]
        began = [at for each in tools if (at := each.time("state.time.start")) is not None]
        call = session.reply(
            min(began, default=message.time("info.time.completed")),
            *(each.any(path) for each in step for path in ("text", "state.input")),
            tools=[called_name(each.text("tool"), each.any("state.input")) for each in tools],
        )
        cached = part.count("tokens.cache.read")
        call.input_tokens = part.count("tokens.input") + cached + part.count("tokens.cache.write")
        call.output_tokens = part.count("tokens.output") + part.count("tokens.reasoning")
        call.cached_tokens = cached
        ended = [at for each in tools if (at := each.time("state.time.end")) is not None]
        session.ask(max(ended, default=None), *(each.any("state.output") for each in tools))
        step = []

"""Codex' sessions: ``~/.codex/sessions/YYYY/MM/DD/rollout-*.jsonl``.

**Source**: files that codex 0.171.0 wrote. Items are written as they come; ``token_usage_record`` (before it:
``token_count``, which is said again when nothing has changed) has the tokens of the reply before it. A person's
message is an event, as the items of role ``user`` are the harness' own as well.
"""

from collections.abc import Iterator

from controlplane.lab.workload.imports.calls import Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.tool_calls.calls import called_name

_PARENTS = ("payload.parent_thread_id", "payload.source.subagent.thread_spawn.parent_thread_id")


class _Rollout:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_named = False
        self.replies = 0  # items of one reply have its number
        self.is_replying = False

    def take(self, line: Fields) -> None:
        kind, of, session = line.text("type"), line.text("payload.type"), self.session
        if kind == "session_meta" and not self.is_named:
            self.is_named = True  # a fork has its parent's behind its own
            session.program_id = line.text("payload.id") or session.program_id
            session.parent_id = next(filter(None, map(line.text, _PARENTS)), "")
            session.ask(None, line.any("payload.base_instructions"), line.any("payload.instructions"))
        elif kind == "compacted":
            session.ask(None, rewrites=True)
        elif kind == "token_usage_record":
            self.count(line, "payload.usage")
        elif kind == "event_msg" and of == "token_count":
            self.count(line, "payload.info.last_token_usage")
        elif kind == "event_msg" and (of == "user_message" or line.any("payload.item.type") == "UserMessage"):
            session.ask(None, person=True)
        elif kind == "response_item":
            self.item(line, of)

    def item(self, line: Fields, of: str) -> None:
        texts = [line.any(f"payload.{name}") for name in ("content", "output", "arguments", "input")]
        asks = of.endswith("_output") or (of == "message" and line.text("payload.role") != "assistant")
        if asks:
            self.session.ask(line.time("timestamp"), *texts)
        else:
            self.replies += not self.is_replying
            name = line.text("payload.name") or of.removesuffix("_call")
            arguments = line.any("payload.arguments") or {"action": line.any("payload.action")}
            tools = [called_name(name, arguments)] if of.endswith("_call") else []
            self.session.reply(line.time("timestamp"), *texts, tools=tools, reply_id=self.replies)
        self.is_replying = not asks

    def count(self, line: Fields, path: str) -> None:
        """Each reply's first count: what is said later without another reply is said again."""
        if self.session.calls and not self.session.calls[-1].input_tokens:
            self.session.calls[-1].count(line, path)


def read(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """The file's one session."""
    rollout = _Rollout(reading.session())
    yield from reading.each(records, rollout.take)
    yield rollout.session

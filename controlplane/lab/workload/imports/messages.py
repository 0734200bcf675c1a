"""Conversations that are lists of messages: each of the assistant's is a model call on all before it.

**Sources**: ShareGPT (``conversations`` of ``from`` and ``value``); in this form also Codex on SWE-bench Pro
(Inferact/codex_swebenchpro_traces on Hugging Face, read of in herotai214/router,
``benchmarks/dataset/CODEX_SWEBENCHPRO.md`` at 80d80a4: its ``human`` is the harness, which nothing in the file
tells, so that its gaps are called a person's; it has no times). vLLM's multi-turn benchmark is OpenAI's form.
tau-bench's results (``traj``): sierra-research/tau-bench, ``tau_bench/types.py`` at 01ed5e3 and
``historical_trajectories/gpt-4o-airline.json`` at 7362a17. tau2-bench's (``simulations``): sierra-research/
tau2-bench, ``src/tau2/data_model/message.py`` at 2e2a017 and ``orchestrator/orchestrator.py`` at 07a1081.
mini-swe-agent 2.4.6 (``trajectory_format``; a message's ``extra`` has its time and the API's answer). aiperf 0.13
(``turns`` of a person's texts, whose replies have a length only).
"""

from collections.abc import Iterable, Iterator

from controlplane.lab.workload.imports.calls import Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.lab.workload.trace_lines import BadProgram
from controlplane.tool_calls.calls import called_name

_LISTS = ("conversations", "messages", "traj")
_MODELS = ("assistant", "gpt", "chatgpt", "bing", "bard", "model")
_PEOPLE = ("user", "human")


def read_chats(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """One session a record, or a simulation; persons type."""

    def take(run: Fields) -> Iterator[Session]:
        for each in run.objects("simulations") if run.any("simulations") else (run,):
            ids = (each.any(name) for name in ("id", "task_id", "trial"))
            session = reading.session("/".join(str(part) for part in ids if part is not None))
            yield from _talked(session, each, people=True)

    return reading.each(records, take)


def read_mini(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """One session a record; what it calls a user is the harness."""
    return reading.each(records, lambda run: _talked(reading.session(run.text("instance_id")), run, people=False))


def _talked(session: Session, run: Fields, *, people: bool) -> Iterable[Session]:
    for message in run.objects(next((name for name in _LISTS if run.any(name)), "messages")):
        role = message.text("role") or message.text("from")
        at = message.time("timestamp") or message.time("extra.timestamp")
        texts = [message.any(name) for name in ("content", "value", "output", "tool_calls")]
        if _is_apart(message, role):
            continue
        is_reply = role in _MODELS or message.any("object") == "response"  # OpenAI's other API, kept whole
        if is_reply and (session.calls or session.next.new_guess or message.any("usage")):
            call = session.reply(at, *texts, tools=_names(message))
            for path in ("usage", "extra.response.usage"):
                call.count(message, path)
        else:
            # A greeting before anybody asked is no call: tau2-bench has a fixed one, ShareGPT cuts long chats.
            session.ask(at, *texts, person=people and role in _PEOPLE)
    yield session


def _is_apart(message: Fields, role: str) -> bool:
    """Whether it is of the tools that a person in tau2-bench has, which the agent does not see."""
    return message.any("requestor") == "user" or (role in _PEOPLE and bool(message.any("tool_calls")))


def _names(message: Fields) -> Iterator[str]:
    if actions := message.array("extra.actions"):
        yield from (called_name("bash", action) for action in actions)
        return
    for call in message.objects("tool_calls"):
        of = Fields(call.any("function") or call.value)
        yield called_name(of.text("name"), of.any("arguments"))


def read_turns(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """aiperf's ``multi_turn`` input: what a person says, and after what delay in ms."""

    def take(chat: Fields) -> Iterator[Session]:
        session = reading.session(chat.text("session_id"))
        for turn in chat.objects("turns"):
            if session.calls:
                session.calls[-1].tool_ms = turn.number("delay")
            session.ask(None, turn.any("text"), turn.any("texts"), person=True)
            session.reply(None).output_tokens = turn.count("output_length")
            if not session.calls[-1].output_tokens:
                raise BadProgram("turns[].output_length: without it nobody knows how long a reply is")
        yield session

    return reading.each(records, take)

"""Trajectories in one document: SWE-agent's ``.traj``, and trae-agent's ``trajectory_*.json``.

**Sources**: SWE-agent 1 (a step's ``execution_time`` in s; its tokens are told in sum only, so they are guessed
step by step), and trae-agent's recorder of 2025 (an interaction has the time at which it ended, a step the time at
which its tools had).
"""

from collections.abc import Iterator

from controlplane.lab.workload.imports.calls import Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.tool_calls.calls import called_name


def read_swe_agent(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """One session a record."""

    def take(traj: Fields) -> Iterator[Session]:
        session = reading.session(traj.text("instance_id"))
        for step in traj.objects("trajectory"):
            if not session.calls:
                first = list(step.objects("query")) or list(traj.objects("history"))[:2]
                session.ask(None, *(said.any("content") for said in first))
            tool = called_name("bash", {"command": step.text("action")})
            call = session.reply(None, step.any("response"), tools=[tool])
            took_s = step.number("execution_time")
            call.tool_ms = None if took_s is None else 1e3 * took_s
            session.ask(None, step.any("observation"))
        yield session

    return reading.each(records, take)


def read_trae(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """One session a record; its gaps are known where it has a step for each interaction."""

    def take(trae: Fields) -> Iterator[Session]:
        session = reading.session()
        for each in trae.objects("llm_interactions"):
            session.ask(None, *(said.any("content") for said in each.objects("input_messages")))
            calls = list(each.objects("response.tool_calls"))
            tools = [called_name(tool.text("name"), tool.any("arguments")) for tool in calls]
            call = session.reply(each.time("timestamp"), each.any("response.content"), tools=tools)
            call.count(each, "response.usage")
            if each.text("provider") not in ("", "anthropic"):  # only Anthropic counts what is cached apart
                call.input_tokens = each.count("response.usage.input_tokens")
        ends = [step.time("timestamp") for step in trae.objects("agent_steps")]
        if len(ends) == len(session.calls):
            for call, end in zip(session.calls[1:], ends, strict=False):
                call.sent_s = end
        yield session

    return reading.each(records, take)

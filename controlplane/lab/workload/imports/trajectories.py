"""Trajectories in one document: SWE-agent's ``.traj``, and trae-agent's ``trajectory_*.json``.

**Sources**: SWE-agent/SWE-agent, ``sweagent/agent/agents.py`` at 04ab235: a step has its ``execution_time`` in s
and its whole prompt (``query``; without content where no model was asked, missing before version 1); tokens are
told in sum only, so they are guessed. bytedance/trae-agent, ``trae_agent/utils/trajectory_recorder.py`` at 246e7c8:
an interaction has what was new in its prompt and the time at which it ended, a step with an ``llm_response`` the
time at which its tools had. No sample of either was found, only what writes them; what trae-agent's port to Rust
writes is another format.
"""

from collections.abc import Iterator

from controlplane.lab.workload.imports.calls import Session, tokens_of
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.tool_calls.calls import called_name

_PARTS = ("content", "tool_calls")  # of a message of a ``query``


def read_swe_agent(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """One session a record."""

    def take(traj: Fields) -> Iterator[Session]:
        session = reading.session(traj.text("instance_id"))
        context = 0
        for step in traj.objects("trajectory"):
            prompt = tokens_of(*(said.any(name) for said in step.objects("query") for name in _PARTS))
            if prompt:
                session.next.new_guess = prompt - context  # below 0 where the history has been cut
            elif step.any("query"):
                continue
            elif not session.calls:
                session.ask(None, *(said.any("content") for said in list(traj.objects("history"))[:2]))
            tool = called_name("bash", {"command": step.text("action")})
            call = session.reply(None, step.any("response"), tools=[tool])
            context = prompt + max(1, call.reply_guess)
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
            said = list(each.objects("input_messages"))
            session.ask(None, *(part.any(path) for part in said for path in ("content", "tool_result.result")))
            calls = list(each.objects("response.tool_calls"))
            tools = [called_name(tool.text("name"), tool.any("arguments")) for tool in calls]
            call = session.reply(each.time("timestamp"), each.any("response.content"), tools=tools)
            call.count(each, "response.usage")
            if each.text("provider") not in ("", "anthropic"):  # only Anthropic counts what is cached apart
                call.input_tokens = each.count("response.usage.input_tokens")
        ends = [step.time("timestamp") for step in trae.objects("agent_steps") if step.any("llm_response")]
        if len(ends) == len(session.calls):
            for call, end in zip(session.calls[1:], ends, strict=False):
                call.sent_s = end
        yield session

    return reading.each(records, take)

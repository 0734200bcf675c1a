"""Claude Code's sessions: ``~/.claude/projects/*/SESSION.jsonl``, and ``SESSION/subagents/agent-*.jsonl``.

**Source**: files that Claude Code 2.1.197 wrote. A reply is one line for each block of its content, all with the
same ``message.id`` and ``usage``; a request's time is that of the last result or message before it. Before 2.0 the
sub-agents' lines (``isSidechain``) stood in the session's own file, without an ``agentId``. AgentCgroup's
``trace.jsonl`` is such a file, of Claude Code 2.0.0 with a local model (eunomia-bpf/agentcgroup,
``experiments/all_images_local/*/attempt_1/trace.jsonl`` at 76fc456).
"""

from collections.abc import Iterator

from controlplane.lab.workload.imports.calls import Session
from controlplane.lab.workload.imports.fields import Fields
from controlplane.lab.workload.imports.reading import Reading
from controlplane.lab.workload.imports.records import Record
from controlplane.tool_calls.calls import called_name

_SYNTHETIC = "<synthetic>"  # the model of a line that no model wrote, as one on an error of the API


def read(records: Iterator[Record], reading: Reading) -> Iterator[Session]:
    """One session for each agent of the file, which is one but for old files."""
    found: dict[str, Session] = {}
    chains: dict[str, str] = {}  # of old sub-agents: the first line of each line's chain

    def take(line: Fields) -> None:
        session_id, agent, kind = line.text("sessionId"), line.text("agentId"), line.text("type")
        compacted = line.text("subtype") == "compact_boundary"
        if kind not in ("user", "assistant") and not compacted:
            return
        if line.any("isSidechain") and not agent:
            own = line.text("uuid")
            agent = chains[own] = chains.get(line.text("parentUuid"), own)
        name = f"{session_id}/{agent}" if agent else session_id
        if name not in found:
            found[name] = reading.session(name, session_id if agent else "")
        session, content, at = found[name], line.any("message.content"), line.time("timestamp")
        blocks = (
            [Fields(block) for block in content if isinstance(block, dict)] if isinstance(content, list) else []
        )
        if kind == "assistant" and line.text("message.model") != _SYNTHETIC:
            tools = [called_name(b.text("name"), b.any("input")) for b in blocks if b.text("type") == "tool_use"]
            reply_id = (line.text("message.id"), line.text("requestId"))
            session.reply(at, content, tools=tools, reply_id=reply_id).count(line, "message.usage")
        elif kind != "assistant":
            is_result = any(block.text("type") == "tool_result" for block in blocks)
            person = not (compacted or is_result or line.any("isMeta"))
            session.ask(at, content, person=person, rewrites=compacted or bool(line.any("isCompactSummary")))

    yield from reading.each(records, take)
    yield from found.values()

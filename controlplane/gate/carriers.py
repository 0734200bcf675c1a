"""In what clients name their programs, and whose sub-agent one is: one row a client, the strongest first.

The names are those that clients send by themselves. A row is as good as its source: harnesses rename their headers.
"""

from dataclasses import dataclass
from enum import StrEnum


class Names(StrEnum):
    """What a client's id stands for: how far it is believed where contexts say otherwise (``continuity.py``)."""

    SESSION = "session"  # one conversation, which the client itself made the id for
    HINT = "hint"  # a conversation, or one request, or all of an application: only contexts tell
    AGENT = "agent"  # all conversations of one agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Carrier:
    """Where a client names its program. Headers are in lower case, fields are paths in the body.

    ``parent_headers`` and ``parent_fields``: whose sub-agent it is. ``shared``: a header that holds the same in all
    of a session; with it a parent is proven, as it is the session's own name.
    """

    client: str
    names: Names = Names.SESSION
    headers: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    parent_headers: tuple[str, ...] = ()
    parent_fields: tuple[str, ...] = ()
    shared: str = ""


CLAUDE_CODE = "x-claude-code-session-id"
CLAUDE_CODE_AGENT = "x-claude-code-agent-id"  # of a sub-agent; its main agent sends none
CLAUDE_CODE_PARENT = "x-claude-code-parent-agent-id"  # of a sub-agent's own sub-agent

CARRIERS = (
    Carrier(
        client="Codex",
        headers=("thread-id", "thread_id"),
        parent_headers=("x-codex-parent-thread-id",),
        shared="session-id",
    ),
    Carrier(
        client="OpenCode",
        headers=("x-opencode-session",),
        parent_headers=("x-parent-session-id", "x-parent-session-affinity"),
    ),
    Carrier(client="Kilo Code", headers=("x-kilocode-taskid", "x-kilo-session")),
    Carrier(client="OpenHands, LiteLLM", headers=("x-litellm-session-id",)),
    Carrier(client="vLLM's own sessions", headers=("x-session-id",), fields=("session_id",)),
    Carrier(client="LiteLLM", fields=("litellm_session_id",)),
    Carrier(client="Claude Code", headers=(CLAUDE_CODE,)),
    Carrier(client="SGLang's routers", headers=("x-smg-routing-key", "x-sgl-routing-key")),
    Carrier(
        client="Dynamo",
        headers=("x-dynamo-session-id",),
        fields=("nvext.agent_context.session_id",),
        parent_headers=("x-dynamo-parent-session-id",),
        parent_fields=("nvext.agent_context.parent_session_id",),
    ),
    Carrier(client="SGLang's own sessions", fields=("session_params.id",), parent_fields=("parent_session_id",)),
    Carrier(
        client="vLLM's router",
        fields=("vllm_xargs.session_id", "vllm_xargs.agentic_context.program"),
        parent_fields=("vllm_xargs.agentic_context.parent",),
    ),
    Carrier(client="several", headers=("x-conversation-id", "x-session-affinity"), fields=("metadata.session_id",)),
    Carrier(client="Helicone", headers=("helicone-session-id",)),
    Carrier(client="several", headers=("session-id", "session_id", "conversation_id"), fields=("conversation_id",)),
    Carrier(client="OpenTelemetry's GenAI attributes", headers=("gen_ai.conversation.id",)),
    Carrier(client="OpenAI's Responses", fields=("conversation.id", "conversation")),
    Carrier(client="Continuum's clients", fields=("job_id",)),
    Carrier(
        client="OpenAI's cache hint, gateways' correlation ids",
        names=Names.HINT,
        headers=("x-correlation-id",),
        fields=("prompt_cache_key",),
    ),
    Carrier(client="OpenTelemetry's GenAI attributes", names=Names.AGENT, headers=("gen_ai.agent.id",)),
)

HEADERS = tuple(header for each in CARRIERS for header in each.headers)
FIELDS = tuple(path for each in CARRIERS for path in each.fields)
PARENT_HEADERS = tuple(header for each in CARRIERS for header in each.parent_headers)
PARENT_FIELDS = tuple(path for each in CARRIERS for path in each.parent_fields)
SHARED = {header: each.shared for each in CARRIERS if each.shared for header in each.headers}
"""By header that names a program: the one that names its session."""
STANDS_FOR = {f"header {name}": each.names for each in CARRIERS for name in each.headers}
STANDS_FOR |= {f"body {path}": each.names for each in CARRIERS for path in each.fields}
"""By ``Identity.source``: what an id from there stands for."""

"""Who may tell what. The subject says whose batch it is, since the server lets each role publish on its own only.

A batch from an agent must not speak in an engine's name, nor tell of turns: one such event would retire the engine,
or free memory in use. The server's permissions keep the agent off the engine's subjects; here is what it may
say on its own.
"""

from functools import lru_cache

from controlplane.core.model import commands as cmd
from controlplane.core.model.events import EVENTS, Event, PublisherState, Source
from controlplane.core.model.places import SERVING_ROLES, kind_of, place_of
from controlplane.transport.subjects import CONTROL_ROLE, PREFIX, TOOL_ROLE, role_of_subject
from controlplane.wire.event_codec import DecodedBatch

FOR_TOOLS = (
    cmd.StateRequest,
    cmd.StartTool,
    cmd.PrepareEnvironment,
    cmd.CancelEnvironment,
    cmd.Freeze,
    cmd.Thaw,
)
"""What agents' hooks obey, or answer."""

_SOURCES = {
    **dict.fromkeys(SERVING_ROLES, (Source.SERVING, "turns and the KV pool")),  # the engine double is its own gate
    TOOL_ROLE: (Source.AGENT, "runs and tools"),
    "host": (Source.HOST, "samples of the host"),
    CONTROL_ROLE: (Source.CONTROL, "an operator's orders"),
}
_PUBLISHED = {
    role: (frozenset(kind for kind, (sources, _) in EVENTS.items() if source in sources), what)
    for role, (source, what) in _SOURCES.items()
}


@lru_cache(maxsize=1024)
def _sender(subject: str) -> tuple[str, str]:
    """The place, ``node/role``, that a batch on this subject comes from, and its kind of role."""
    role = role_of_subject(subject)
    return f"{subject.removeprefix(f'{PREFIX}.').partition('.')[0]}/{role}", kind_of(role)


def authorize(batch: DecodedBatch, subject: str) -> tuple[list[Event], list[str]]:
    """The events of ``batch`` that whoever publishes on ``subject`` may tell; and why each other one is refused."""
    place, kind = _sender(subject)
    if kind not in _PUBLISHED:
        return [], [f"nobody tells anything as {kind[:80]!r}"]
    if place_of(batch.publisher) != place:
        return [], [f"publisher {batch.publisher[:80]!r}: expected {place}/BOOT"]
    allowed, what = _PUBLISHED[kind]
    if allowed.issuperset(map(type, batch.events)):
        return batch.events, []
    accepted: list[Event] = []
    refused: list[str] = []
    for event in batch.events:
        if type(event) in allowed or _is_own_state(event, kind):
            accepted.append(event)
        else:
            refused.append(f"{type(event).__name__}: only {what} are told here")
    return accepted, refused


def _is_own_state(event: Event, kind: str) -> bool:
    if not isinstance(event, PublisherState):
        return False
    if kind == TOOL_ROLE:
        others = (event.held_turns, event.open_turns, event.grants, event.pins)
        return event.role == TOOL_ROLE and not any(others)
    return kind in SERVING_ROLES and event.role in SERVING_ROLES and not event.open_tools

"""Sub-agents behind their parents.

A trace's parent waits for its sub-agents in the gap behind one of its turns. So a session is a sub-agent's where a
single gap of its parent holds all of it; one that ran beside its parent is a program of its own.
"""

from collections.abc import Iterator, Sequence

from controlplane.lab.workload.imports.calls import Session, Tally

_SLACK_S = 1.0  # clocks of one file: a child's last line may be written after its parent's next one


def linked(sessions: Sequence[Session], tally: Tally) -> Iterator[Session]:
    """The sessions with each child behind its parent, and what a gap holds beside its children as its tool time."""
    by_id: dict[str, Session] = {}
    for session in sessions:
        by_id.setdefault(session.program_id, session)
    children: dict[str, list[Session]] = {}
    roots: list[Session] = []
    for session in sessions:
        parent = by_id.get(session.parent_id)
        place = None if parent is None or parent is session else _gap_of(parent, session)
        if parent is not None and place is not None:
            session.spawn_turn = place
            children.setdefault(parent.program_id, []).append(session)
            continue
        tally.alone += bool(session.parent_id) and parent is None
        tally.beside += parent is not None
        session.parent_id = ""
        roots.append(session)
    pending = roots[::-1]
    while pending:
        session = pending.pop()
        own = sorted(children.pop(session.program_id, ()), key=lambda child: child.spawn_turn)
        _leave_to(session, own)
        yield session
        pending += own[::-1]


def _span(session: Session) -> tuple[float, float] | None:
    stamps = [at for call in session.calls for at in (call.sent_s, call.ended_s) if at is not None]
    return (min(stamps), max(stamps)) if stamps else None


def _gap_of(parent: Session, child: Session) -> int | None:
    """The parent's turn behind which the child ran from its begin to its end."""
    span = _span(child)
    if span is None:
        return None
    for index, (call, after) in enumerate(zip(parent.calls, parent.calls[1:], strict=False)):
        if call.ended_s is None or after.sent_s is None:
            continue
        if call.ended_s - _SLACK_S <= span[0] and span[1] <= after.sent_s + _SLACK_S:
            return index
    return None


def _leave_to(parent: Session, children: Sequence[Session]) -> None:
    """Take out of the parent's gaps what its children fill."""
    for place in {child.spawn_turn for child in children}:
        spans = [span for child in children if child.spawn_turn == place and (span := _span(child))]
        begin, end = min(first for first, _ in spans), max(last for _, last in spans)
        call, after = parent.calls[place], parent.calls[place + 1]
        if call.ended_s is not None and after.sent_s is not None:
            rest_s = after.sent_s - call.ended_s - (end - begin)
            call.tool_ms = max(0.0, round(1e3 * rest_s, 3))

"""``penstock decisions``: each decision as it is made; on a terminal like ones of one second share a line."""

import queue
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from controlplane.core.model.commands import Place
from controlplane.operate.printing import duration, echo, json_line, to_a_person
from controlplane.wire.control import Fields
from controlplane.wire.names import snake_case

_WITHIN_S = 1.0
_MOST_NAMED = 3  # of a line's programs, where more share it


@dataclass(slots=True)
class _Line:
    """Decisions that differ in their programs alone."""

    how: str
    reason: str
    began_s: float
    at: str
    programs: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        named = list(dict.fromkeys(self.programs))
        if len(named) < 2:
            return f"{self.at}  {self.how.replace('{}', ''.join(named))}  {self.reason}"
        more = " …" if len(named) > _MOST_NAMED else ""
        how = " ".join(self.how.replace("{}", "").split())
        return f"{self.at}  {how} x {len(named)}: {', '.join(named[:_MOST_NAMED])}{more}: {self.reason}"


def show_decisions(decisions: Iterable[Fields], *, json: bool) -> None:
    """Print them as they come, until there are no more."""
    if json:
        for decision in decisions:
            _tell_missed(decision)
            if decision.command is not None:
                echo(_as_json(decision))
        return
    for line in grouped(decisions, within_s=_WITHIN_S if to_a_person() else 0.0):
        echo(line)


def grouped(decisions: Iterable[Fields], *, within_s: float) -> Iterator[str]:
    """A line for each decision, or for those of ``within_s`` that have the same kind and reason.

    A line comes once its time is over, whether or not another decision follows. Raises what ``decisions`` raises.
    """
    lines: dict[tuple[str, str], _Line] = {}
    for decision in _ticking(decisions, within_s):
        now_s = time.monotonic()
        if decision is not None and (found := _line(decision, now_s)) is not None:
            lines.setdefault((found.how, found.reason), found).programs.append(_about(decision))
        while lines and (first := next(iter(lines.values()))).began_s + within_s <= now_s:
            yield str(lines.pop((first.how, first.reason)))
    yield from map(str, lines.values())


def _ticking(decisions: Iterable[Fields], every_s: float) -> Iterator[Fields | None]:
    """The decisions, and None in between each ``every_s`` seconds at least; 0: the decisions alone."""
    if not every_s:
        yield from decisions
        return
    heard: queue.SimpleQueue[Fields | BaseException | None] = queue.SimpleQueue()

    def hear() -> None:
        try:
            for decision in decisions:
                heard.put(decision)
            heard.put(None)
        except Exception as error:
            heard.put(error)

    threading.Thread(target=hear, name="penstock-decisions", daemon=True).start()
    while True:
        try:
            found = heard.get(timeout=every_s / 4)
        except queue.Empty:
            yield None
            continue
        if found is None:
            return
        if isinstance(found, BaseException):
            raise found
        yield found


def _line(decision: Fields, now_s: float) -> _Line | None:
    """None: of a kind that is newer than this program."""
    _tell_missed(decision)
    command = decision.command
    if command is None:
        return None
    ttl_ns = getattr(command, "ttl_ns", 0)
    until = f" for {duration(ttl_ns)}" if ttl_ns else ""
    where = f" on {command.replica}" if isinstance(command, Place) else ""
    how = f"{snake_case(type(command))}{until} {{}}{where}"
    return _Line(how=how, reason=command.reason, began_s=now_s, at=time.strftime("%H:%M:%S"))


def _about(decision: Fields) -> str:
    return str(getattr(decision.command, "program_id", ""))


def _tell_missed(decision: Fields) -> None:
    if decision.missed:
        echo(f"{decision.missed} decisions were missed", err=True)


def _as_json(decision: Fields) -> str:
    command = decision.command
    return json_line({"at_ns": decision.at_ns, "kind": snake_case(type(command)), **asdict(command)})

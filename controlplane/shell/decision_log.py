"""What was decided, by which rule, on which numbers, instead of what, and what came of it: kept on disk, rotated.

Lines of JSON for ``penstock explain`` and ``penstock regret``: a decision, and later, by its number, its outcome
and its verdict. Decisions are some a second where events are thousands, so the file stays small; the stream has the
events.
"""

import itertools
import sys
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from logging import Formatter, LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec

from controlplane.core import events as ev
from controlplane.core.commands import Command, ProgramCommand, SetWindow, StateRequest
from controlplane.core.controller import Controller
from controlplane.core.events import place_of
from controlplane.core.presets import Preset, policy_name
from controlplane.core.regret import Verdict
from controlplane.core.types import NANOSECONDS_PER_SECOND, Program, Status
from controlplane.shell.advise.status import SettingChange
from controlplane.shell.disk import Disk, DiskWriter
from controlplane.shell.logs import logger
from controlplane.wire.decisions import (
    Account,
    Alternative,
    DecisionRecord,
    Numbers,
    OutcomeRecord,
    Record,
    RunRecord,
    SettingRecord,
    VerdictRecord,
)
from controlplane.wire.names import snake_case

KEPT_FILES = 3  # beside the one that is written
_MOST_OPEN = 16  # decisions about a program whose outcome is awaited; what is older had none
_MOST_ALTERNATIVES = 5
# Which kinds of policy decide what; a pause may have several reasons, and says its own.
_RULES = {
    "set_window": ("admission",),
    "admit": ("admission", "packing"),
    "place": ("placement",),
    "restore": ("admission",),
    **dict.fromkeys(("retain", "release", "demote", "prefetch", "discard", "label"), ("retention",)),
}
_BASE = frozenset(field.name for field in fields(ProgramCommand))


class _File(RotatingFileHandler):
    """Says once that it cannot be written, and goes on trying."""

    _told = False

    def handleError(self, record: LogRecord) -> None:  # noqa: N802
        if not self._told:
            self._told = True
            logger("decisions").warning("not written", path=self.baseFilename, error=str(sys.exc_info()[1]))


class DecisionLog:
    """Writes ``path``, at most ``max_bytes`` with what is rotated. A full disk costs the log, never a decision."""

    def __init__(
        self, path: Path, max_bytes: int, controller: Callable[[], Controller], disk: Disk | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._disk = disk or DiskWriter("decisions")
        self._file = _File(
            path,
            maxBytes=max(1, max_bytes // (KEPT_FILES + 1)),
            backupCount=KEPT_FILES,
            delay=True,
            encoding="utf-8",
        )
        self._file.setFormatter(Formatter("%(message)s"))
        self._controller = controller
        self._open: dict[str, list[tuple[int, int]]] = {}  # by program: (command_id, when)
        self._held: dict[str, dict[str, int]] = {}  # by program: turns at the gate, and since when
        # By program, of the last run that was written: when it began and ended, and its turns.
        self._runs: dict[str, tuple[int, int, int]] = {}
        self._outcomes: dict[type[ev.Event], Callable[[Any], str]] = {
            ev.FirstToken: _first_token,
            ev.ProgramEnded: lambda event: "its run ended",
        }

    def event(self, event: ev.Event, now_ns: int) -> None:
        """An outcome, where it is one; or a turn that begins to be held, or is no more."""
        kind = type(event)
        if kind is ev.CommandRejected:
            self._rejected(event, now_ns)  # type: ignore[arg-type]
            return
        if kind is ev.TurnQueued:
            self._held.setdefault(event.program_id, {}).setdefault(event.turn_id, now_ns)  # type: ignore[attr-defined]
            return
        if kind in (ev.TurnSubmitted, ev.TurnAbandoned):
            self._let_go(event.program_id, event.turn_id)  # type: ignore[attr-defined]
            return
        if isinstance(event, ev.ProgramEnded):
            if event.for_now:
                return
            self._ended(event.program_id, now_ns)
        if kind is ev.TurnEnded:
            self._ended_late(event.program_id, now_ns)  # type: ignore[attr-defined]
        told = self._outcomes.get(kind)
        if told is None:
            return
        name: str = event.program_id  # type: ignore[attr-defined]
        turn_id, engine = "", ""
        if isinstance(event, ev.FirstToken):
            turn_id, engine = event.turn_id, place_of(event.publisher)
        for number, at_ns in self._open.pop(name, ()):
            self._outcome(name, number, told(event), now_ns - at_ns, turn_id=turn_id, engine=engine)

    def tick(self, now_ns: int) -> None:
        """Nothing: the commands say it all."""

    def config(self, text: str, now_ns: int) -> None:
        """Nothing: each decision names its rule."""

    def command(self, command: Command, now_ns: int) -> None:
        """A decision, with what it was made from."""
        if isinstance(command, StateRequest):
            return
        kind, controller = snake_case(type(command)), self._controller()
        program_id = getattr(command, "program_id", "")
        program = controller.ledger.programs.by_name.get(program_id)
        self._write(
            DecisionRecord(
                at=_wall(),
                now_ns=now_ns,
                number=command.command_id,
                program_id=program_id,
                kind=kind,
                reason=command.reason,
                rule=_rule(kind, controller),
                values={
                    field.name: getattr(command, field.name) for field in fields(command) if field.name not in _BASE
                },
                numbers=_numbers(controller),
                tool=program.tool if program else "",
                context_tokens=program.context_tokens if program else 0,
                engine=program.replica if program else "",
                **(self._admission(program_id, now_ns) if kind == "admit" else {}),
            )
        )
        if program is not None and program.status is Status.ENDED:
            self._ended(program_id, now_ns)  # by silence, or as a budget is spent: no event says so
        if program is not None and not isinstance(command, SetWindow):
            waiting = self._open.setdefault(program_id, [])
            waiting.append((command.command_id, now_ns))
            del waiting[:-_MOST_OPEN]
            if (
                max(len(self._open), len(self._held), len(self._runs))
                > len(controller.ledger.programs.by_name) + _MOST_OPEN
            ):
                self._forget(controller)

    def _admission(self, program_id: str, now_ns: int) -> dict[str, Any]:
        """Of an admission: the turns that it lets go, for how long they were held, and who else waited."""
        turns = self._held.pop(program_id, {})
        return {
            "turns": list(turns),
            "waited_ns": now_ns - min(turns.values(), default=now_ns),
            "alternatives": _alternatives(self._controller(), program_id, now_ns),
        }

    def _ended(self, program_id: str, now_ns: int) -> None:
        """A run that is part of a tree: what its time was made of can be told afterwards.

        Its children end with it, whether they say so or not.
        """
        programs = self._controller().ledger.programs
        program = programs.by_name.get(program_id)
        if program is None or not (program.parent_id or program.had_children):
            return
        if program.status is not Status.ENDED:
            return  # it waits for its children
        below = [] if program.parent_id else [programs.by_name[name] for name in programs.children_of(program_id)]
        for each in (program, *(child for child in below if child.status is Status.ENDED)):
            self._run(each, now_ns)

    def _ended_late(self, program_id: str, now_ns: int) -> None:
        """A run's last turn may be told of behind its goodbye, which comes on another connection."""
        program = self._controller().ledger.programs.by_name.get(program_id)
        if program_id in self._runs and program is not None and program.status is Status.ENDED:
            self._run(program, now_ns)

    def _run(self, program: Program, now_ns: int) -> None:
        ended_ns = program.ended_at_ns if program.status is Status.ENDED else now_ns
        run = program.arrived_at_ns, ended_ns, program.turn_index
        if self._runs.get(program.program_id) == run:
            return  # it is written down
        self._runs[program.program_id] = run
        self._write(
            RunRecord(
                at=_wall(),
                program_id=program.program_id,
                parent_id=program.parent_id,
                began_ns=program.arrived_at_ns,
                ended_ns=ended_ns,
                turns=program.turn_index,
                account=self._account(program),
            )
        )

    def _account(self, root: Program) -> Account | None:
        accounts = self._controller().ledger.accounts
        if root.parent_id or not accounts.on:
            return None
        turns, kv_token_s = accounts.budget(root)
        return Account(
            turns=root.turns_begun,
            kv_token_s=root.kv_token_s,
            most_turns=turns,
            most_kv_token_s=kv_token_s,
            stopped=accounts.stopped.get(root.program_id, ""),
        )

    def _let_go(self, program_id: str, turn_id: str) -> None:
        turns = self._held.get(program_id)
        if turns is not None:
            turns.pop(turn_id, None)
            if not turns:
                del self._held[program_id]

    def verdict(self, verdict: Verdict) -> None:
        """What a decision cost and brought."""
        self._write(VerdictRecord(at=_wall(), verdict=verdict))

    def setting(self, change: SettingChange) -> None:
        """What automatic advice has changed, or taken back."""
        self._write(
            SettingRecord(
                at=_wall(),
                now_ns=change.at_ns,
                outcome=change.outcome,
                key=change.key,
                before=change.before,
                after=change.after,
                reason=change.reason,
                goal=change.goal,
                predicted=change.predicted,
                measured=change.measured if change.is_measured else None,
            )
        )

    def close(self) -> None:
        """Close the file once all is written, or the disk has taken too long."""
        if self._disk.settle():
            self._file.close()

    def _forget(self, controller: Controller) -> None:
        """Programs that are no more, and never said so."""
        for remembered in (self._open, self._held, self._runs):
            for name in [name for name in remembered if name not in controller.ledger.programs.by_name]:
                del remembered[name]

    def _rejected(self, event: ev.CommandRejected, now_ns: int) -> None:
        for index, (number, at_ns) in enumerate(waiting := self._open.get(event.program_id, [])):
            if number == event.command_id:
                del waiting[index]
                self._outcome(
                    event.program_id, number, f"rejected by {event.publisher}: {event.reason}", now_ns - at_ns
                )
                return

    def _outcome(
        self, program_id: str, number: int, outcome: str, after_ns: int, *, turn_id: str = "", engine: str = ""
    ) -> None:
        self._write(
            OutcomeRecord(
                at=_wall(),
                number=number,
                program_id=program_id,
                outcome=outcome,
                after_ns=after_ns,
                turn_id=turn_id,
                engine=engine,
            )
        )

    def _write(self, record: Record) -> None:
        text = msgspec.json.encode(record).decode()
        self._disk.put(partial(self._file.handle, LogRecord("", 0, "", 0, text, None, None)), len(text))


def _rule(kind: str, controller: Controller) -> str:
    tenants = ", tenants by weight" if kind == "admit" and controller.ledger.accounts.tenancy.on else ""
    return rule_of(kind, controller.preset) + tenants


def rule_of(kind: str, preset: Preset) -> str:
    """The preset, and its policies that decide what commands of this kind say."""
    named = [f"{policy} {policy_name(policy, getattr(preset, policy))}" for policy in _RULES.get(kind, ())]
    return ", ".join([f"preset {preset.name}", *named])


def _numbers(controller: Controller) -> Numbers:
    pressure, window = controller.pressure, controller.window
    return Numbers(
        limit=window.limit,
        window=window.window,
        active=controller.ledger.programs.charges.active_roots,
        waiting=len(controller.ledger.programs.queue),
        kv_use_ratio=pressure.kv_use_ratio,
        cpu_use_ratio=pressure.cpu_use_ratio,
        tools_active=pressure.tools_active,
        tool_slowdown_ratio=pressure.tool_slowdown_ratio,
    )


def _alternatives(controller: Controller, program_id: str, now_ns: int) -> list[Alternative]:
    """Who else could have been let in, in the order of this tick."""
    others = (each for each in controller.considered if each.program_id != program_id)
    return [
        Alternative(program_id=each.program_id, blocks=each.blocks, waited_ns=now_ns - each.queued_at_ns)
        for each in itertools.islice(others, _MOST_ALTERNATIVES)
    ]


def _first_token(event: ev.FirstToken) -> str:
    cached = f"{event.cached_tokens:,} of {event.prompt_tokens:,} prompt tokens were cached"
    if event.loaded_tokens:
        cached += f", {event.loaded_tokens:,} of them below the device"
    return f"its turn began after {event.launch_delay_ns / NANOSECONDS_PER_SECOND:.2f}s in the engine; {cached}"


def _wall() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")

"""What was decided, by which rule, on which numbers, instead of what, and what came of it: kept on disk, rotated.

Lines of JSON for ``penstock explain`` and ``penstock regret``: a decision, and later, by its number, its outcome
and its verdict. Decisions are some a second where events are thousands, so the file stays small; the stream has the
events.
"""

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from logging import Formatter, LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec

from controlplane.core.model import events as ev
from controlplane.core.model.commands import Command, ProgramCommand, StateRequest
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Program, Status
from controlplane.core.policies.presets import Preset, policy_name
from controlplane.core.regret import Verdict
from controlplane.core.scheduling.controller import Controller
from controlplane.core.scheduling.hold_reasons import Binding
from controlplane.daemon.observe.journal import Decided, History, Turn, View
from controlplane.daemon.process.disk import DiskWriter
from controlplane.daemon.process.logs import logger
from controlplane.wire.decisions import (
    Account,
    Alternative,
    DecisionRecord,
    HeldFor,
    Numbers,
    OutcomeRecord,
    Record,
    RunRecord,
    VerdictRecord,
)
from controlplane.wire.names import snake_case

BACKUP_FILES = 3  # beside the one that is written
_MOST_FORGOTTEN = 16  # runs of programs that the daemon does not remember
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

    _warned = False

    def handleError(self, record: LogRecord) -> None:  # noqa: N802
        if not self._warned:
            self._warned = True
            logger("decisions").warning("not written", path=self.baseFilename, error=str(sys.exc_info()[1]))


class DecisionLog(View):
    """Writes ``path``, at most ``max_bytes`` with what is rotated. A full disk costs the log, never a decision."""

    def __init__(
        self, path: Path, max_bytes: int, controller: Callable[[], Controller], disk: DiskWriter | None = None
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._disk = disk or DiskWriter("decisions")
        self._file = _File(
            path,
            maxBytes=max(1, max_bytes // (BACKUP_FILES + 1)),
            backupCount=BACKUP_FILES,
            delay=True,
            encoding="utf-8",
        )
        self._file.setFormatter(Formatter("%(message)s"))
        self._controller = controller
        # By program, of the last run that was written: when it began and ended, and its turns.
        self._runs: dict[str, tuple[int, int, int]] = {}

    def command(self, command: Command, history: History | None, now_ns: int) -> None:
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
                **(self._admission(history, now_ns) if kind == "admit" and history is not None else {}),
            )
        )
        if program is not None and program.status is Status.ENDED:
            self._ended(program_id, now_ns)  # by silence, or as a budget is spent: no event says so

    def _admission(self, history: History, now_ns: int) -> dict[str, Any]:
        """Of an admission: the turns that it lets go, for how long they were held, and who else waited."""
        controller, turns = self._controller(), history.held
        program = controller.ledger.programs.by_name.get(history.program_id)
        root_id = program.root_id if program is not None else history.program_id  # with which a child waits
        hold = controller.holds.ended.get(root_id)
        return {
            "held": _held_for(hold.reasons) if hold is not None else [],
            "cause": hold.cause if hold is not None else "",
            "turns": [turn.turn_id for turn in turns],
            "waited_ns": now_ns - min((turn.queued_ns for turn in turns), default=now_ns),
            "alternatives": _alternatives(controller, history.program_id, now_ns),
        }

    def first_token(self, history: History, turn: Turn, now_ns: int) -> None:
        self._outcomes(history, now_ns, _first_token(turn), turn_id=turn.turn_id, engine=turn.engine)

    def turn_ended(self, history: History, turn: Turn, now_ns: int, *, is_known: bool) -> None:
        """A run's last turn may be told of behind its goodbye, which comes on another connection."""
        program = self._controller().ledger.programs.by_name.get(history.program_id)
        if history.program_id in self._runs and program is not None and program.status is Status.ENDED:
            self._run(program, now_ns)

    def program_ended(self, history: History, now_ns: int) -> None:
        self._ended(history.program_id, now_ns)
        self._outcomes(history, now_ns, "its run ended")

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

    def _run(self, program: Program, now_ns: int) -> None:
        ended_ns = program.ended_at_ns if program.status is Status.ENDED else now_ns
        run = program.arrived_at_ns, ended_ns, program.turn_index
        if self._runs.get(program.program_id) == run:
            return  # it is written down
        self._runs[program.program_id] = run
        if len(self._runs) > len(known := self._controller().ledger.programs.by_name) + _MOST_FORGOTTEN:
            self._runs = {name: run for name, run in self._runs.items() if name in known}
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

    def turn_left(self, history: History, turn: Turn, now_ns: int) -> None:
        hold = self._controller().holds.left.get(turn.turn_id)
        if hold is None or not turn.is_held:
            return
        self._write(
            DecisionRecord(
                at=_wall(),
                now_ns=now_ns,
                number=0,
                program_id=history.program_id,
                kind="left",
                reason=turn.end,
                rule="",
                values={},
                numbers=_numbers(self._controller()),
                turns=[turn.turn_id],
                waited_ns=now_ns - turn.queued_ns,
                held=_held_for(hold.reasons),
            )
        )

    def verdict(self, verdict: Verdict) -> None:
        self._write(VerdictRecord(at=_wall(), verdict=verdict))

    def close(self) -> None:
        """Close the file once all is written, or the disk has taken too long."""
        if self._disk.settle():
            self._file.close()

    def rejected(self, decided: Decided, event: ev.CommandRejected, now_ns: int) -> None:
        self._outcome(event.program_id, decided, now_ns, f"rejected by {event.publisher}: {event.reason}")

    def _outcomes(self, history: History, now_ns: int, text: str, *, turn_id: str = "", engine: str = "") -> None:
        for decided in history.awaited:
            self._outcome(history.program_id, decided, now_ns, text, turn_id=turn_id, engine=engine)

    def _outcome(
        self, program_id: str, decided: Decided, now_ns: int, text: str, *, turn_id: str = "", engine: str = ""
    ) -> None:
        self._write(
            OutcomeRecord(
                at=_wall(),
                number=decided.number,
                program_id=program_id,
                outcome=text,
                after_ns=now_ns - decided.at_ns,
                turn_id=turn_id,
                engine=engine,
            )
        )

    def _write(self, record: Record) -> None:
        text = msgspec.json.encode(record).decode()
        self._disk.put(partial(self._file.handle, LogRecord("", 0, "", 0, text, None, None)), len(text))


def _held_for(reasons: Sequence[tuple[Binding, int]]) -> list[HeldFor]:
    return [HeldFor(reason=each.reason.value, text=each.text, held_ns=ns) for each, ns in reasons]


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


def _first_token(turn: Turn) -> str:
    if not turn.prompt_tokens:
        return "its turn began"  # of an engine without a plugin more is known once its reply is over
    cached = f"{turn.cached_tokens:,} of {turn.prompt_tokens:,} prompt tokens were cached"
    if turn.loaded_tokens:
        cached += f", {turn.loaded_tokens:,} of them below the device"
    return f"its turn began after {turn.launch_delay_ns / NANOSECONDS_PER_SECOND:.2f}s in the engine; {cached}"


def _wall() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")

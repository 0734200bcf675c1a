"""A stretch of this daemon's past under another decision, as its page asks for it: one question at a time.

What is replayed is what is on disk: the record that ``penstock up --record`` writes, or the latest stretch that is
kept for the shadow's estimates.
"""

from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from anyio import CancelScope, Event, to_thread

from controlplane.config import Resolved, overridden, show
from controlplane.config.shadow import setting
from controlplane.core.errors import ConfigError
from controlplane.core.presets import POLICIES, PRESETS
from controlplane.shell.laboratory import joined
from controlplane.shell.shadow import Answer, Replayer
from controlplane.shell.stretch import Stretch
from controlplane.shell.tasks import described
from controlplane.wire.log import EventRecord, LogWriter, read_log

RECORD, SHADOW = "record", "shadow"
WAITS, RUNS, DONE, FAILED, CANCELLED = "waits", "runs", "done", "failed", "cancelled"
HOW_TO_RECORD = (
    "Nothing of the past is on disk, so nothing can be replayed. Start the daemon with `penstock up --record "
    'run.jsonl.gz`; or name a preset in its file, as preset = "mars" below [shadow], and leave estimate_s above 0: '
    "then the latest ten minutes (stretch_s) are kept from now on, without a restart"
)
_OF_POLICIES = tuple(f"{table}." for table in POLICIES)
_NS = 1e9


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A stretch by the daemon's clock, and an alternative, as ``penstock what-if`` takes it; empty: as it was."""

    since_ns: int
    until_ns: int
    preset: str = ""
    settings: tuple[str, ...] = ()
    pool_tokens: str = ""
    engines: str = ""
    agents: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What of the past is on disk."""

    record: LogWriter | None = None
    stretch: Stretch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfView:
    """How the last question stands, and what a next one may be about. Times are the daemon's, in nanoseconds.

    ``began_ns``: the past is on disk from then on; 0: none of it is, and ``how_to`` says what to do.
    ``standing``: waits, runs, done, failed or cancelled; empty: nobody has asked yet.
    """

    began_ns: int
    kept_by: str  # record or shadow
    how_to: str
    presets: Sequence[str]
    time_scale: float
    standing: str
    question: Question | None
    asked_at_ns: int
    reason: str
    answer: Answer | None
    shadow: Sequence[str]  # the lines of a configuration that have the alternative decide beside what is in force


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    standing: str = ""
    question: Question | None = None
    at_ns: int = 0
    reason: str = ""
    answer: Answer | None = None


class BusyError(Exception):
    """A question is being answered: who asks another one waits, or cancels it."""


class WhatIf:
    """Answers one question at a time, as long as ``keep`` runs."""

    def __init__(
        self,
        recorded: Callable[[], Recorded],
        resolved: Callable[[], Resolved],
        now_ns: Callable[[], int],
        replayer: Replayer,
    ) -> None:
        self._recorded, self._resolved, self._now_ns, self._replayer = recorded, resolved, now_ns, replayer
        self._asked = _Asked()
        self._wake = Event()
        self._scope: CancelScope | None = None  # of the question that is being answered

    def ask(self, question: Question) -> None:
        """Have it answered. Raises ``ConfigError`` where it makes no sense, ``BusyError`` while another one is."""
        if self._asked.standing in (WAITS, RUNS):
            raise BusyError("a replay is under way already: wait for its end, or cancel it")
        self._check(question)
        self._scope = CancelScope()
        self._asked = _Asked(standing=WAITS, question=question, at_ns=self._now_ns())
        self._wake.set()

    def cancel(self) -> None:
        """End the replay, if there is one."""
        if self._scope is not None:
            self._scope.cancel()

    async def keep(self) -> None:
        """Until it is cancelled, which ends the replay as well."""
        while True:
            await self._wake.wait()
            self._wake = Event()
            scope, question = self._scope, self._asked.question
            assert scope is not None
            assert question is not None
            with scope:
                self._asked = await self._answered(question)
            self._scope = None
            if scope.cancelled_caught:
                self._asked = replace(self._asked, standing=CANCELLED)

    def view(self) -> WhatIfView:
        """For the page."""
        kept_by, began_ns = self._oldest()
        resolved, asked = self._resolved(), self._asked
        return WhatIfView(
            began_ns=began_ns,
            kept_by=kept_by,
            how_to="" if began_ns else HOW_TO_RECORD,
            presets=tuple(PRESETS),
            time_scale=resolved.config.time_scale,
            standing=asked.standing,
            question=asked.question,
            asked_at_ns=asked.at_ns,
            reason=asked.reason,
            answer=asked.answer,
            shadow=_shadow_lines(resolved, asked.question) if asked.answer else (),
        )

    # What there is to replay

    def _kept(self) -> dict[str, int]:
        """Since when the past is on disk, by what keeps it."""
        recorded = self._recorded()
        found = {}
        if recorded.record is not None and recorded.record.began_ns and not recorded.record.failed:
            found[RECORD] = recorded.record.began_ns
        if recorded.stretch is not None and recorded.stretch.began_ns and not recorded.stretch.failed:
            found[SHADOW] = recorded.stretch.began_ns
        return found

    def _oldest(self) -> tuple[str, int]:
        return min(self._kept().items(), key=lambda each: each[1], default=("", 0))

    def _chosen(self, since_ns: int) -> str:
        """The shorter one of those that hold all of it: a log is read from its beginning."""
        kept = self._kept()
        whole = {name: began_ns for name, began_ns in kept.items() if began_ns <= since_ns}
        return max(whole or kept, key=kept.__getitem__, default="") if whole else self._oldest()[0]

    def _check(self, question: Question) -> None:
        _, began_ns = self._oldest()
        if not began_ns:
            raise ConfigError(HOW_TO_RECORD)
        if question.since_ns >= question.until_ns:
            raise ConfigError("the stretch ends before it begins: choose another one")
        if question.until_ns <= began_ns:
            late_s = self._wall_s(began_ns - question.until_ns)
            raise ConfigError(
                f"that stretch ended {late_s:.0f} s before the first that is on disk: choose a later one"
            )
        if question.preset not in ("", *PRESETS):
            raise ConfigError(f"no preset {question.preset!r}: expected one of {', '.join(PRESETS)}")
        for each in question.settings:
            setting(each)
        overridden(show(self._resolved().config), preset=question.preset, settings=question.settings)

    def _wall_s(self, ns: int) -> float:
        return ns / self._resolved().config.time_scale / _NS

    # Answering

    async def _answered(self, question: Question) -> _Asked:
        now = self._asked
        try:
            async with AsyncExitStack() as ending:
                log = await self._log(question, ending)
                first_ns = await to_thread.run_sync(_first_event_ns, log)
                replayed = await self._replayer.replay(log, _options(question, first_ns), begun=self._begun)
        except (OSError, ConfigError) as error:
            return replace(now, standing=FAILED, reason=f"what is on disk cannot be read: {error}")
        except Exception as error:  # else no other question could be asked
            return replace(now, standing=FAILED, reason=described(error))
        standing = DONE if replayed.answer is not None else FAILED
        return replace(now, standing=standing, reason=replayed.reason, answer=replayed.answer)

    def _begun(self) -> None:
        self._asked = replace(self._asked, standing=RUNS)

    async def _log(self, question: Question, ending: AsyncExitStack) -> Path:
        recorded = self._recorded()
        if self._chosen(question.since_ns) == SHADOW and recorded.stretch is not None:
            return await ending.enter_async_context(joined(recorded.stretch))
        if recorded.record is None:
            raise ConfigError("it was dropped meanwhile: ask again")
        await to_thread.run_sync(recorded.record.settle)
        return recorded.record.path


def _options(question: Question, first_ns: int) -> list[str]:
    """As ``penstock what-if`` takes them: its seconds count from the log's first event."""
    since_s, until_s = ((at_ns - first_ns) / _NS for at_ns in (question.since_ns, question.until_ns))
    told = {
        "preset": question.preset,
        "pool-tokens": question.pool_tokens,
        "engines": question.engines,
        "agents": question.agents,
        "since": f"{max(0.0, since_s):.3f}",
        "until": f"{max(0.001, until_s):.3f}",
    }
    return [
        *(f"--{name}={value}" for name, value in told.items() if value),
        *(f"--set={each}" for each in question.settings),
    ]


def _first_event_ns(log: Path) -> int:
    """Raises ``ConfigError`` where there is none."""
    for record in read_log(log):
        if isinstance(record, EventRecord):
            return record.now_ns
    raise ConfigError(f"{log}: the log has no events yet")


def _shadow_lines(resolved: Resolved, question: Question | None) -> list[str]:
    """What has the alternative decide beside what is in force; none where the machine is what differs.

    A replay under another preset leaves out what was said of the policies of the one in force. A shadow does not,
    unless each such key is taken out.
    """
    if question is None or not (question.preset or question.settings):
        return []
    preset = question.preset or resolved.config.preset
    set_keys = {each.partition("=")[0].strip() for each in question.settings}
    given = [key for key in resolved.origins if key.startswith(_OF_POLICIES) and key not in set_keys]
    settings = [*question.settings, *(f"{key}=" for key in given if preset != resolved.config.preset)]
    lines = ["[shadow]", f'preset = "{preset}"']
    if settings:
        lines.append(f"settings = {msgspec.json.encode(settings).decode()}")
    return lines

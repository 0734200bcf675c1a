"""What the shadow would change, told now and then by a replay of the latest stretch in a process of its own.

Decisions alone do not tell it: the world follows the controller in force. ``penstock what-if`` replays what was
heard on a model of the engine, under the one and under the other. It belongs to the laboratory, which nothing of
the product imports, so that it is begun as a command.
"""

import os
import resource
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from anyio import current_time, fail_after, run_process, sleep, to_thread

from controlplane.config import Config, changes
from controlplane.config.shadow import written
from controlplane.core.presets import POLICIES, PRESETS
from controlplane.shell.logs import logger
from controlplane.shell.shadow.stretch import Stretch, join

WHAT_IF = (sys.executable, "-m", "controlplane", "what-if")
_TOLD = ("mean_jct_s", "p95_ttft_s", "hit_rate")
_LOOK_S = 0.5
_CPU_SHARE = 0.2  # of one CPU, at most: who took so many CPU seconds is asked again no sooner than five times later
_MOST_CPU_S = 300
_WITHIN_S = 1200.0
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedChange:
    """Of a time a ratio less 1, of a share a difference; with its 95% interval where that is known."""

    name: str
    value: float
    low: float
    high: float
    is_bounded: bool
    replay_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowEstimate:
    """The last estimate. ``reason``: why there is none, or no later one."""

    made: int = 0
    made_at_ns: int = 0
    stretch_s: float = 0.0
    programs: int = 0
    changes: tuple[EstimatedChange, ...] = ()
    reason: str = ""
    cpu_s: float = 0.0


class _Interval(msgspec.Struct, frozen=True):
    value: float | None = None
    low: float | None = None
    high: float | None = None


class _Replayed(msgspec.Struct, frozen=True):
    since_s: float = 0.0
    until_s: float = 0.0
    programs: int = 0


class _Answer(msgspec.Struct, frozen=True):
    """What of the answer is told on: what a switch will show, whose interval holds what the replay is off by."""

    format: int
    stretch: _Replayed
    expected: dict[str, _Interval]
    replay_error: dict[str, float | None] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is estimated: ``shadow`` in place of ``live``, each ``every_s`` of the wall clock."""

    live: Config
    shadow: Config
    stretch: Stretch
    every_s: float


class Estimates:
    """Makes them while something is asked, one at a time, in a process with the least claim on the machine."""

    def __init__(self, now_ns: Callable[[], int], command: Sequence[str] = WHAT_IF) -> None:
        self._now_ns, self._command = now_ns, command
        self._asked: Asked | None = None
        self._due_s = 0.0
        self.latest = ShadowEstimate()
        self._log = logger("shadow")

    def ask(self, asked: Asked | None) -> None:
        """Estimate this from now on, or nothing; what was found of another is forgotten."""
        self._asked = asked
        self._due_s = current_time() + (asked.every_s if asked else 0.0)
        self.latest = ShadowEstimate(reason="" if asked is None else "the first stretch is still being heard")

    async def keep(self) -> None:
        """Until it is cancelled, which ends the process as well."""
        while True:
            await sleep(_LOOK_S)
            asked = self._asked
            if asked is None or not asked.stretch.began_ns or current_time() < self._due_s:
                continue
            before_s = _children_cpu_s()
            told = await self._make(asked)
            cpu_s = _children_cpu_s() - before_s
            if asked is not self._asked:
                continue  # of another shadow
            self._due_s = current_time() + max(asked.every_s, cpu_s / _CPU_SHARE)
            self.latest = replace(told, cpu_s=cpu_s)
            if told.reason:
                self._log.warning("no estimate", reason=told.reason)

    async def _make(self, asked: Asked) -> ShadowEstimate:
        """The estimate, or the last one with the reason why there is none."""
        if asked.stretch.failed:
            return replace(self.latest, reason=f"what happens is not written down: {asked.stretch.failed}")
        try:
            with tempfile.TemporaryDirectory(prefix="penstock-shadow-") as folder, fail_after(_WITHIN_S):
                log = Path(folder) / "stretch.jsonl"
                await to_thread.run_sync(join, asked.stretch.pieces(), log)
                done = await run_process(
                    [*niced(), *self._command, str(log), *options(asked.live, asked.shadow), "--json"],
                    check=False,
                    env=os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
                )
        except (OSError, TimeoutError) as error:
            return replace(self.latest, reason=f"penstock what-if: {error or f'no answer in {_WITHIN_S:g}s'}")
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            ended = f"penstock what-if ended with {done.returncode}"
            return replace(self.latest, reason=said[-1] if said else ended)
        return self._read(done.stdout)

    def _read(self, text: bytes) -> ShadowEstimate:
        try:
            answer = msgspec.json.decode(text, type=_Answer)
        except msgspec.DecodeError as error:
            return replace(self.latest, reason=f"penstock what-if told what is not understood: {error}")
        if answer.format != _FORMAT:
            return replace(self.latest, reason=f"penstock what-if told format {answer.format}, not {_FORMAT}")
        return ShadowEstimate(
            made=self.latest.made + 1,
            made_at_ns=self._now_ns(),
            stretch_s=answer.stretch.until_s - answer.stretch.since_s,
            programs=answer.stretch.programs,
            changes=tuple(_changes(answer.expected, answer.replay_error)),
        )


def options(live: Config, shadow: Config) -> list[str]:
    """What tells ``penstock what-if`` the shadow's configuration.

    It takes a preset as it is, and what else is in the log's configuration, which is the live one's.
    """
    plain = replace(live, preset=shadow.preset, policies=PRESETS[shadow.preset])
    told = [each for each in changes(plain, shadow) if each.key.partition(".")[0] in (*POLICIES, "control")]
    settings = [written(each.key, each.after) for each in told if each.after is not None]
    return ["--preset", shadow.preset, *(part for each in settings for part in ("--set", each))]


def niced() -> list[str]:
    """The command that becomes another one, which has the least claim and ends with us."""
    return [sys.executable, "-m", "controlplane.shell.shadow.child", str(_MOST_CPU_S)]


def _changes(found: Mapping[str, _Interval], errors: Mapping[str, float | None]) -> list[EstimatedChange]:
    return [
        EstimatedChange(
            name=name,
            value=each.value,
            low=each.low if each.low is not None else each.value,
            high=each.high if each.high is not None else each.value,
            is_bounded=each.low is not None and each.high is not None,
            replay_error=errors.get(name) or 0.0,
        )
        for name in _TOLD
        if (each := found.get(name)) is not None and each.value is not None
    ]


def _children_cpu_s() -> float:
    """CPU seconds of children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime

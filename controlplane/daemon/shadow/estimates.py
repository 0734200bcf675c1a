"""What the shadow would change, told now and then by a replay of the latest stretch in a process of its own.

Decisions alone do not tell it: the world follows the controller in force. ``penstock what-if`` replays what was
heard on a model of the engine, under the one and under the other.
"""

import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from anyio import current_time, sleep, to_thread

from controlplane.config import Config, changes
from controlplane.config.settings import written
from controlplane.core.policies.presets import POLICIES, PRESETS
from controlplane.daemon.process.logs import logger
from controlplane.daemon.shadow.recording import RollingRecording, join
from controlplane.daemon.shadow.replayer import WHAT_IF, Replayed, WhatIfAnswer, replay

_METRICS = ("mean_jct_s", "p95_ttft_s", "hit_rate")
_LOOK_S = 0.5
_CPU_SHARE = 0.2  # of one CPU, at most: after so many CPU seconds the next one waits five times as long


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is estimated: ``shadow`` in place of ``live``, each ``every_s`` of the wall clock."""

    live: Config
    shadow: Config
    recording: RollingRecording
    every_s: float


class Estimates:
    """Makes them while something is asked, one at a time, in a process with little claim on the machine."""

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
            if asked is None or not asked.recording.began_ns or current_time() < self._due_s:
                continue
            replayed = await self._make(asked)
            if asked is not self._asked:
                continue  # of another shadow
            found = self._estimate(replayed)
            self._due_s = current_time() + max(asked.every_s, replayed.cpu_s / _CPU_SHARE)
            self.latest = replace(found, cpu_s=replayed.cpu_s)
            if found.reason:
                self._log.warning("no estimate", reason=found.reason)

    async def _make(self, asked: Asked) -> Replayed:
        if asked.recording.failed:
            return Replayed(reason=f"what happens is not written down: {asked.recording.failed}")
        try:
            async with _joined(asked.recording) as log:
                return await replay(log, options(asked.live, asked.shadow), self._command)
        except OSError as error:
            return Replayed(reason=f"the latest stretch cannot be put together: {error}")

    def _estimate(self, replayed: Replayed) -> ShadowEstimate:
        answer = replayed.answer
        if answer is None:
            return replace(self.latest, reason=replayed.reason)
        window = answer.stretch
        return ShadowEstimate(
            made=self.latest.made + 1,
            made_at_ns=self._now_ns(),
            stretch_s=window.get("until_s", 0.0) - window.get("since_s", 0.0),
            programs=int(window.get("programs", 0)),
            changes=tuple(_changes(answer)),
        )


@asynccontextmanager
async def _joined(recording: RollingRecording) -> AsyncIterator[Path]:
    """The pieces of a stretch as one log, as long as the block lasts. Raises ``OSError``."""
    pieces = recording.pieces()
    await to_thread.run_sync(recording.settle)
    with tempfile.TemporaryDirectory(prefix="penstock-replay-") as folder:
        log = Path(folder) / "stretch.jsonl"
        await to_thread.run_sync(join, pieces, log)
        yield log


def options(live: Config, shadow: Config) -> list[str]:
    """What tells ``penstock what-if`` the shadow's configuration.

    It takes a preset as it is, and what else is in the log's configuration, which is the live one's.
    """
    plain = replace(live, preset=shadow.preset, policies=PRESETS[shadow.preset])
    found = [each for each in changes(plain, shadow) if each.key.partition(".")[0] in (*POLICIES, "control")]
    settings = [written(each.key, each.after) for each in found if each.after is not None]
    return ["--preset", shadow.preset, *(part for each in settings for part in ("--set", each))]


def _changes(answer: WhatIfAnswer) -> list[EstimatedChange]:
    return [
        EstimatedChange(
            name=name,
            value=each.value,
            low=each.low if each.low is not None else each.value,
            high=each.high if each.high is not None else each.value,
            is_bounded=each.low is not None and each.high is not None,
            replay_error=answer.replay_error.get(name) or 0.0,
        )
        for name in _METRICS
        if (each := answer.expected.get(name)) is not None and each.value is not None
    ]

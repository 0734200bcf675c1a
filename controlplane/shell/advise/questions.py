"""Asks the laboratory what automatic advice wants to know: ``penstock advise`` on the latest stretch."""

import sys
from collections.abc import Callable, Sequence
from math import inf, nan

import msgspec
from anyio import current_time, sleep
from anyio.abc import TaskGroup

from controlplane.core.errors import EngineUnavailable
from controlplane.core.tuning import Answer, Ask, Forecast
from controlplane.eventloop import task_group
from controlplane.shell.advise.auto import AutoAdvice
from controlplane.shell.laboratory import CPU_SHARE, Laboratory, Told, joined
from controlplane.shell.shadow.replayer import Interval
from controlplane.shell.stretch import Stretch
from controlplane.shell.tasks import described

ADVISE = (sys.executable, "-m", "controlplane", "advise")
_LOOK_S = 0.5
_FORMAT = 1

_Figures = dict[str, float | str | None]


class _Candidate(msgspec.Struct, frozen=True):
    settings: list[str]
    advised: bool
    change: dict[str, Interval]
    alternative: _Figures


class _Stretch(msgspec.Struct, frozen=True):
    programs: int = 0


class _Advice(msgspec.Struct, frozen=True):
    """What of the command's JSON is needed."""

    format: int | None
    stretch: _Stretch | None
    actual: _Figures | None
    replayed: _Figures | None
    candidates: list[_Candidate]


class Questions:
    """Looks now and then what is due, and puts its questions, one at a time, to a process of its own."""

    def __init__(
        self,
        auto: AutoAdvice,
        now_ns: Callable[[], int],
        laboratory: Laboratory,
        command: Sequence[str] = ADVISE,
    ) -> None:
        self._auto, self._now_ns, self._laboratory, self._command = auto, now_ns, laboratory, command
        self._rests_until_s = 0.0

    async def keep(self) -> None:
        """Until it is cancelled, which ends the process as well."""
        async with task_group() as group:
            while True:
                await sleep(_LOOK_S)
                self._look(group, None)

    def _look(self, group: TaskGroup, answer: Answer | None) -> None:
        wanted = self._auto.look(self._now_ns(), answer)
        if wanted is not None:
            group.start_soon(self._put, group, *wanted)

    async def _put(self, group: TaskGroup, asked: Ask, stretch: Stretch) -> None:
        await sleep(max(0.0, self._rests_until_s - current_time()))
        settings = [f"{key}={value!r}" for key, value in asked.settings]
        options = ["--goal", self._auto.goal, *(part for each in settings for part in ("--set", each))]
        try:
            told = await self._ask(stretch, options)
            self._rests_until_s = current_time() + told.cpu_s / CPU_SHARE
            if told.reason:
                raise EngineUnavailable(told.reason)
            answer = answer_of(told.text, self._auto.goal, asked.number)
        except EngineUnavailable as error:
            answer = Answer(number=asked.number, reason=str(error))
        except Exception as error:  # else it would be waited for without end
            answer = Answer(number=asked.number, reason=described(error))
        self._look(group, answer)

    async def _ask(self, stretch: Stretch, options: Sequence[str]) -> Told:
        if stretch.failed:
            return Told(reason=f"what happens is not written down: {stretch.failed}")
        try:
            async with joined(stretch) as log:
                return await self._laboratory.ask(log, self._command, options)
        except OSError as error:
            return Told(reason=f"the latest stretch cannot be put together: {error}")


def answer_of(text: bytes, goal: str, number: int) -> Answer:
    """``penstock advise --json`` as the answer to question ``number``. Raises ``EngineUnavailable``."""
    try:
        told = msgspec.json.decode(text, type=_Advice)
    except msgspec.DecodeError as error:
        raise EngineUnavailable(f"penstock advise told what is not understood: {error}") from error
    if not told.candidates or told.actual is None or told.replayed is None or told.stretch is None:
        return Answer(number=number, reason="no step is a value that its setting may have")
    if told.format != _FORMAT:
        raise EngineUnavailable(f"penstock advise told format {told.format}, not {_FORMAT}")
    return Answer(
        number=number,
        measured=_figure(told.actual, goal),
        replayed=_figure(told.replayed, goal),
        programs=told.stretch.programs,
        forecasts=tuple(_forecast(each, goal) for each in told.candidates if each.change[goal].value is not None),
    )


def _forecast(told: _Candidate, goal: str) -> Forecast:
    key, _, value = told.settings[0].partition("=")
    found = told.change[goal]
    return Forecast(
        key=key,
        value=float(value),
        figure=_figure(told.alternative, goal),
        change=found.value if found.value is not None else nan,
        low=found.low if found.low is not None else -inf,
        high=found.high if found.high is not None else inf,
        is_advised=told.advised,
    )


def _figure(figures: _Figures, goal: str) -> float:
    value = figures.get(goal)
    return value if isinstance(value, float | int) else nan

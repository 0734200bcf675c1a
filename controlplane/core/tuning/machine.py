"""When a step is made, when it is judged, and when it is taken back: a pure function of state, facts and time.

A stretch of the load is heard under what is in force; one step is asked for, the best one that is predicted to be
for the better; it is put in force; a stretch is heard again and the step is judged at an equal load (``judge``). It
stays where it gained at least half of what was predicted, and is taken back everywhere else. There is never more
than one step that is not judged, and nothing is ordered while ``Seen.why_not`` says that it must not be.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import nan
from typing import Any

from controlplane.core.tuning.judge import effect, effect_by_model, load_moved
from controlplane.core.tuning.orders import Answer, Ask, Keep, Order, TakeBack, Try
from controlplane.core.tuning.steps import SHARES, Rules, Step, gain

LEAST_PROGRAMS = 8  # that an answer is made of
KEPT_SHARE = 0.5  # of the predicted gain: what a step has to bring to stay
_HARM = 0.1  # a loss that ends a trial at half its time
_MOST_STRETCHES = 3  # after which a step that nobody could judge is taken back
_MOST_DOUBLINGS = 4  # of the cool-down
_BARRED_COOLDOWNS = 4  # for so many the same step is not made again


class Phase(StrEnum):
    """What it does now."""

    RESTS = "rests"  # until a time
    LISTENS = "listens"  # to a stretch under what is in force
    ASKS = "asks"  # which step would be for the better
    TRIES = "tries"  # a step is in force, and is listened to
    JUDGES = "judges"  # what it has brought is asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """How things stand: the settings in force by dotted key, and since when all was heard without a gap.

    ``version`` counts what operators change. ``is_busy``: a question is being answered.
    """

    values: Mapping[str, Any]
    heard_since_ns: int  # 0: nothing was
    version: int
    why_not: str = ""  # why nothing may be changed now
    is_busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is remembered. ``version`` is the operators' that it goes by."""

    version: int
    since_ns: int  # what was heard before does not count
    phase: Phase = Phase.LISTENS
    reason: str = ""
    until_ns: int = 0  # it rests
    asked: int = 0  # questions; the last one's number
    looks: int = 0  # at the step that is tried
    step: Step | None = None  # that is not judged
    in_a_row: int = 0  # taken back since the last one that stayed
    barred: tuple[tuple[tuple[str, bool], int], ...] = ()  # steps that were for nothing, each until a time


_Next = tuple[State, Order | None]


def advance(state: State, seen: Seen, rules: Rules, now_ns: int, answer: Answer | None = None) -> _Next:
    """The state now, and what is to be done. An answer that nobody waits for any more is ignored."""
    if seen.why_not:
        return _interrupted(state, seen.why_not, now_ns), None
    if seen.version != state.version:
        return _yield_to_operator(state, seen, rules, now_ns)
    if state.step is not None and seen.values.get(state.step.key) != state.step.after:
        what = f"{state.step.key} is no longer what the step made it"
        return _resting(replace(state, step=None), rules.cooldown_ns, what, now_ns), None
    if answer is not None and answer.number == state.asked and state.phase in _ANSWERED:
        return _ANSWERED[state.phase](state, answer, seen, rules, now_ns)
    return _IN[state.phase](state, seen, rules, now_ns)


# What interrupts


def _interrupted(state: State, reason: str, now_ns: int) -> State:
    """What is heard now does not count, and no answer is waited for."""
    if state.phase is Phase.RESTS:
        return state
    phase = Phase.TRIES if state.step is not None else Phase.LISTENS
    return replace(state, phase=phase, since_ns=now_ns, reason=reason)


def _yield_to_operator(state: State, seen: Seen, rules: Rules, now_ns: int) -> _Next:
    step, why = state.step, "an operator changed the configuration"
    rested = _resting(replace(state, step=None, version=seen.version), rules.cooldown_ns, why, now_ns)
    if step is None or seen.values.get(step.key) != step.after:
        return rested, None
    return rested, TakeBack(step=step, reason=f"{why} before it was judged")


# Phase by phase


def _rests(state: State, seen: Seen, rules: Rules, now_ns: int) -> _Next:
    if now_ns < state.until_ns:
        return state, None
    return replace(state, phase=Phase.LISTENS, since_ns=now_ns, reason=""), None


def _listens(state: State, seen: Seen, rules: Rules, now_ns: int) -> _Next:
    if _heard_ns(state, seen, now_ns) < rules.stretch_ns or seen.is_busy:
        return state, None
    barred = {direction: until_ns for direction, until_ns in state.barred if until_ns > now_ns}
    state = replace(state, barred=tuple(barred.items()))
    wanted = []
    for bound in rules.bounds:
        value = seen.values.get(bound.key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            steps = bound.steps(value, rules.step_ratio)
            wanted += [(bound.key, step) for step in steps if (bound.key, step > value) not in barred]
    if not wanted:
        return _resting(state, rules.cooldown_ns, "there is no step within the bounds to be tried", now_ns), None
    asked = state.asked + 1
    return replace(state, phase=Phase.ASKS, asked=asked, reason=""), Ask(number=asked, settings=tuple(wanted))


def _asks(state: State, seen: Seen, rules: Rules, now_ns: int) -> _Next:
    return (state, None) if seen.is_busy else (_listening(state, "the question was lost", now_ns), None)


def _tries(state: State, seen: Seen, rules: Rules, now_ns: int) -> _Next:
    step = _open(state)
    if _is_overdue(step, rules, now_ns):
        return _unclear(state, "nobody could tell in time what it brought", rules, now_ns)
    due_ns = rules.stretch_ns if state.looks else rules.stretch_ns // 2
    if _heard_ns(state, seen, now_ns) < due_ns or seen.is_busy:
        return state, None
    asked = state.asked + 1
    order = Ask(number=asked, settings=((step.key, step.before),))
    return replace(state, phase=Phase.JUDGES, asked=asked, looks=state.looks + 1, reason=""), order


def _judges(state: State, seen: Seen, rules: Rules, now_ns: int) -> _Next:
    if _is_overdue(_open(state), rules, now_ns):
        return _unclear(state, "nobody could tell in time what it brought", rules, now_ns)
    return (
        (state, None) if seen.is_busy else (replace(state, phase=Phase.TRIES, reason="the question was lost"), None)
    )


_IN: Mapping[Phase, Callable[[State, Seen, Rules, int], _Next]] = {
    Phase.RESTS: _rests,
    Phase.LISTENS: _listens,
    Phase.ASKS: _asks,
    Phase.TRIES: _tries,
    Phase.JUDGES: _judges,
}


# Answers


def _choose(state: State, answer: Answer, seen: Seen, rules: Rules, now_ns: int) -> _Next:
    if short := _too_little(answer):
        return _listening(state, short, now_ns), None
    wanted = [each for each in answer.forecasts if each.is_advised]
    best = max(wanted, key=lambda each: gain(rules.goal, each.change), default=None)
    if best is None or gain(rules.goal, best.change) < rules.least_ratio:
        least = f"no step is predicted to gain {100 * rules.least_ratio:g}% or more"
        return _listening(state, least, now_ns), None
    before = seen.values[best.key]
    step = Step(
        key=best.key,
        before=before,
        after=type(before)(best.value),
        at_ns=now_ns,
        predicted=best.change,
        low=best.low,
        high=best.high,
        measured=answer.measured,
        replayed=answer.replayed,
    )
    tried = replace(state, phase=Phase.TRIES, step=step, since_ns=now_ns, looks=0, reason="")
    return tried, Try(step=step, reason=f"it is predicted to change {rules.goal} by {_said(rules, best.change)}")


def _judge(state: State, answer: Answer, seen: Seen, rules: Rules, now_ns: int) -> _Next:
    step, is_early = _open(state), state.looks == 1
    waiting = replace(state, phase=Phase.TRIES)
    how, measured = _effect(step, answer, rules)
    if measured is None:
        return (waiting, None) if is_early else _unclear(state, how, rules, now_ns)
    gained = gain(rules.goal, measured)
    if is_early and gained > -_HARM:
        return waiting, None
    told = f"{how} it changed {rules.goal} by {_said(rules, measured)}"
    told += f", predicted was {_said(rules, step.predicted)}"
    if not is_early and gained >= KEPT_SHARE * gain(rules.goal, step.predicted):
        kept = replace(_listening(state, "", now_ns), step=None, in_a_row=0)
        return kept, Keep(step=step, reason=told, measured=measured)
    cooldown_ns = rules.cooldown_ns << min(state.in_a_row, _MOST_DOUBLINGS)
    barred = (*state.barred, (step.direction, now_ns + _BARRED_COOLDOWNS * cooldown_ns))
    return _taken_back(replace(state, barred=barred), told, cooldown_ns, now_ns, measured)


_ANSWERED: Mapping[Phase, Callable[[State, Answer, Seen, Rules, int], _Next]] = {
    Phase.ASKS: _choose,
    Phase.JUDGES: _judge,
}


# Small parts


def _effect(step: Step, answer: Answer, rules: Rules) -> tuple[str, float | None]:
    """How the step's effect was told, and the effect; or why it cannot be told."""
    if short := _too_little(answer):
        return short, None
    old = answer.forecasts[0].figure if answer.forecasts else nan
    measured = effect(rules.goal, step, answer.measured, old)
    if measured is None:
        return "there is no figure to judge it by", None
    if not load_moved(rules.goal, step, old):
        return "at an equal load", measured
    told = effect_by_model(rules.goal, answer.measured, answer.replayed, old)
    if told is None:
        return "the load is another one than when it was chosen, and a replay does not tell it", None
    return "by replays of the new load", told


def _open(state: State) -> Step:
    assert state.step is not None
    return state.step


def _heard_ns(state: State, seen: Seen, now_ns: int) -> int:
    return now_ns - max(state.since_ns, seen.heard_since_ns) if seen.heard_since_ns else 0


def _is_overdue(step: Step, rules: Rules, now_ns: int) -> bool:
    return now_ns - step.at_ns >= _MOST_STRETCHES * rules.stretch_ns


def _too_little(answer: Answer) -> str:
    few = f"{answer.programs} programs were seen whole, {LEAST_PROGRAMS} are needed: lengthen stretch_s"
    return answer.reason or (few if answer.programs < LEAST_PROGRAMS else "")


def _listening(state: State, reason: str, now_ns: int) -> State:
    return replace(state, phase=Phase.LISTENS, since_ns=now_ns, reason=reason)


def _resting(state: State, for_ns: int, reason: str, now_ns: int) -> State:
    return replace(state, phase=Phase.RESTS, until_ns=now_ns + for_ns, reason=reason)


def _unclear(state: State, reason: str, rules: Rules, now_ns: int) -> _Next:
    """It is not known to be for nothing, so that it may be made again."""
    return _taken_back(state, reason, rules.cooldown_ns, now_ns, None)


def _taken_back(state: State, reason: str, for_ns: int, now_ns: int, measured: float | None) -> _Next:
    step = _open(state)
    in_a_row = state.in_a_row + (measured is not None)
    rested = replace(_resting(state, for_ns, reason, now_ns), step=None, in_a_row=in_a_row)
    return rested, TakeBack(step=step, reason=reason, measured=measured)


def _said(rules: Rules, change: float) -> str:
    return f"{100 * change:+.1f}{' points' if rules.goal in SHARES else '%'}"

"""Step times from turns as an engine served them, side by side: no engine is asked and none has to be idle.

Of each turn an engine tells when it was first scheduled, when its first token came and when it ended. The engine is
taken to prefill first, as the model of it does (``sim/engine_model.py``): between a turn's first schedule and its
first token there are prefill steps alone, its own and those of turns that were scheduled with it. What is left of
the time between a first token and an end are decode steps, whose number is the turn's output; the batch and the
contexts that they had on average are those of the turns that decoded meanwhile.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from controlplane.core.model.errors import ConfigError
from controlplane.lab.calibrate.fit import not_negative, sizes_of

_LEAST_ROWS = 4
_FAR = 4.0  # times the median error: a machine that paused, which is no property of the engine
_MOST_LEFT_OUT = 0.2  # of the rows
_ROUNDS = 20
_MIXED = 1.5  # times what its prefills take did it last: others decoded meanwhile, or the machine paused
_STEP, _SEQUENCE, _CONTEXT = _ALL = 0, 1, 2  # of a decode step's costs
_PRECISION = 0.1  # of a step's time
_NORMAL_MEDIAN = 0.6745  # of the standard deviation: the median of absolute errors that are distributed normally
_LEAST_SCATTER = 1e-3  # of a time
_NS = 1e9
_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One turn as its engine served it. ``steady``: it was neither retracted nor cut off."""

    engine: str
    scheduled_ns: int
    first_token_ns: int
    ended_ns: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    loaded_tokens: int = 0  # of the cached ones, from below the device
    steady: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCosts:
    """In seconds, as ``fit.PrefillCost`` and ``fit.DecodeCost``.

    The errors are mean absolute ones over the measured time. ``load_tokens_per_s``: from below the device; 0: that
    hid behind computing, or nothing was loaded. ``mean_batch``: turns that decoded at a time. ``has_sequence``: if
    false, too few decoded beside each other to say what one adds to a step; ``sequence`` is 0 then, since a step
    reads the model's weights whatever its batch is.
    """

    overhead: float
    token: float
    attention: float
    attends_anew: bool
    base: float
    sequence: float
    context: float
    prefill_error_ratio: float
    decode_error_ratio: float
    load_tokens_per_s: float
    mean_batch: float
    has_sequence: bool
    prefills: int
    turns: int


@dataclass(frozen=True, slots=True)
class _Prefill:
    """Turns whose prefills shared steps, and how long all of it took."""

    turns: tuple[Served, ...]
    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / _NS

    @property
    def loads(self) -> bool:
        """Whether something came from below the device."""
        return any(turn.loaded_tokens for turn in self.turns)

    def sizes(self, chunk_tokens: int, anew: bool) -> tuple[int, int, int]:
        """Steps, new tokens, and pairs of tokens that attend to each other."""
        each = [
            sizes_of(turn.cached_tokens, turn.prompt_tokens - turn.cached_tokens, chunk_tokens, anew)
            for turn in self.turns
        ]
        new = sum(tokens for _, tokens, _ in each)
        steps = max(len({turn.first_token_ns for turn in self.turns}), -(-new // chunk_tokens))
        return steps, new, sum(pairs for _, _, pairs in each)


def fit_served(turns: Sequence[Served], chunk_tokens: int) -> StepCosts:
    """The coefficients of the engines that served ``turns``, which are alike.

    Raises ``ConfigError`` where these are too few to tell.
    """
    of_engine: dict[str, list[Served]] = defaultdict(list)
    for turn in turns:
        of_engine[turn.engine].append(turn)
    prefills_of = {engine: _prefills(served) for engine, served in of_engine.items()}
    prefills = [one for found in prefills_of.values() for one in found]
    plain = [one for one in prefills if one.seconds > 0 and not one.loads]
    _enough(len(plain), "prefills")
    (overhead, token, attention), anew, prefill_error = _fit_prefills(plain, chunk_tokens)

    def predicted(one: _Prefill) -> float:
        return float(np.dot((overhead, token, attention), one.sizes(chunk_tokens, anew)))

    decodes = []
    for engine, found in prefills_of.items():
        mixed = [one for one in found if one.seconds > _MIXED * predicted(one)]
        decodes += _decodes(of_engine[engine], found, mixed)
    _enough(len(decodes), "replies of several tokens")
    rows, lasted = np.array([sizes for sizes, _ in decodes]), np.array([seconds for _, seconds in decodes])
    identifiable = _identifiable_costs(rows, lasted)
    (base, sequence, context), decode_error = _fit(rows, lasted, identifiable)
    return StepCosts(
        overhead=overhead,
        token=token,
        attention=attention,
        attends_anew=anew,
        base=base,
        sequence=sequence,
        context=context,
        prefill_error_ratio=prefill_error,
        decode_error_ratio=decode_error,
        mean_batch=float(np.average(rows[:, 1] / rows[:, 0], weights=lasted)),
        has_sequence=_SEQUENCE in identifiable,
        load_tokens_per_s=_load_rate([one for one in prefills if one.loads], predicted),
        prefills=len(prefills),
        turns=len(turns),
    )


def _enough(found: int, what: str) -> None:
    if found < _LEAST_ROWS:
        raise ConfigError(
            f"too little was served to tell step times from: {found} {what}, at least {_LEAST_ROWS} are needed; "
            "take a longer stretch"
        )


def _prefills(turns: Sequence[Served]) -> list[_Prefill]:
    found: list[_Prefill] = []
    together: list[Served] = []
    end_ns = 0
    for turn in sorted(turns, key=lambda turn: (turn.scheduled_ns, turn.first_token_ns)):
        if together and turn.scheduled_ns >= end_ns:
            found.append(_Prefill(tuple(together), together[0].scheduled_ns, end_ns))
            together = []
        end_ns = max(end_ns, turn.first_token_ns) if together else turn.first_token_ns
        together.append(turn)
    if together:
        found.append(_Prefill(tuple(together), together[0].scheduled_ns, end_ns))
    return found


def _decodes(
    turns: Sequence[Served], prefills: Sequence[_Prefill], mixed: Sequence[_Prefill]
) -> list[tuple[_Floats, float]]:
    """Of each steady turn: decode steps, those times the batch, and times the batch's contexts; and the seconds.

    Within ``mixed`` ones there was more than prefills, unknown how much: turns that decoded meanwhile tell nothing.
    """
    decoding = [turn for turn in turns if turn.ended_ns > turn.first_token_ns]
    if not decoding:
        return []
    begins = np.array([turn.first_token_ns for turn in decoding])
    ends = np.array([turn.ended_ns for turn in decoding])
    contexts = np.array([turn.prompt_tokens + turn.output_tokens / 2 for turn in decoding])
    stops = np.array([one.begin_ns for one in prefills]), np.array([one.end_ns for one in prefills])
    times = np.unique(np.concatenate([begins, ends, *stops]))
    at_begin, at_end = np.searchsorted(times, begins), np.searchsorted(times, ends)

    def running(weights: _Floats, first: NDArray[np.int64], last: NDArray[np.int64]) -> _Floats:
        """What goes on in each interval between two times."""
        steps = np.zeros(len(times))
        np.add.at(steps, first, weights)
        np.add.at(steps, last, -weights)
        return np.cumsum(steps)[:-1]

    free = running(np.ones(len(prefills)), *(np.searchsorted(times, each) for each in stops)) < 0.5
    lasting = np.diff(times) / _NS * free
    batch = running(np.ones(len(decoding)), at_begin, at_end)
    held = running(contexts, at_begin, at_end)

    def over(values: _Floats) -> _Floats:
        """Summed over each turn's time."""
        sums = np.concatenate([[0.0], np.cumsum(values)])
        return np.asarray(sums[at_end] - sums[at_begin], dtype=np.float64)

    seconds, batches, tokens = over(lasting), over(batch * lasting), over(held * lasting)
    found = []
    for index, turn in enumerate(decoding):
        steps = turn.output_tokens - 1
        clear = not any(turn.first_token_ns < one.end_ns and one.begin_ns < turn.ended_ns for one in mixed)
        if turn.steady and clear and steps > 0 and seconds[index] > 0:
            mean_batch, mean_tokens = batches[index] / seconds[index], tokens[index] / seconds[index]
            found.append((np.array([steps, steps * mean_batch, steps * mean_tokens]), float(seconds[index])))
    return found


def _fit_prefills(
    prefills: Sequence[_Prefill], chunk_tokens: int
) -> tuple[tuple[float, float, float], bool, float]:
    """With the attention that fits better."""
    seconds = np.array([one.seconds for one in prefills])
    found = []
    for anew in (False, True):
        rows = np.array([one.sizes(chunk_tokens, anew) for one in prefills], dtype=np.float64)
        coefficients, error = _fit(rows, seconds)
        found.append((error, anew, coefficients))
    error, anew, coefficients = min(found)
    return coefficients, anew, error


def _identifiable_costs(rows: _Floats, seconds: _Floats) -> tuple[int, ...]:
    """Which of a decode step's costs the rows tell from each other.

    Where turns decoded alone, all of a step might be the step's own or its one sequence's, and where their contexts
    are alike as well, it might be the context's: the best fit is a matter of chance, and with many turns at once it
    makes all of the difference. What is not told is the step's own.
    """
    if _is_identifiable(rows, seconds, _SEQUENCE, (_STEP, _CONTEXT)):
        return _ALL
    return (_STEP, _CONTEXT) if _is_identifiable(rows, seconds, _CONTEXT, (_STEP,)) else (_STEP,)


def _is_identifiable(rows: _Floats, seconds: _Floats, column: int, others: tuple[int, ...]) -> bool:
    """Whether what a usual step owes to that cost is known within a tenth of the step, in 95 of 100 cases."""
    factors, *_ = np.linalg.lstsq(rows[:, others], rows[:, column], rcond=None)
    apart = float(np.linalg.norm(rows[:, column] - rows[:, others] @ factors))  # what no other cost explains
    fitted = rows[:, (*others, column)]
    coefficients, *_ = np.linalg.lstsq(fitted, seconds, rcond=None)
    scatter = float(np.median(np.abs(fitted @ coefficients - seconds))) / _NORMAL_MEDIAN
    scatter = max(scatter, _LEAST_SCATTER * float(seconds.mean()))
    return 2 * scatter * float(rows[:, column].sum()) <= _PRECISION * float(seconds.sum()) * apart


def _fit(rows: _Floats, seconds: _Floats, among: Sequence[int] = _ALL) -> tuple[tuple[float, float, float], float]:
    """Coefficients that make the sum of times right, without the few rows that are far off; and the mean error.

    One row that is far off bends the first fit, so that others look far off as well: it is repeated until the same
    rows are left out.
    """
    near = np.ones(len(seconds), dtype=bool)
    for _ in range(_ROUNDS):
        coefficients, _ = not_negative(rows[near], seconds[near], relative=False, among=among)
        errors = np.abs(rows @ np.array(coefficients) - seconds)
        most = max(_FAR * float(np.median(errors)), float(np.quantile(errors, 1 - _MOST_LEFT_OUT)))
        again = errors <= most
        if again.sum() < _LEAST_ROWS or (again == near).all():
            break
        near = again
    return coefficients, float(errors.sum() / seconds.sum())


def _load_rate(loading: Sequence[_Prefill], predicted: Callable[[_Prefill], float]) -> float:
    """Tokens a second, where loading took longer than what was computed beside it."""
    bound = [one for one in loading if one.seconds > 1.2 * predicted(one)]
    seconds = sum(one.seconds for one in bound)
    return sum(turn.loaded_tokens for one in bound for turn in one.turns) / seconds if seconds else 0.0

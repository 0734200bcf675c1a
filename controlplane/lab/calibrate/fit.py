"""Coefficients of an engine's step times from measured requests.

A prompt is prefilled in chunks. A chunk of ``t`` tokens behind ``s`` of context takes

    overhead + token t + attention ((s + t)^2 - s^2)

or, for engines whose attention goes through the whole sequence again with every chunk (SGLang's ``torch_native``,
the one for CPUs), ``attention (s + t)^2``: whichever fits better. A decode step of ``b`` sequences with ``c``
tokens of context together takes ``base + sequence b + context c``. Coefficients are not negative and are chosen
to make the relative errors small.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from controlplane.core.model.errors import ConfigError

_LEAST_SHARE = 0.1  # of a measured time that is left for the prefill, however noisy


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A request for one token: ``new`` tokens behind ``cached`` ones took ``seconds``."""

    cached: int
    new: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """``seconds`` a step while ``batch`` sequences of ``context`` tokens each decode together."""

    batch: int
    context: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """The first token of a streamed chat completion, its prompt a text of ``tokens``, came after ``seconds``."""

    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillCost:
    """In seconds. ``attends_anew``: a chunk's attention goes through the whole sequence."""

    overhead: float
    token: float
    attention: float
    attends_anew: bool
    worst_error_ratio: float

    def of(self, cached: int, new: int, chunk_tokens: int) -> float:
        """What a request takes."""
        chunks, tokens, pairs = sizes_of(cached, new, chunk_tokens, self.attends_anew)
        return self.overhead * chunks + self.token * tokens + self.attention * pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCost:
    """In seconds."""

    base: float
    sequence: float
    context: float
    worst_error_ratio: float

    def of(self, batch: int, context: int) -> float:
        """What a step takes, with ``context`` tokens each."""
        return self.base + self.sequence * batch + self.context * batch * context


def fit_prefill(measured: Sequence[Prefill], chunk_tokens: int) -> PrefillCost:
    """The coefficients. Raises ``ConfigError`` for fewer than four measurements."""
    _enough(measured, "prefill")
    seconds = np.array([one.seconds for one in measured])
    found = []
    for anew in (False, True):
        sizes = [sizes_of(one.cached, one.new, chunk_tokens, anew) for one in measured]
        (overhead, token, attention), errors = not_negative(np.array(sizes, dtype=np.float64), seconds)
        cost = PrefillCost(
            overhead=overhead,
            token=token,
            attention=attention,
            attends_anew=anew,
            worst_error_ratio=float(np.abs(errors).max()),
        )
        found.append((float((errors**2).sum()), anew, cost))
    return min(found)[2]


def fit_decode(measured: Sequence[Decode]) -> DecodeCost:
    """The coefficients. Raises ``ConfigError`` for fewer than four measurements."""
    _enough(measured, "decode")
    sizes = np.array([(1, one.batch, one.batch * one.context) for one in measured], dtype=np.float64)
    (base, sequence, context), errors = not_negative(sizes, np.array([one.seconds for one in measured]))
    return DecodeCost(base=base, sequence=sequence, context=context, worst_error_ratio=float(np.abs(errors).max()))


def without_late_step(measured: Sequence[Prefill], decode: DecodeCost) -> list[Prefill]:
    """The prefills alone, on an engine that tells of a step when the next one is done: a decode step in vain."""
    return [
        replace(one, seconds=max(_LEAST_SHARE * one.seconds, one.seconds - decode.of(1, one.cached + one.new)))
        for one in measured
    ]


def turn_overhead(chats: Sequence[Chat], prefill_s: Callable[[int, int], float]) -> float:
    """Seconds that a chat's turn takes beside its prefill: template, tokenizer, the first event of the stream.

    ``prefill_s`` is what a request for one token takes, by cached and new tokens. The median; 0 where no chat was
    measured.
    """
    overheads = [one.seconds - prefill_s(0, one.tokens) for one in chats]
    return max(0.0, statistics.median(overheads)) if overheads else 0.0


def _enough(measured: Sequence[object], what: str) -> None:
    if len(measured) < 4:
        raise ConfigError(
            f"{what}: expected four measurements or more to fit three coefficients, got {len(measured)}"
        )


def sizes_of(cached: int, new: int, chunk_tokens: int, anew: bool) -> tuple[int, int, int]:
    """Chunks of a request, its tokens, and the pairs of tokens that attend to each other."""
    chunks = pairs = 0
    start = cached
    while start < cached + new:
        end = min(cached + new, start + chunk_tokens)
        chunks += 1
        pairs += end * end if anew else end * end - start * start
        start = end
    return chunks, new, pairs


def not_negative(
    sizes: NDArray[np.float64],
    seconds: NDArray[np.float64],
    *,
    relative: bool = True,
    among: Sequence[int] = (0, 1, 2),
) -> tuple[tuple[float, float, float], NDArray[np.float64]]:
    """Three coefficients by least squares, none below zero, and the errors.

    ``sizes`` has three columns and a row for each of ``seconds``. Of the errors as shares of the measured times,
    or (``relative`` false) as shares of their mean: then the sum comes out right, however single ones scatter.
    Every set of coefficients that may be above zero is tried, of the columns in ``among``: the others stay zero.
    """
    scale = seconds if relative else np.full(len(seconds), seconds.mean())
    scaled, wanted = sizes / scale[:, None], seconds / scale
    best: tuple[float, tuple[float, float, float], NDArray[np.float64]] | None = None
    for count in range(len(among), 0, -1):
        for columns in combinations(among, count):
            chosen, *_ = np.linalg.lstsq(scaled[:, columns], wanted, rcond=None)
            if (chosen < 0).any():
                continue
            coefficients = np.zeros(3)
            coefficients[list(columns)] = chosen
            errors = scaled @ coefficients - wanted
            score = float((errors**2).sum())
            if best is None or score < best[0]:
                best = score, (float(coefficients[0]), float(coefficients[1]), float(coefficients[2])), errors
    assert best is not None, "one positive column alone always fits"
    return best[1], best[2]

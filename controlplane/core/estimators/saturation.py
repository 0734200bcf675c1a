"""What one more turn that runs would bring: the time that turns would take alone, over the time that they take.

Turns that run together share each step of the engine. With n of them a turn takes A + B n, so that n / (A + B n)
turns end at a time, and one percent more of them running ends A / (A + B n) percent more. That is what a turn would
take alone over what it takes: near 1 where a step mostly reads the weights, whoever shares it, and near 0 where
computing is saturated, so that one more only makes each of the others slower (docs/adr/0019).

What a reply's token takes alone is the least that was seen. It must not drift up while the engine is saturated, or
that would count as usual: so only turns that were in fact alone raise it, as after a change of the engine.
"""

from dataclasses import dataclass

from controlplane.core.model.events import TurnEnded

_FADE = 0.98  # by the turn, like the other parts of a price: half of the weight is in the latest 35
_RISE = 0.02  # likewise
_LEAST_TOKENS = 16  # a reply is timed to a step: in a shorter one that is more than a sixteenth


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilled:
    """A turn's prefill: what it took, and would have taken alone; whether nothing else was in the engine then."""

    took_ns: int
    alone_ns: int
    alone: bool


@dataclass(slots=True, kw_only=True)
class BatchSaturation:
    """Sums over turns, older ones fading."""

    token_ns: float = 0.0  # between two tokens of a reply that has the engine for itself; 0: not known
    alone_ns: float = 0.0
    service_ns: float = 0.0

    def add(self, prefilled: Prefilled, ended: TurnEnded, *, alone: bool) -> None:
        """Learn one turn. ``alone``: when it ended no other was in the engine."""
        decode_ns, between = ended.service_ns - prefilled.took_ns, ended.output_tokens - 1
        if ended.output_tokens < _LEAST_TOKENS or decode_ns <= 0:
            return
        token_ns = decode_ns / between
        if not self.token_ns or token_ns < self.token_ns:
            self.token_ns = token_ns
        elif alone and prefilled.alone:
            self.token_ns += _RISE * (token_ns - self.token_ns)
        self.alone_ns = _FADE * self.alone_ns + prefilled.alone_ns + between * self.token_ns
        self.service_ns = _FADE * self.service_ns + ended.service_ns

    @property
    def marginal_throughput(self) -> float:
        """The share of their time in the engine that turns would take alone; 1 while nothing is known."""
        return min(1.0, self.alone_ns / self.service_ns) if self.service_ns else 1.0

"""A profile file from what was measured."""

from dataclasses import dataclass

from controlplane.lab.calibrate.fit import (
    DecodeCost,
    PrefillCost,
    fit_decode,
    fit_prefill,
    turn_overhead,
    without_late_step,
)
from controlplane.lab.calibrate.measure import Engine, Measured
from controlplane.lab.sim.profile import FittedProfile


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What an engine's requests take, as fitted."""

    engine: Engine
    prefill: PrefillCost
    decode: DecodeCost

    def first_token_s(self, cached: int, new: int) -> float:
        """A request for one token."""
        late_s = self.decode.of(1, cached + new) if self.engine.results_late else 0.0
        return self.prefill.of(cached, new, self.engine.chunk_tokens) + late_s


def fit(measured: Measured) -> Costs:
    """The coefficients. Raises ``ConfigError`` where too little was measured."""
    engine, decode = measured.engine, fit_decode(measured.decode)
    prefills = without_late_step(measured.prefill, decode) if engine.results_late else measured.prefill
    return Costs(engine=engine, prefill=fit_prefill(prefills, engine.chunk_tokens), decode=decode)


def to_profile(
    measured: Measured, costs: Costs, name: str, source: str = "", kv_bytes_per_token: int = 0
) -> FittedProfile:
    """The file's content."""
    engine, prefill, decode = costs.engine, costs.prefill, costs.decode
    return FittedProfile(
        name=name,
        source=source or f"SGLang {engine.version}, {engine.model}, chunks of {engine.chunk_tokens} tokens",
        results_late=engine.results_late,
        turn_overhead_us=_round(turn_overhead(measured.chats, costs.first_token_s) * 1e6),
        step_overhead_us=_round(prefill.overhead * 1e6),
        prefill_token_us=_round(prefill.token * 1e6),
        attention_ps=_round(prefill.attention * 1e12),
        attends_anew=prefill.attends_anew,
        decode_base_us=_round(decode.base * 1e6),
        decode_sequence_us=_round(decode.sequence * 1e6),
        decode_context_ns=_round(decode.context * 1e9),
        kv_pool_tokens=engine.pool_tokens,
        max_context_tokens=engine.context_tokens,
        kv_bytes_per_token=kv_bytes_per_token,
        prefill_s={f"{one.cached}+{one.new}": _round(one.seconds) for one in measured.prefill},
        decode_s={f"{one.batch}x{one.context}": _round(one.seconds) for one in measured.decode},
    )


def _round(value: float) -> float:
    return float(f"{value:.5g}")

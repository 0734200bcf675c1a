"""A profile file from what was measured."""

from controlplane.calibrate.fit import DecodeCost, PrefillCost, fit_decode, fit_prefill, turn_overhead
from controlplane.calibrate.measure import Measured
from controlplane.sim.profile_file import FittedProfile


def to_profile(
    measured: Measured, name: str, source: str = "", kv_bytes_per_token: int = 0
) -> tuple[FittedProfile, PrefillCost, DecodeCost]:
    """The file's content, and the two fits. Raises ``ConfigError`` where too little was measured."""
    engine = measured.engine
    prefill = fit_prefill(measured.prefill, engine.chunk_tokens)
    decode = fit_decode(measured.decode)
    profile = FittedProfile(
        name=name,
        source=source or f"SGLang {engine.version}, {engine.model}, chunks of {engine.chunk_tokens} tokens",
        turn_overhead_us=_round(turn_overhead(measured.chats, prefill, engine.chunk_tokens) * 1e6),
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
    return profile, prefill, decode


def _round(value: float) -> float:
    return float(f"{value:.5g}")

"""Hardware profiles: measured and fitted ones (a calibration), and analytic ones (a roofline from specifications).

The built-in ones lie beside this file, in ``profiles/``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from controlplane.core.model.errors import ConfigError
from controlplane.lab.sim.hardware import Profile
from controlplane.wire.files import read_bytes

PROFILES = Path(__file__).parent / "profiles"
_MOST_BYTES = 1 << 24

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]
_CountOrZero = Annotated[int, msgspec.Meta(ge=0)]
_Ratio = Annotated[float, msgspec.Meta(gt=0, le=1)]

# Beyond the last measured length attention dominates: the curve goes on as a quadratic, in these lengths.
_EXTENDED_TOKENS = tuple(1 << power for power in range(17, 22))
# An analytic curve is tabulated densely enough that linear steps miss the quadratic by under 1%.
_ANALYTIC_TOKENS = (0, *(sorted({round(2 ** (power / 8)) for power in range(48, 169)})))


class _Calibration(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What both kinds of calibration have."""

    name: str
    source: str
    step_overhead_us: _NotNegative
    decode_base_us: _NotNegative
    decode_sequence_us: _NotNegative
    decode_context_ns: _NotNegative
    kv_pool_tokens: _Count
    max_context_tokens: _Count
    kv_bytes_per_token: _CountOrZero = 0  # 0: not known

    def with_curve(self, curve: Sequence[tuple[int, int]], **more: Any) -> Profile:
        """The profile; ``curve``: prompt lengths, and ns to prefill them."""
        return Profile(
            name=self.name,
            source=self.source,
            prefill_tokens=tuple(tokens for tokens, _ in curve),
            prefill_cumulative_ns=tuple(ns for _, ns in curve),
            step_overhead_ns=round(self.step_overhead_us * 1e3),
            decode_base_ps=round(self.decode_base_us * 1e6),
            decode_sequence_ps=round(self.decode_sequence_us * 1e6),
            decode_context_ps=round(self.decode_context_ns * 1e3),
            kv_pool_tokens=self.kv_pool_tokens,
            max_context_tokens=self.max_context_tokens,
            kv_bytes_per_token=self.kv_bytes_per_token,
            **more,
        )


class MeasuredProfile(_Calibration, tag_field="kind", tag="measured", kw_only=True):
    """Times measured on a running engine; the decode coefficients are fitted to ``decode_s``."""

    prefill_s: dict[str, _Positive]  # prompt tokens -> seconds to the first token, overhead included
    decode_s: dict[str, _Positive]  # "batch x context" -> seconds a step; what the fit was made of
    decode_base_us: _Positive


class FittedProfile(_Calibration, tag_field="kind", tag="fitted", kw_only=True):
    """Coefficients fitted to a running engine's times: what ``penstock calibrate`` writes.

    ``attention_ps`` is a pair of tokens' share; ``attends_anew``: each chunk attends through the whole sequence;
    ``turn_overhead_us``: what a turn takes before the scheduler has it; ``results_late``: what a step did is known
    when the next one is done.
    """

    prefill_token_us: _NotNegative
    attention_ps: _NotNegative
    attends_anew: bool
    turn_overhead_us: _NotNegative = 0
    results_late: bool = False
    prefill_s: dict[str, _Positive] = {}  # "cached+new" -> seconds: what the fit was made of
    decode_s: dict[str, _Positive] = {}  # "batch x context" -> seconds a step


class AnalyticProfile(msgspec.Struct, tag_field="kind", tag="analytic", forbid_unknown_fields=True, kw_only=True):
    """A roofline of a device and a model; the default model is Llama-3.1-8B in bf16.

    All ``parameters`` lie in memory. A token computes with the active ones; a decode step reads all, since each of
    tens of sequences picks experts of its own. ``devices``: of a tensor-parallel group, which share weights, KV and
    work; each layer adds up what they computed twice, over the link.
    """

    name: str
    source: str
    flops_per_s: _Positive
    memory_bytes_per_s: _Positive
    memory_bytes: _Positive
    linear_efficiency_ratio: _Ratio
    attention_efficiency_ratio: _Ratio
    bandwidth_efficiency_ratio: _Ratio
    memory_use_ratio: _Ratio
    step_overhead_us: _NotNegative
    sequence_us: _NotNegative
    parameters: _Positive = 8.03e9
    active_parameters: _NotNegative = 0.0  # of a mixture of experts: those that one token uses; 0: all
    layers: _Count = 32
    hidden: _Count = 4096
    kv_heads: _Count = 8
    head_dim: _Count = 128
    bytes_per_value: _Count = 2
    bytes_per_parameter: _NotNegative = 0.0  # of quantized weights; 0: as any value
    max_context_tokens: _Count = 131072
    devices: _Count = 1
    link_bytes_per_s: _Positive = 450e9  # from each device, NVLink's fourth generation; asked with several devices
    link_us: _NotNegative = 10.0  # before the first byte of a sum arrives


def list_profiles() -> Mapping[str, str]:
    """The built-in profiles: name to source."""
    return {path.stem: load_profile(path.stem).source for path in sorted(PROFILES.glob("*.json"))}


def load_profile(name_or_path: str | Path) -> Profile:
    """A built-in profile by name, or a profile file by path. Raises ``ConfigError``."""
    built_in = {path.stem: path for path in PROFILES.glob("*.json")}
    path = built_in.get(str(name_or_path), Path(name_or_path))
    try:
        return read_profile(path)
    except ConfigError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        known = ", ".join(sorted(built_in))
        raise ConfigError(
            f"profile: no built-in profile and no file {str(name_or_path)!r}; built in: {known}", field="profile"
        ) from None


def read_profile(path: Path) -> Profile:
    """Read a profile file. Raises ``ConfigError`` with the path of the file and of the field."""
    try:
        data = msgspec.json.decode(
            read_bytes(path, _MOST_BYTES), type=MeasuredProfile | FittedProfile | AnalyticProfile
        )
        if isinstance(data, FittedProfile):
            return fitted(data)
        return _measured(data) if isinstance(data, MeasuredProfile) else _analytic(data)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the profile: {error.strerror}", field="profile") from error
    except (msgspec.MsgspecError, ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}", field="profile") from error


def _measured(data: MeasuredProfile) -> Profile:
    try:
        points = sorted((int(tokens), value) for tokens, value in data.prefill_s.items())
    except ValueError as error:
        raise ConfigError(f"$.prefill_s: expected prompt lengths in tokens as keys: {error}") from error
    if len(points) < 2 or points[0][0] < 1:
        raise ConfigError("$.prefill_s: expected at least two lengths, each >= 1 token")
    curve = [(0, 0)]
    for length, value in points:
        ns = round(value * 1e9 - data.step_overhead_us * 1e3)
        if ns <= curve[-1][1]:
            raise ConfigError(f"$.prefill_s.{length}: expected more than the shorter length's time, got {value}")
        curve.append((length, ns))
    (n0, t0), (n1, t1) = curve[-2:]
    quadratic = max(0.0, (t1 / n1 - t0 / n0) / (n1 - n0))
    linear = t1 / n1 - quadratic * n1
    for length in _EXTENDED_TOKENS:
        ns = round(linear * length + quadratic * length * length)
        if length > curve[-1][0] and ns > curve[-1][1]:
            curve.append((length, ns))
    return data.with_curve(curve)


def fitted(data: FittedProfile) -> Profile:
    """What such a file describes. Raises ``ConfigError`` where nothing takes time."""
    token_ns, pair_ns = data.prefill_token_us * 1e3, 0.0 if data.attends_anew else data.attention_ps / 1e3
    curve = [(n, round(token_ns * n + pair_ns * n * n)) for n in _ANALYTIC_TOKENS]
    if curve[-1][1] < 1 and not data.attention_ps:
        raise ConfigError("$.prefill_token_us: expected a prefill that takes time")
    if not (data.decode_base_us or data.decode_sequence_us or data.decode_context_ns):
        raise ConfigError("$.decode_base_us: expected a decode step that takes time")
    return data.with_curve(
        curve,
        attention_anew_fs=round(data.attention_ps * 1e3) if data.attends_anew else 0,
        turn_overhead_ns=round(data.turn_overhead_us * 1e3),
        results_late=data.results_late,
    )


def _analytic(data: AnalyticProfile) -> Profile:
    if data.active_parameters > data.parameters:
        raise ConfigError(
            f"$.active_parameters: expected at most {data.parameters:g}, got {data.active_parameters:g}"
        )
    active = data.active_parameters or data.parameters
    flops_per_s, memory_bytes_per_s, memory_bytes = (
        each * data.devices for each in (data.flops_per_s, data.memory_bytes_per_s, data.memory_bytes)
    )
    # Causal attention: 4 * layers * hidden * context per token, half of it up to a length n in all.
    attention_flops = 2 * data.layers * data.hidden
    weight_bytes = data.parameters * (data.bytes_per_parameter or data.bytes_per_value)
    token_bytes = 2 * data.layers * data.kv_heads * data.head_dim * data.bytes_per_value
    bytes_per_s = memory_bytes_per_s * data.bandwidth_efficiency_ratio
    sum_us, sum_ns = _sums(data)
    linear_ns = 1e9 * 2 * active / (flops_per_s * data.linear_efficiency_ratio) + sum_ns
    attention_ns = 1e9 * attention_flops / (flops_per_s * data.attention_efficiency_ratio)
    pool_tokens = int((memory_bytes * data.memory_use_ratio - weight_bytes) / token_bytes)
    if pool_tokens < 1:
        raise ConfigError(
            f"$.memory_bytes: expected room for {weight_bytes:g} bytes of weights, got {memory_bytes:g}"
        )
    return Profile(
        name=data.name,
        source=data.source,
        prefill_tokens=_ANALYTIC_TOKENS,
        prefill_cumulative_ns=tuple(round(linear_ns * n + attention_ns * n * n) for n in _ANALYTIC_TOKENS),
        step_overhead_ns=round((data.step_overhead_us + sum_us) * 1e3),
        decode_base_ps=round(1e12 * weight_bytes / bytes_per_s + sum_us * 1e6),
        decode_sequence_ps=round(data.sequence_us * 1e6 + sum_ns * 1e3),
        decode_context_ps=round(1e12 * token_bytes / bytes_per_s),
        kv_pool_tokens=pool_tokens,
        max_context_tokens=data.max_context_tokens,
        kv_bytes_per_token=token_bytes,
    )


def _sums(data: AnalyticProfile) -> tuple[float, float]:
    """What adding up costs: us a step, and ns a token. Each of n devices sends 2 (n - 1) / n of what is added."""
    if data.devices == 1:
        return 0.0, 0.0
    sums = 2 * data.layers
    sent_bytes = sums * data.hidden * data.bytes_per_value * 2 * (data.devices - 1) / data.devices
    return sums * data.link_us, 1e9 * sent_bytes / data.link_bytes_per_s

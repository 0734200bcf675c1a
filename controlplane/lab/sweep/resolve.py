"""What a sweep's file leaves to be found: programs, pools sized by them, and the rate at which a node saturates.

``load:X`` stands for Poisson arrivals at X times the rate that no order of programs could sustain more of, and
``load:X:N`` for bursts of N at that mean rate. That rate is the bound's (``lab/sim/bound.py``): it needs no run,
and no preset is favoured by it. What a real order sustains lies below it.
"""

import functools

import msgspec

from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import preset
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.bound import Bound
from controlplane.lab.simulate import bound_of, engine_of, trace_of
from controlplane.lab.workload.arrivals import Arrival, Closed, at_rate, parse_arrival
from controlplane.lab.workload.telemetry import Telemetry

_LOAD = "load:"
_MORE = ', "load:X" (times the saturation rate), "load:X:N" (in bursts of N)'


def check_arrival(text: str) -> None:
    """Raises ``ConfigError`` for arrivals that make no sense."""
    _at_load(text, 1.0)


def resolved(text: str, workload: Workload, hardware: Hardware) -> Arrival:
    """The arrivals on that hardware: a load as a rate, any other open rate times the hardware's factor."""
    if text.startswith(_LOAD):
        return _at_load(text, saturation_rate(workload, hardware))
    arrival = parse_arrival(text, more=_MORE)
    if isinstance(arrival, Closed) or hardware.rate_factor == 1:
        return arrival
    return at_rate(arrival, hardware.rate_factor * arrival.rate)


def _at_load(text: str, saturation: float) -> Arrival:
    if not text.startswith(_LOAD):
        return parse_arrival(text, more=_MORE)
    load, _, number = text.removeprefix(_LOAD).partition(":")
    try:
        arrival = parse_arrival(f"burst:{load}:{number}" if number else f"poisson:{load}")
    except ConfigError:
        help_ = "expected load:X (times the saturation rate) or load:X:N (in bursts of N)"
        raise ConfigError(f"arrival: {help_}, got {text!r}", field="arrival") from None
    if isinstance(arrival, Closed) or not saturation:
        raise ConfigError(f"arrival: {text!r}: no program fits the engine, so there is no load", field="arrival")
    return at_rate(arrival, saturation * arrival.rate)


def saturation_rate(workload: Workload, hardware: Hardware) -> float:
    """Programs a second that no order can sustain more of; 0 where none fits. Raises ``ConfigError``."""
    return _bound(workload, hardware, "closed:1", 1).rate


def bound_jct_s(workload: Workload, hardware: Hardware, arrival: str, seed: int) -> float:
    """The mean JCT that no order can beat, with those arrivals."""
    return _bound(workload, hardware, arrival, seed).jct_mean_s


def _bound(workload: Workload, hardware: Hardware, arrival: str, seed: int) -> Bound:
    silent = msgspec.structs.replace(workload, telemetry=Telemetry.NONE)  # what is told does not matter
    return _bound_of(silent, hardware, arrival, seed)


@functools.lru_cache(maxsize=256)
def _bound_of(workload: Workload, hardware: Hardware, arrival: str, seed: int) -> Bound:
    plain = Experiment(
        workload=workload, hardware=hardware, arrival=parse_arrival(arrival), preset=preset("fcfs"), seed=seed
    )
    return bound_of(plain)


def found(workload: Workload, hardware: Hardware) -> str:
    """What was found for the two, in words."""
    engine = engine_of(hardware, workload.scale.apply(trace_of(workload)).programs)
    return (
        f"{workload.title} on {hardware.title}: a pool of {engine.size_tokens:,} tokens, saturated at "
        f"{saturation_rate(workload, hardware):.4g} programs/s"
    )

"""The bound of a simulated run, whatever its preset."""

from controlplane.lab.sim.bound import Bound, bound
from controlplane.lab.sim.simulate import SimSpec, choose_programs
from controlplane.lab.workload.arrivals import Closed, times_ns


def bound_of(spec: SimSpec) -> Bound:
    """For its programs, scaled and drawn as it draws them, arriving as they do there."""
    programs = choose_programs(spec)
    arrivals_ns = None if isinstance(spec.arrival, Closed) else times_ns(spec.arrival, len(programs), spec.seed)
    return bound(programs, spec.engine, spec.shared_prefix_tokens, arrivals_ns)

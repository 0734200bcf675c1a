"""Small experiments for whole runs."""

from typing import Any

from engine_operations import TOY

from controlplane.core.policies.presets import DEFAULT, PRESETS
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.synthetic import synthesize


def experiment(**changes: Any) -> Experiment:
    """Twelve programs on a toy engine; ``changes`` are of the experiment, its workload and its hardware."""
    fields: dict[str, Any] = {
        "trace": synthesize("swe-bench", programs=12, seed=2),
        "arrival": Poisson(0.5),
        "profile": TOY,
        "preset": PRESETS[DEFAULT],
        "seed": 0,
    } | changes

    def own(kind: Any) -> dict[str, Any]:
        names = set(kind.__struct_fields__) - {"trace", "profile", "tools"}
        return {name: fields.pop(name) for name in names & set(fields)}

    workload, hardware = Workload(trace="in hand", **own(Workload)), Hardware(name="toy", **own(Hardware))
    return Experiment(workload=workload, hardware=hardware, **fields)

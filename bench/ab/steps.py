"""What the engine's steps cost while agents use it, from a log of every step: a profile for the simulator.

An idle engine has the machine for itself. Under load the tokenizer, the HTTP server, the agents and the daemon
take their share of the same CPUs, and each step waits for its slowest thread. So the log is of a load like those
that are to be predicted, but of a seed that none of them has.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from ab import ROOT
from ab.engine import versions
from ab.kinds import KINDS, SGLANG
from ab.machine import cpus, model_name
from ab.one_run import NODE, Lines, served
from ab.scenario import Scenario
from ab.systems import System
from controlplane.lab.calibrate.fit import not_negative
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.replay import replay
from controlplane.lab.sim.profile_file import FittedProfile
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.wire.endpoint import resolve_url
from controlplane.wire.roles import BusRole

STEPS = ROOT / "bench" / "hook_parts" / "steps"
SEED, RATE, PROGRAMS = 101, 0.065, 24  # programs a second for each CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the scheduler.

    ``prefilled``: (new, cached) tokens of each prompt; ``decoding``: sequences, and the tokens of all of them.
    """

    began_ns: int
    ended_ns: int
    was_idle: bool  # before it
    prefilled: Sequence[tuple[int, int]]
    decoding: tuple[int, int]


def record(folder: Path, environment: Path, scenario: Scenario, system: System) -> tuple[list[Step], RunResult]:
    """Serve the calibration's load, and write down the engine's steps. About ten minutes on one CPU.

    ``system``: its processes take their share of the CPUs; what it decides does not enter a step's cost.
    """
    log, few = folder / "steps.jsonl", replace(scenario, programs=min(PROGRAMS, scenario.programs))
    more = {"PYTHONPATH": f"{STEPS}{os.pathsep}{ROOT}", "STEP_LOG": str(log)}
    if not system.has_plugin:  # the log comes with the plugin: it finds no daemon, and lets all pass
        more |= {"PENSTOCK_NODE": "calibration", "PENSTOCK_STATE_DIR": str(folder / "state")}
    with served(system, scenario, environment, folder, plugins=("penstock",), more=more) as server:
        bus = resolve_url(None, NODE, folder / "daemon", role=BusRole.AGENT) if system.has_plugin else None
        options = ReplayOptions(
            trace=few.workload(SEED),
            workload=replace(few, telemetry=Telemetry.FULL).described(few.scale),
            url=server.url,
            nats=bus,
            node=NODE,
            arrival=Poisson(RATE * scenario.cpus),
            label="calibration",
            run_id=str(SEED),
            seed=SEED,
        )
        result = replay(options, Lines("calibration"))
    return read(log), result


def read(log: Path) -> list[Step]:
    """Steps in order; a last line that broke off is left out."""
    steps = []
    for line in log.read_text().splitlines():
        try:
            began_ns, ended_ns, was_idle, sizes = json.loads(line)
        except ValueError:
            continue
        prefill = bool(sizes) and isinstance(sizes[0], list)
        steps.append(
            Step(
                began_ns=began_ns,
                ended_ns=ended_ns,
                was_idle=was_idle,
                prefilled=[(new, cached) for new, cached in sizes] if prefill else (),
                decoding=(0, 0) if prefill else (sizes[0], sizes[1]),
            )
        )
    return steps


def fit(steps: Sequence[Step], scenario: Scenario, environment: Path, system: System) -> FittedProfile:
    """A step's cost is the time until the next one begins; where the engine idles then, the usual time after it."""
    prefill = _costs([step for step in steps if step.prefilled], steps)
    decode = _costs([step for step in steps if not step.prefilled], steps)
    found, shape = versions(environment, KINDS[SGLANG]), scenario.engine
    software = f"SGLang {found['sglang']}, torch {found['torch']}, model {shape.model}"
    hardware = f"{shape.threads} threads on {cpus()} CPUs ({model_name()})"
    return FittedProfile(
        name="ab-engine-loaded",
        source=f"{software}, chunks of {shape.chunk_tokens} tokens, while agents use it; {system.name}; {hardware}",
        step_overhead_us=_round(prefill[0] * 1e6),
        prefill_token_us=_round(prefill[1] * 1e6),
        attention_ps=_round(prefill[2] * 1e12),
        attends_anew=True,
        results_late=True,
        decode_base_us=_round(decode[0] * 1e6),
        decode_sequence_us=_round(decode[1] * 1e6),
        decode_context_ns=_round(decode[2] * 1e9),
        kv_pool_tokens=shape.pool_tokens,
        max_context_tokens=shape.context_tokens,
    )


def _costs(chosen: Sequence[Step], steps: Sequence[Step]) -> tuple[float, float, float]:
    following = {id(step): after for step, after in pairwise(steps) if not after.was_idle}
    gaps = [following[id(step)].began_ns - step.ended_ns for step in chosen if id(step) in following]
    usual_ns = float(np.mean(gaps)) if gaps else 0.0
    seconds = [
        (step.ended_ns - step.began_ns + _gap(step, following.get(id(step)), usual_ns)) / 1e9 for step in chosen
    ]
    sizes = [_sizes(step) for step in chosen]
    coefficients, _ = not_negative(np.array(sizes, dtype=np.float64), np.array(seconds), relative=False)
    return coefficients


def _gap(step: Step, after: Step | None, usual_ns: float) -> float:
    return usual_ns if after is None else after.began_ns - step.ended_ns


def _sizes(step: Step) -> tuple[int, int, int]:
    if step.prefilled:
        return 1, sum(new for new, _ in step.prefilled), sum((new + cached) ** 2 for new, cached in step.prefilled)
    return 1, *step.decoding


def _round(value: float) -> float:
    return float(f"{value:.5g}")


def to_json(profile: FittedProfile) -> bytes:
    """As a profile file."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"


def told(steps: Sequence[Step], result: RunResult) -> dict[str, Any]:
    """What the log holds, in short."""
    prefills = [step for step in steps if step.prefilled]
    return {
        "steps": len(steps),
        "prefills": len(prefills),
        "prefill_s": round(sum(step.ended_ns - step.began_ns for step in prefills) / 1e9, 1),
        "decode_s": round(sum(step.ended_ns - step.began_ns for step in steps if not step.prefilled) / 1e9, 1),
        "jct_mean_s": round(result.summary.jct_mean_s, 2),
        "makespan_s": round(result.summary.makespan_s, 1),
    }

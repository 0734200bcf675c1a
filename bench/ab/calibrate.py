"""What the A/B's engine costs on this machine, as a profile for the simulator."""

from dataclasses import replace
from pathlib import Path

import msgspec

from ab.engine import start_engine, versions
from ab.kinds import KINDS, SGLANG, EngineShape
from ab.machine import arithmetic_ms, cpus, model_name
from controlplane.lab.calibrate.measure import Plan, measure
from controlplane.lab.calibrate.profile import fit, to_profile

# The pool of the A/B does not hold eight long contexts; the cost of a step does not depend on it.
SHAPE = EngineShape(pool_tokens=40_000)


def calibrate(folder: Path, environment: Path, threads: int) -> bytes:
    """Start an engine, measure, and end it: a profile file. Some eight minutes."""
    shape = replace(SHAPE, threads=threads)
    server = start_engine(folder, environment, shape)
    try:
        measured = measure(server.url, Plan(repetitions=3), lambda line: print(f"  {line}", flush=True))
    finally:
        server.kill()
    found = versions(environment, KINDS[SGLANG])
    software = f"SGLang {found['sglang']}, torch {found['torch']}"
    speed = f"{arithmetic_ms()} ms for the arithmetic that rows of the A/B time"
    hardware = f"{threads} threads on {cpus()} CPUs ({model_name()}), {speed}"
    source = f"{software}, model {shape.model}, chunks of {shape.chunk_tokens} tokens; {hardware}"
    profile = to_profile(measured, fit(measured), "ab-engine", source)
    profile = msgspec.structs.replace(
        profile, kv_pool_tokens=EngineShape().pool_tokens, max_context_tokens=shape.context_tokens
    )
    return msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n"

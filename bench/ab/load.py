"""The options that say what load a run has, for the commands that run one."""

import argparse
from dataclasses import replace
from typing import Any

from ab.scenario import Scenario
from controlplane.lab.workload.telemetry import Telemetry

FACTORS = {"tokens": "prompt tokens", "outputs": "output tokens", "tools": "tool times"}
TELEMETRY: dict[str, Any] = {"type": Telemetry, "choices": list(Telemetry)}


def add_options(parser: argparse.ArgumentParser, usual: Scenario) -> None:
    """Declare them; ``usual`` is what a run has without them, and is told in their help."""
    parser.add_argument("--programs", type=int, help=f"of each run; default: {usual.programs}")
    parser.add_argument("--pool", type=int, help=f"tokens of KV; default: {usual.engine.pool_tokens}")
    for factor, what in FACTORS.items():
        default = getattr(usual.scale, factor)
        parser.add_argument(f"--scale-{factor}", type=float, help=f"factor on {what}; default: {default:g}")
    parser.add_argument("--trace", help=f"a trace file, a mix, or synthetic:NAME; default: {usual.trace}")
    parser.add_argument("--no-humans", action="store_true", help="without programs that wait for a person")
    parser.add_argument("--telemetry", **TELEMETRY, help="what programs tell beside their id; default: full")


def with_options(scenario: Scenario, options: argparse.Namespace) -> Scenario:
    """The scenario with what was given of them."""
    factors = {name: getattr(options, f"scale_{name}") for name in FACTORS}
    given = {name: factor for name, factor in factors.items() if factor is not None}
    return replace(
        scenario,
        programs=options.programs or scenario.programs,
        engine=replace(scenario.engine, pool_tokens=options.pool or scenario.engine.pool_tokens),
        scale=replace(scenario.scale, **given),
        trace=options.trace or scenario.trace,
        humans=scenario.humans and not options.no_humans,
        telemetry=options.telemetry or scenario.telemetry,
    )

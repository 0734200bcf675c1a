"""A/B on a real SGLang or vLLM, on this machine's CPU or GPU: stock against Penstock, same programs, same arrivals.

Agents arrive open (Poisson), each runs to its end, and all are counted; a hold at the gate counts in JCT and TTFT.
A system is `stock` (no plugin), `priority` (vLLM without a plugin and with its own priorities: who came first goes
first), `agentinfer=FOLDER` (the unpacked wheel of another control plane for vLLM), `static-N` (plugin and daemon, a
fixed window of N programs), a preset, or NAME=FILE.toml, a daemon's configuration; the last three with `+outside`
behind them, by `penstock gate` before an engine without the plugin, `+sessions`, by SGLang's own there, or
`+halves`, with the plugin there. Each run has a fresh engine, nats-server and daemon, and takes minutes: `run`
takes hours. A finished run is a line of the results file and is not run again; Ctrl-C loses the run in progress
only. What programs tell of themselves (`--telemetry`) is a part of the scenario, as the load and the engine are:
runs of another one are never compared. Without a command: the report.

`run --gpu --environment FOLDER` serves a Llama-3.1-8B shape on a GPU. FOLDER is the virtual environment of an
engine that runs there, with `pip install 'penstock-agents[sglang]'` or `'penstock-agents[vllm]'` in it. The weights
are made up: nothing is downloaded. Its rates lie around saturation in the simulator, on its profile of an H200.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from ab import RESULTS, prediction, report, results, series
from ab.engine import find_environment, version_of
from ab.kinds import GPU, KINDS, SGLANG
from ab.machine import cpus, gpu_name, pin
from ab.model import SHAPES
from ab.one_run import Job, prepare
from ab.scenario import ON_A_GPU, SMOKE, Scenario
from ab.systems import parse_system

from controlplane.core.model.errors import ConfigError
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.workload.telemetry import Telemetry

RATES, GPU_RATES = (0.13, 0.15, 0.17, 0.20), (0.1, 0.2, 0.4)
SEEDS, GPU_SEEDS = (1, 2, 3, 4, 5), (1, 2)
FACTORS = {"tokens": "prompt tokens", "outputs": "output tokens", "tools": "tool times"}
TELEMETRY: dict[str, Any] = {"type": Telemetry, "choices": list(Telemetry)}


def names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def floats(text: str) -> tuple[float, ...]:
    return tuple(map(float, names(text)))


def integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, names(text)))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(command="report", results=RESULTS, systems=(), scenario=None, telemetry=None, json=False)
    commands = parser.add_subparsers(dest="command")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--results", type=Path, default=RESULTS, help="the file of finished runs")

    loaded = argparse.ArgumentParser(add_help=False, parents=[common])
    loaded.add_argument("--engine", choices=sorted(KINDS), default=SGLANG, help="default: %(default)s")
    loaded.add_argument("--environment", type=Path, help="the engine's; default: that of the engine tests")
    loaded.add_argument("--gpu", action="store_true", help="on a GPU, with the shape of an 8B model")
    add_load(loaded, Scenario())
    loaded.add_argument("--model", choices=sorted(SHAPES), help="shape of the engine's model; default: 20m")
    loaded.add_argument("--threads", type=int, help="of the engine's scheduler; default: 2")
    loaded.add_argument("--dtype", help="of the engine's model; float32 where the CPU has no bfloat16")
    loaded.add_argument("--flags", default="", help="more of the engine's command line: ='--A B'")
    loaded.add_argument("--cpu", type=int, help="run all of it on this CPU alone: one such command a CPU")
    loaded.add_argument("--smoke", action="store_true", help="seconds long, a tiny model: to see that it works")

    run = commands.add_parser("run", parents=[loaded], allow_abbrev=False, help="run the systems side by side")
    run.add_argument("--rates", type=floats, help="programs a second, comma-separated")
    run.add_argument("--seeds", type=integers, help="of programs and arrivals")
    run.add_argument("--systems", type=names, default=("stock", "mars", "penstock"), help="comma-separated")
    run.add_argument("--at-once", action="store_true", help="a run on each CPU at a time, side by side")
    run.add_argument("--keep", type=Path, help="folder for each run's logs, events and measurements")
    run.add_argument("--redo-changed", metavar="SYSTEMS", help="those of older code or defaults anew")
    run.add_argument("--redo-slow", action="store_true", help="those of a machine that others slowed down anew")

    shown = commands.add_parser("report", parents=[common], help="print the table in Markdown")
    shown.add_argument("--scenario", help="digest of a load and engine; default: that of the last run")
    shown.add_argument("--telemetry", **TELEMETRY, help="the last scenario of which programs tell this")
    shown.add_argument("--systems", type=names, default=(), help="only these; seeds count that all of them have")
    shown.add_argument("--json", action="store_true", help="print one JSON object")

    predicted = commands.add_parser("predict", parents=[loaded], help="the simulator beside the finished runs")
    predicted.add_argument("--profile", type=Path, required=True, help="what penstock calibrate wrote here")
    predicted.add_argument("--systems", type=names, default=(), help="only these, comma-separated")
    predicted.add_argument("--draws", type=int, default=prediction.DRAWS, help="of each, steps varied by up to 2%%")
    return parser.parse_args()


def add_load(parser: argparse.ArgumentParser, usual: Scenario) -> None:
    """Declare them; ``usual`` is what a run has without them, and is told in their help."""
    parser.add_argument("--programs", type=int, help=f"of each run; default: {usual.programs}")
    parser.add_argument("--pool", type=int, help=f"tokens of KV; default: {usual.engine.pool_tokens}")
    for factor, what in FACTORS.items():
        default = getattr(usual.scale, factor)
        parser.add_argument(f"--scale-{factor}", type=float, help=f"factor on {what}; default: {default:g}")
    parser.add_argument("--trace", help=f"a trace file, a mix, or synthetic:NAME; default: {usual.trace}")
    parser.add_argument("--turns", type=int, help="only the first so many of each program")
    parser.add_argument("--no-humans", action="store_true", help="without programs that wait for a person")
    parser.add_argument("--telemetry", **TELEMETRY, help="what programs tell beside their id; default: full")


def with_load(scenario: Scenario, options: argparse.Namespace) -> Scenario:
    """The scenario with what was given of them."""
    factors = {name: getattr(options, f"scale_{name}") for name in FACTORS}
    chosen = {name: factor for name, factor in factors.items() if factor is not None}
    return replace(
        scenario,
        programs=options.programs or scenario.programs,
        engine=replace(scenario.engine, pool_tokens=options.pool or scenario.engine.pool_tokens),
        scale=replace(scenario.scale, **chosen),
        trace=options.trace or scenario.trace,
        turns=options.turns or scenario.turns,
        humans=scenario.humans and not options.no_humans,
        telemetry=options.telemetry or scenario.telemetry,
    )


def scenario_of(options: argparse.Namespace, environment: Path) -> Scenario:
    """Build the load and the engine that the options ask for."""
    at_once = getattr(options, "at_once", False)
    if at_once:  # each with one CPU
        options.threads = options.threads or 1
    kind, base = KINDS[options.engine], SMOKE if options.smoke else ON_A_GPU if options.gpu else Scenario()
    chosen = replace(base, cpus=1 if at_once else cpus()).on(kind.name, version_of(environment, kind))
    chosen = with_load(chosen, options)
    shape = chosen.engine
    threads, dtype = options.threads or shape.threads, options.dtype or shape.dtype
    model = options.model or shape.model
    return replace(chosen, engine=replace(shape, model=model, threads=threads, dtype=dtype, flags=options.flags))


def environment_of(options: argparse.Namespace) -> Path:
    """Find the engine's, which is made where it is not there yet; on a GPU there is none but a given one."""
    if options.environment is None and options.gpu and not options.smoke:
        raise SystemExit("--gpu needs --environment FOLDER, of an engine that runs on it")
    return options.environment or find_environment(KINDS[options.engine].version)


def run(options: argparse.Namespace) -> int:
    if options.gpu and not options.smoke and not gpu_name():
        raise SystemExit("no GPU is here (nvidia-smi names none)")
    for name in ("results", "environment", "keep"):
        if getattr(options, name) is not None:
            setattr(options, name, getattr(options, name).absolute())
    environment = environment_of(options)
    if options.cpu is not None:
        pin(options.cpu)
    scenario, kind = scenario_of(options, environment), KINDS[options.engine]
    on_gpu = scenario.engine.device == GPU
    rates, seeds = (
        options.rates or (GPU_RATES if on_gpu else RATES),
        options.seeds or (GPU_SEEDS if on_gpu else SEEDS),
    )
    systems = [parse_system(name, kind) for name in options.systems]
    planned = series.jobs(scenario.digest, rates, seeds, systems, turning=not options.at_once)
    rows = [row for row in results.read(options.results) if row.cell.scenario == scenario.digest]
    redo = frozenset(names(options.redo_changed or ""))
    left = series.pending(planned, rows, redo, redo_slow=options.redo_slow)
    if options.at_once:
        print(f"{len(planned)} runs, {len(planned) - len(left)} are there; {cpus()} at a time", flush=True)
        return series.run_at_once(left, cpus(), lambda job, cpu: command_of(options, job, cpu))
    prepare()
    return series.run(scenario, planned, left, environment, options.results, options.keep)


def command_of(options: argparse.Namespace, job: Job, cpu: int) -> list[str]:
    """Build the command that does one run on one CPU; the processes share nothing but the file of results.

    It is this command, and of an option that is given twice the last one counts.
    """
    chosen = {name.partition("=")[0]: name for name in options.systems}
    own = ["--cpu", str(cpu), "--rates", f"{job.cell.rate:g}", "--seeds", str(job.cell.seed)]
    own += ["--systems", chosen.get(job.system.name, job.system.name), "--threads", str(options.threads or 1)]
    return [sys.executable, __file__, *(word for word in sys.argv[1:] if word != "--at-once"), *own]


def chosen_rows(options: argparse.Namespace) -> list[results.Row]:
    """Read the rows of the systems that are named, all where none is."""
    rows = results.read(options.results)
    return [row for row in rows if not options.systems or row.cell.system in options.systems]


def show(options: argparse.Namespace) -> int:
    rows = chosen_rows(options)
    scenario = options.scenario or report.latest_scenario(rows, options.telemetry)
    if scenario is None or all(row.cell.scenario != scenario for row in rows):
        print(f"no such runs in {options.results.name}: python bench/ab_engine.py run makes them (hours)")
        return 0
    print((report.to_json if options.json else report.show)(rows, scenario))
    return 0


def predict(options: argparse.Namespace) -> int:
    if options.cpu is not None:
        pin(options.cpu)  # the scenario counts the CPUs
    scenario = scenario_of(options, environment_of(options))
    chosen, profile = prediction.chosen(chosen_rows(options), scenario), load_profile(options.profile)
    prediction.show(prediction.predict(chosen, scenario, profile, options.draws))
    return 0


def main() -> int:
    options = parse_arguments()
    try:
        return {"run": run, "predict": predict}.get(options.command, show)(options)
    except ConfigError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())

"""A/B on the real SGLang or vLLM on this machine's CPU: stock against Penstock, same programs, same arrivals.

Agents arrive open (Poisson), each runs to its end, and all are counted; a hold at the gate counts in JCT and TTFT.
A system is `stock` (no plugin), `priority` (vLLM without a plugin and with its own priorities: who came first goes
first), `static-N` (plugin and daemon, a fixed window of N programs), `static` (the N that `tune` found best), a
preset, or NAME=FILE.toml, a daemon's configuration. Each run has a fresh engine, nats-server and daemon, and takes
minutes: `tune` and `run` take hours. A finished run is a line of the results file and is not run again; Ctrl-C
loses the run in progress only. What programs tell of themselves (`--telemetry`) is a part of the scenario, as the
load and the engine are: runs of another one are never compared. Without a command: the report.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

from ab import RESULTS, beside, calibrate, load, page, plan, prediction, report, results, series, steps, tuning
from ab.engine import find_environment, version_of
from ab.kinds import KINDS, SGLANG, EngineShape
from ab.machine import cpus, pin
from ab.one_run import prepare
from ab.plan import Job
from ab.scenario import SMOKE, Scenario
from ab.systems import System, parse_system, static

from controlplane.core.errors import ConfigError
from controlplane.lab.sim.profile import load_profile

RATES = (0.13, 0.15, 0.17, 0.20)
SEEDS = (1, 2, 3, 4, 5)
TUNING_RATES = (0.15, 0.20)
TUNING_SEEDS = (101, 102)
WINDOWS = (4, 5, 6, 8, 10, 12)


def floats(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(
        command="report", results=RESULTS, saturated_from=0.15, systems="", json=False, markdown=False
    )
    commands = parser.add_subparsers(dest="command")

    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--results", type=Path, default=RESULTS, help="the file of finished runs")
    running = argparse.ArgumentParser(add_help=False, parents=[common])
    engine: dict[str, Any] = {"choices": sorted(KINDS), "default": SGLANG, "help": "default: %(default)s"}
    running.add_argument("--engine", **engine)
    running.add_argument("--environment", type=Path, help="the engine's; default: as make engine-env makes it")
    load.add_options(running, Scenario())
    running.add_argument("--threads", type=int, help="of the engine's scheduler; default: 2")
    running.add_argument("--dtype", help="of the engine's model; float32 where the CPU has no bfloat16")
    running.add_argument("--cpu", type=int, help="run all of it on this CPU alone: one such command a CPU")
    running.add_argument("--keep", type=Path, help="folder for each run's logs, events and measurements")
    running.add_argument(
        "--redo-changed", default="", metavar="SYSTEMS", help="those of older code or defaults anew"
    )
    running.add_argument("--redo-slow", action="store_true", help="those of a machine that others slowed down anew")
    running.add_argument("--smoke", action="store_true", help="seconds long, a tiny model: to see that it works")

    run = commands.add_parser("run", parents=[running], help="run the systems side by side")
    run.add_argument("--rates", type=floats, default=RATES, help="programs a second, comma-separated")
    run.add_argument("--seeds", type=integers, default=SEEDS, help="of programs and arrivals")
    run.add_argument("--systems", default="stock,static,mars", help="comma-separated")
    run.add_argument("--at-once", action="store_true", help="a run on each CPU at a time, side by side")
    tune = commands.add_parser("tune", parents=[running], help="find the best static window on other seeds")
    tune.add_argument("--rates", type=floats, default=TUNING_RATES)
    tune.add_argument("--seeds", type=integers, default=TUNING_SEEDS)
    tune.add_argument("--windows", type=integers, default=WINDOWS)
    tune.add_argument(
        "--profile", type=Path, help="in the simulator (a minute, kept nowhere): what `calibrate` wrote here"
    )
    tune.add_argument("--systems", default="", help="with --profile: others beside the windows, comma-separated")
    shown = commands.add_parser("report", parents=[common], help="print the table")
    shown.add_argument("--saturated-from", type=float, default=0.15, help="the rate from which ratios are judged")
    shown.add_argument("--scenario", help="digest of a load and engine; default: that of the last run")
    shown.add_argument(
        "--telemetry", **load.TELEMETRY, help="the last scenario of which this is what programs tell"
    )
    shown.add_argument(
        "--systems", default="", help="only these, comma-separated; seeds count that all of them have"
    )
    form = shown.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    costs = commands.add_parser(
        "calibrate", help="what SGLang's prefill and decode cost on this machine (some eight minutes)"
    )
    costs.add_argument("--environment", type=Path)
    costs.add_argument("--threads", type=int, default=calibrate.SHAPE.threads, help="of the engine's scheduler")
    costs.add_argument("--cpu", type=int, help="on this CPU alone")
    costs.add_argument(
        "--loaded", action="store_true", help="from the engine's steps while agents use it, not from an idle one"
    )
    costs.add_argument("--system", default="stock", help="with --loaded: whose processes run beside the engine")
    costs.add_argument("--out", type=Path, help="file for the profile, which is printed anyway")
    predicted = commands.add_parser("predict", parents=[running], help="the simulator beside the finished runs")
    predicted.add_argument("--profile", type=Path, required=True, help="what `calibrate` wrote on this machine")
    predicted.add_argument("--systems", default="", help="only these, comma-separated")
    predicted.add_argument(
        "--draws", type=int, default=prediction.DRAWS, help="simulated runs of each, steps varied by up to 2%%"
    )
    return parser.parse_args()


def scenario_of(options: argparse.Namespace, environment: Path) -> Scenario:
    at_once = getattr(options, "at_once", False)
    if at_once:  # each with one CPU
        options.threads = options.threads or 1
    usable, kind = 1 if at_once else cpus(), KINDS[options.engine]
    chosen = replace(SMOKE if options.smoke else Scenario(), cpus=usable)
    chosen = chosen.on(kind.name, version_of(environment, kind))
    chosen = load.with_options(chosen, options)
    shape = chosen.engine
    threads, dtype = options.threads or shape.threads, options.dtype or shape.dtype
    return replace(chosen, engine=replace(shape, threads=threads, dtype=dtype))


def environment_of(options: argparse.Namespace) -> Path:
    """That of the engine; made where it is not there yet."""
    given: Path | None = options.environment
    return given or find_environment(KINDS[options.engine].version)


def systems_at(options: argparse.Namespace, scenario: Scenario) -> dict[float, list[System]]:
    """The systems of each rate: `static` is another window at each."""
    if options.command == "tune":
        return {rate: [static(window) for window in options.windows] for rate in options.rates}
    means = tuning.mean_jcts(results.read(options.results), scenario.digest)
    found = {}
    for rate in options.rates:
        names = [name.strip() for name in options.systems.split(",")]
        if "static" in names:
            window = tuning.best_window(means, rate)
            if window is None:
                raise SystemExit("static: no window was tuned: run `tune` first, or name one (static-8)")
            names = list(dict.fromkeys(f"static-{window}" if name == "static" else name for name in names))
        found[rate] = [parse_system(name, scenario.engine.engine) for name in names]
    return found


def tune(options: argparse.Namespace) -> int:
    if options.profile is None:
        return run(options)
    scenario = scenario_of(options, environment_of(options))
    others = [parse_system(name, scenario.engine.engine) for name in filter(None, options.systems.split(","))]
    if any(system.first_come for system in others):
        raise SystemExit("--systems: the simulator has no engine that is given priorities")
    systems = [*map(static, options.windows), *others]
    profile, rates, seeds = load_profile(options.profile), options.rates, options.seeds
    tuning.show(tuning.simulated_means(scenario, profile, rates=rates, seeds=seeds, systems=systems), seeds)
    return 0


def run(options: argparse.Namespace) -> int:
    for name in ("results", "environment", "keep"):
        if getattr(options, name) is not None:
            setattr(options, name, getattr(options, name).absolute())
    environment = environment_of(options)
    if options.cpu is not None:
        pin(options.cpu)
    scenario = scenario_of(options, environment)
    systems = systems_at(options, scenario)
    if getattr(options, "at_once", False):
        return run_at_once(options, scenario, systems)
    prepare()
    return series.run(
        results.TUNE if options.command == "tune" else results.RUN,
        scenario,
        rates=options.rates,
        seeds=options.seeds,
        systems=systems,
        environment=environment,
        path=options.results,
        keep=options.keep,
        redo=redone(options),
        redo_slow=options.redo_slow,
    )


def redone(options: argparse.Namespace) -> frozenset[str]:
    """The systems of which runs of older code do not count."""
    return frozenset(filter(None, options.redo_changed.split(",")))


def run_at_once(options: argparse.Namespace, scenario: Scenario, systems: dict[float, list[System]]) -> int:
    """One process a CPU, each with one run: they share nothing but the file of results."""
    jobs = plan.jobs(
        results.RUN, scenario.digest, rates=options.rates, seeds=options.seeds, systems=systems, turning=False
    )
    rows = [row for row in results.read(options.results) if row.cell.scenario == scenario.digest]
    left = series.pending(jobs, rows, redone(options), redo_slow=options.redo_slow)
    given = {name.partition("=")[0]: name for name in filter(None, options.systems.split(","))}

    def command(job: Job, cpu: int) -> list[str]:
        system = given.get(job.system.name, job.system.name)
        own = [
            "--cpu",
            str(cpu),
            "--rates",
            f"{job.cell.rate:g}",
            "--seeds",
            str(job.cell.seed),
            "--systems",
            system,
        ]
        return [sys.executable, __file__, "run", *own, *_passed_on(options)]

    print(f"{len(jobs)} runs, {len(jobs) - len(left)} of them are there; {cpus()} at a time", flush=True)
    return beside.run(left, cpus(), command)


def _passed_on(options: argparse.Namespace) -> list[str]:
    """The options of a run that are the same for all."""
    named = (
        "engine",
        "results",
        "environment",
        "programs",
        "threads",
        "dtype",
        "pool",
        "trace",
        "telemetry",
        "keep",
    )
    scaled = ("scale_tokens", "scale_outputs", "scale_tools")
    given = [(name.replace("_", "-"), getattr(options, name)) for name in named + scaled]
    told = [part for name, value in given if value is not None for part in (f"--{name}", str(value))]
    told += ["--redo-changed", options.redo_changed] if options.redo_changed else []
    switches = ("no_humans", "redo_slow", "smoke")
    return told + [f"--{name.replace('_', '-')}" for name in switches if getattr(options, name)]


def show(options: argparse.Namespace) -> int:
    rows = report.only(results.read(options.results), frozenset(filter(None, options.systems.split(","))))
    telemetry = getattr(options, "telemetry", None)
    scenario = getattr(options, "scenario", None) or report.latest_scenario(rows, telemetry)
    if scenario is None or all(row.cell.scenario != scenario for row in rows):
        print(
            f"no such runs in {options.results.name}: python bench/ab_engine.py tune, then run, makes them (hours)"
        )
        return 0
    if options.markdown:
        print(page.table(rows, scenario))
    else:
        print((report.to_json if options.json else report.show)(rows, scenario, options.saturated_from))
    return 0


def costs(options: argparse.Namespace) -> int:
    environment = options.environment or find_environment()
    if options.cpu is not None:
        pin(options.cpu)
    with tempfile.TemporaryDirectory(prefix="penstock-ab-") as folder:
        if options.loaded:
            system = parse_system(options.system, KINDS[SGLANG])
            profile = loaded(Path(folder), environment, options.threads, system)
        else:
            profile = calibrate.calibrate(Path(folder), environment, options.threads)
    print(profile.decode(), end="")
    if options.out:
        options.out.write_bytes(profile)
    return 0


def loaded(folder: Path, environment: Path, threads: int, system: System) -> bytes:
    prepare()
    scenario = Scenario(cpus=cpus(), engine=EngineShape(threads=threads))
    scenario = scenario.on(SGLANG, version_of(environment, KINDS[SGLANG]))
    taken, result = steps.record(folder, environment, scenario, system)
    print(steps.told(taken, result), file=sys.stderr)
    return steps.to_json(steps.fit(taken, scenario, environment, system))


def predict(options: argparse.Namespace) -> int:
    if options.cpu is not None:
        pin(options.cpu)  # the scenario counts the CPUs
    scenario = scenario_of(options, environment_of(options))
    rows = report.only(results.read(options.results), frozenset(filter(None, options.systems.split(","))))
    chosen, profile = prediction.chosen(rows, scenario), load_profile(options.profile)
    prediction.show(prediction.predict(chosen, scenario, profile, options.draws))
    return 0


def main() -> int:
    options = parse_arguments()
    command = {"run": run, "tune": tune, "calibrate": costs, "predict": predict}.get(options.command, show)
    try:
        return command(options)
    except ConfigError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())

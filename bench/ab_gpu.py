"""A/B on a GPU: SGLang and vLLM with a Llama-3.1-8B shape, stock against Penstock, by one command.

    python bench/ab_gpu.py run --sglang FOLDER --vllm FOLDER

FOLDER is the virtual environment of an engine that runs on this GPU, with `pip install 'penstock[sglang]'` or
`'penstock[vllm]'` in it; an engine without one is left out. The weights are made up, so that nothing is downloaded.
Everything else is as in ab_engine.py, which can also be asked of these results: fresh processes for each run, and a
line for each finished one, which is not run again. At its end the rows of the page are written beside the results.
The rates lie around saturation in the simulator, on its profile of an H200; an engine that is faster needs others.

`--smoke` runs all of it on the CPU, with a tiny model and in a minute or two, in environments of the engine tests.
Without a command: the rows of what was measured.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

from ab import ROOT, load, page, results, series
from ab.engine import version_of
from ab.kinds import KINDS, SGLANG, VLLM
from ab.machine import cpus, gpu_name
from ab.one_run import prepare
from ab.report import latest_scenario
from ab.scenario import ON_A_GPU, SMOKE, Scenario
from ab.systems import parse_system

from controlplane.core.errors import ConfigError

RESULTS = ROOT / "bench" / "results" / "ab_gpu.jsonl"
RATES, SEEDS = (0.1, 0.2, 0.4), (1, 2)
SMOKE_RATES, SMOKE_SEEDS = (2.0,), (1,)
SYSTEMS = {SGLANG: "stock,mars,penstock", VLLM: "stock,priority,mars,penstock"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(command="report", results=None)
    run = parser.add_subparsers(dest="command").add_parser("run", help="run what is not there yet")
    for name, kind in KINDS.items():
        run.add_argument(f"--{name}", type=Path, metavar="FOLDER", help=f"the virtual environment of {kind.title}")
        run.add_argument(f"--{name}-flags", default="", help=f"more of {kind.title}'s command line: ='--A B'")
    run.add_argument("--systems", help=f"default: {SYSTEMS[SGLANG]}; with vLLM priority too")
    run.add_argument("--rates", type=lambda text: tuple(map(float, text.split(","))), help="programs a second")
    run.add_argument("--seeds", type=lambda text: tuple(map(int, text.split(","))))
    load.add_options(run, ON_A_GPU)
    run.add_argument("--results", type=Path, help="the file of finished runs; rows go beside it")
    run.add_argument("--keep", type=Path, help="folder for each run's logs, events and measurements")
    run.add_argument("--smoke", action="store_true", help="on the CPU, to see that it works")
    return parser.parse_args()


def scenario_of(options: argparse.Namespace, name: str, environment: Path) -> Scenario:
    """The load on that engine."""
    base = replace(SMOKE if options.smoke else ON_A_GPU, cpus=cpus()).on(name, version_of(environment, KINDS[name]))
    chosen = load.with_options(base, options)
    return replace(chosen, engine=replace(chosen.engine, flags=getattr(options, f"{name}_flags")))


def results_of(options: argparse.Namespace) -> Path:
    """Where finished runs are; those of a smoke mean nothing and are kept nowhere."""
    given: Path | None = options.results
    if options.command == "run" and options.smoke and given is None:
        return Path(tempfile.mkdtemp(prefix="penstock-ab-gpu-")) / "smoke.jsonl"
    return given or RESULTS


def run(options: argparse.Namespace) -> int:
    if not options.smoke and not gpu_name():
        raise SystemExit("no GPU is here (nvidia-smi names none): --smoke runs all of it on the CPU")
    environments = {name: getattr(options, name) for name in KINDS if getattr(options, name) is not None}
    if not environments:
        raise SystemExit("no engine is named: --sglang FOLDER, --vllm FOLDER or both")
    environments = {name: folder.absolute() for name, folder in environments.items()}
    path, keep = results_of(options).absolute(), options.keep and options.keep.absolute()
    rates = options.rates or (SMOKE_RATES if options.smoke else RATES)
    seeds = options.seeds or (SMOKE_SEEDS if options.smoke else SEEDS)
    prepare()
    for name, environment in environments.items():
        kind = KINDS[name]
        systems = [parse_system(each, kind) for each in (options.systems or SYSTEMS[name]).split(",")]
        print(f"{kind.title}: {environment}", flush=True)
        status = series.run(
            results.RUN,
            scenario_of(options, name, environment),
            rates=rates,
            seeds=seeds,
            systems=dict.fromkeys(rates, systems),
            environment=environment,
            path=path,
            keep=keep,
            redo=frozenset(),
        )
        if status:
            return status
    show(path)
    return 0


def show(path: Path) -> int:
    """Print the rows of the last scenario of each engine, and write them beside the results."""
    rows, told = results.read(path), []
    for kind in KINDS.values():
        scenario = latest_scenario([row for row in rows if kind.name in row.versions])
        if scenario is not None:
            told.append(f"## {kind.title}\n\n{page.section(rows, scenario)}")
    if not told:
        print(f"nothing was measured on a GPU yet ({path.name}): python bench/ab_gpu.py run --help")
        return 0
    text = "\n".join(told)
    print(text)
    path.with_suffix(".md").write_text(text)
    return 0


def main() -> int:
    options = parse_arguments()
    try:
        return run(options) if options.command == "run" else show(results_of(options))
    except ConfigError as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    sys.exit(main())

"""Real agents, whole runs: OpenHands and mini-swe-agent with real tools and a time limit, on one machine.

    .venv/bin/python bench/real_agents.py run [--systems stock,window,mars,penstock] [--seeds 1,2]
    .venv/bin/python bench/real_agents.py [report]

MARS' Figures 11 and 12 (§6.4) as far as a machine without a GPU goes. Real: the harnesses, each agent a process;
their requests; their tools, which read files, run tests, mend bugs and build on this machine's CPUs; daemon,
nats-server, adapters. Doubles: the engine, with an H200's timing and a small pool, and the model behind it, whose
replies are a script drawn from the seed. In place of pass rates: tasks done within the limit, which means that the
bugs are mended and all is built.

`stock`: the engine double without the plugin, no daemon, no adapters. `window`: a fixed window of programs, first
come first served, and nothing else. Other systems are presets. All meet the same tasks at the same times. An agent
is killed at its limit and tells nobody; it counts with the limit in mean and p95, which then are too low.

The agents are forked from a process that has imported their harnesses: an import takes longer than a turn. Engine,
daemon and this program go before agents and tools where the kernel lets them. A finished run is a line of the
results file and is not run again.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from ab import ROOT  # makes the tests' helpers importable
from ab.results import append, lines_of
from real import results
from real.one_run import BARE, WINDOW, Scenario, play

from controlplane.core.policies.presets import PRESETS
from controlplane.lab.surroundings import undisturbed

RESULTS = ROOT / "bench" / "results" / "real-agents.jsonl"
SYSTEMS = [BARE, WINDOW, "mars", "penstock"]
_AUTOGROUP = Path("/proc/self/autogroup")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is not there yet, and print the table."""
    options = _options(arguments)
    scenario = _scenario(options)
    if options.command == "run":
        _run(options, scenario)
    rows = [row for row in lines_of(options.results, results.Row) if row.scenario == scenario.digest]
    print(results.report(rows) if rows else f"no such runs in {options.results}: the command run makes them")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    usual = Scenario()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=("run", "report"), default="report")
    parser.add_argument("--systems", type=_systems, default=SYSTEMS, help=f"default: {','.join(SYSTEMS)}")
    parser.add_argument("--seeds", type=lambda text: [int(each) for each in text.split(",")], default=[1, 2])
    for name, kind, value, what in (
        ("openhands", int, usual.load.openhands, "agents of OpenHands"),
        ("mini", int, usual.load.mini, "agents of mini-swe-agent"),
        ("rate", float, usual.load.rate, "arrivals/s"),
        ("pool", int, usual.pool_tokens, "tokens of KV"),
        ("limit", float, usual.limit_s, "seconds for a task"),
    ):
        parser.add_argument(f"--{name}", type=kind, default=value, help=f"{what}; default: {value:g}")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of finished runs")
    parser.add_argument("--keep", type=Path, help="folder for each run's logs; else those of failures are kept")
    return parser.parse_args(arguments)


def _systems(text: str) -> list[str]:
    names, known = text.split(","), (BARE, WINDOW, *PRESETS)
    if not set(names) <= set(known):
        raise argparse.ArgumentTypeError(f"expected some of {', '.join(known)}, got {text}")
    return names


def _scenario(options: argparse.Namespace) -> Scenario:
    usual = Scenario()
    load = replace(usual.load, openhands=options.openhands, mini=options.mini, rate=options.rate)
    return replace(usual, load=load, pool_tokens=options.pool, limit_s=options.limit)


def _run(options: argparse.Namespace, scenario: Scenario) -> None:
    rows = [row for row in lines_of(options.results, results.Row) if row.scenario == scenario.digest]
    there = {(row.seed, row.system) for row in rows}
    left = [
        each for each in ((seed, name) for seed in options.seeds for name in options.systems) if each not in there
    ]
    print(f"scenario {scenario.digest}: {len(left)} runs, of up to {scenario.longest_s:.0f} s each", flush=True)
    python = _agents_python() if left else ""
    with undisturbed(), _going_first() as goes_first:
        for seed, name in left:
            folder = Path(tempfile.mkdtemp(prefix=f"real-agents-{name}-{seed}-", dir=options.keep))
            try:
                row = play(scenario, name, seed, python, folder, goes_first=goes_first)
            except BaseException:
                print(f"logs: {folder}", file=sys.stderr)
                raise
            append(options.results, row)
            if row.count(results.FAILED):
                print(f"{row.count(results.FAILED)} agents failed: {folder}", file=sys.stderr)
            elif options.keep is None:
                shutil.rmtree(folder)


def _agents_python() -> str:
    """The interpreter with the harnesses, whose environment is made where it is not there yet."""
    script = ROOT / "scripts" / "agent_env.py"
    made = subprocess.run([sys.executable, str(script), "openhands"], stdout=subprocess.PIPE, text=True)
    if made.returncode:
        raise SystemExit(made.returncode)
    return f"{made.stdout.strip()}/bin/python"


@contextmanager
def _going_first() -> Iterator[bool]:
    """Within, this session goes before those of agents and tools; tells whether it may. Not who was started nice.

    Linux shares the CPUs among sessions, and each tool is one: the engine, which stands for one on another machine,
    would get as much as one of them.
    """
    before = ""
    if os.nice(0) <= 0:
        with suppress(OSError):
            before = _AUTOGROUP.read_text().split()[-1]
            _AUTOGROUP.write_text("-10")
    try:
        yield bool(before) and _AUTOGROUP.read_text().split()[-1] == "-10"
    finally:
        if before:
            with suppress(OSError):
                _AUTOGROUP.write_text(before)


if __name__ == "__main__":
    main()

"""The trees of ``bench/trees.py`` live: through gate, daemon and the engine double, or the real SGLang on this CPU.

    .venv/bin/python bench/trees_live.py [--programs 12] [--seeds 1] [--load 2] [--time-scale 20] [--json]
    .venv/bin/python bench/trees_live.py --engine sglang [--programs 4] [--rate 0.2] [--model tiny] [--pool 4000]

The arms are those of ``bench/trees.py``, each with a fresh engine, nats-server and daemon, on the same programs and
arrivals. Of each seed it prints the mean JCT of roots of each arm; on the double what the simulator has of the same
arm beside it. The double runs ``--time-scale`` times as fast as the engine would: where the machine has other work,
what the processes take themselves is multiplied by that, so a low one is wanted there.

On SGLang contexts, outputs and tools are scaled down so that a pool of this size holds a few sessions, and sessions
that would not fit are left out; the rate is the one that is given, as nobody knows how much that engine can bear.
"""

import argparse
import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

from ab import one_run  # makes the tests' helpers importable, too
from ab.engine import find_environment, version_of
from ab.kinds import KINDS, SGLANG, EngineShape
from ab.scenario import Scenario
from ab.systems import System
from support.daemon_process import NODE
from support.whole_loop import Loop
from trees import ARMS, B200, CLAIRVOYANT, USUAL, WORKLOAD, arms, simulated

from controlplane.core.presets import DEFAULT
from controlplane.core.trees import TreeRules
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Workload
from controlplane.lab.load.client import RetryRule
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.replay import replay
from controlplane.lab.simulate import engine_of
from controlplane.lab.sweep.resolve import resolved
from controlplane.lab.workload.arrivals import Arrival, Poisson
from controlplane.lab.workload.families import all_of, families
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import Trace
from controlplane.lab.workload.trees import AGENTX_LIKE
from controlplane.wire.endpoint import resolve_url
from controlplane.wire.roles import BusRole

DOUBLE = "double"
TOKENS_PER_WORD = 64  # of the double's prompts
PATIENCE_S = 1e6  # longer than any run: what is compared is when a turn gets in, not when its client gives up
_FULLEST = 0.5  # of SGLang's pool: a session that needs more is left out
_DRAWN = 50  # times as many sessions are drawn as are run, as most are left out of a small pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """An engine that is up, and where its daemon can be found."""

    url: str
    node: str
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One arm of one seed. Times in seconds; ``simulated_s`` is 0 where nothing was simulated."""

    seed: int
    arm: str
    jct_mean_s: float
    simulated_s: float
    ended: int
    failed: int
    turns: int


def configuration(rules: TreeRules) -> str:
    """A daemon's, in TOML."""
    trees = "".join(f"{name} = {str(value).lower()}\n" for name, value in asdict(rules).items())
    return f'preset = "{DEFAULT}"\n[http]\nlisten = "off"\n[control.trees]\n{trees}'


def replayed(
    served: Served,
    trace: Trace,
    arrival: Arrival,
    seed: int,
    telemetry: Telemetry,
    *,
    time_scale: float = 1.0,
    tokens_per_word: int = 1,
) -> RunResult:
    """All programs, from their arrival to their end."""
    options = ReplayOptions(
        trace=trace,
        workload=Workload(trace=WORKLOAD.trace, telemetry=telemetry),
        url=served.url,
        arrival=arrival,
        label="trees",
        run_id=str(seed),  # it seeds the words: every arm has the same
        seed=seed,
        retry=RetryRule(give_up_after_s=PATIENCE_S),
        tokens_per_word=tokens_per_word,
        time_scale=time_scale,
        nats=resolve_url(None, served.node, served.folder, role=BusRole.AGENT),
        node=served.node,
    )
    return replay(options, one_run.Lines(f"seed {seed}"))


# The engine double


@contextlib.contextmanager
def double(rules: TreeRules, rate: float, time_scale: float) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="penstock-trees-") as scratch:
        folder = Path(scratch)
        file = folder / "penstock.toml"
        file.write_text(configuration(rules))
        engine = ("--profile", B200.profile, "--context-tokens", str(B200.max_context_tokens))
        engine += ("--hold-s", f"{PATIENCE_S:g}")
        loop = Loop(
            folder / "state",
            DEFAULT,
            pool_tokens=engine_of(B200).size_tokens,
            rate=rate,
            time_scale=time_scale,
            engine=engine,
            daemon=("--config", str(file)),
        )
        try:
            loop.start()
            yield Served(url=loop.url, node=NODE, folder=loop.folder)
        finally:
            loop.stop()


def on_the_double(options: argparse.Namespace) -> Iterator[Case]:
    arrival = resolved(f"load:{options.load}", WORKLOAD, B200)
    assert isinstance(arrival, Poisson)
    for seed in options.seeds:
        trace = synthesize(AGENTX_LIKE, programs=options.programs, seed=seed)
        for arm in options.arms:
            chosen = ARMS[arm]
            with double(chosen.rules, arrival.rate, options.time_scale) as served:
                result = replayed(
                    served,
                    trace,
                    arrival,
                    seed,
                    chosen.telemetry,
                    time_scale=options.time_scale,
                    tokens_per_word=TOKENS_PER_WORD,
                )
            yield case(seed, arm, result, simulated(B200, arrival, seed, options.programs, arm))


# The real engine


def sessions(options: argparse.Namespace, seed: int) -> Trace:
    """As many sessions as are asked for, scaled down, of those that fit the pool.

    Raises ``SystemExit`` where too few do.
    """
    drawn = synthesize(AGENTX_LIKE, programs=_DRAWN * options.programs, seed=seed)
    scale = Scale(tokens=options.scale_tokens, outputs=options.scale_tokens, tools=options.scale_tools)
    scaled, most = scale.apply(drawn), _FULLEST * options.pool
    fitting = (
        family
        for family in families(scaled.programs)
        if max(each.context_tokens for each in family) <= most and len(family[0].turns) <= options.most_turns
    )
    chosen = list(islice(fitting, options.programs))
    if len(chosen) < options.programs:
        raise SystemExit(
            f"only {len(chosen)} sessions fit a pool of {options.pool} tokens: lower --scale-tokens or raise --pool"
        )
    return replace(scaled, programs=all_of(chosen))


def on_sglang(options: argparse.Namespace) -> Iterator[Case]:
    kind, environment = KINDS[SGLANG], find_environment()
    shape = EngineShape(model=options.model, pool_tokens=options.pool, threads=1)
    scenario = Scenario(trace=WORKLOAD.trace, programs=options.programs, engine=shape)
    scenario = scenario.on(kind.name, version_of(environment, kind))
    for seed in options.seeds:
        trace = sessions(options, seed)
        for arm in options.arms:
            chosen = ARMS[arm]
            system = System(name=arm, toml=configuration(chosen.rules))
            with (
                tempfile.TemporaryDirectory(prefix="penstock-trees-") as scratch,
                one_run.served(system, scenario, environment, Path(scratch)) as server,
            ):
                served = Served(url=server.url, node=one_run.NODE, folder=Path(scratch) / "daemon")
                result = replayed(served, trace, Poisson(options.rate), seed, chosen.telemetry)
            yield case(seed, arm, result, 0.0)


# What comes of it


def case(seed: int, arm: str, result: RunResult, simulated_s: float) -> Case:
    summary = result.summary
    return Case(
        seed=seed,
        arm=arm,
        jct_mean_s=summary.jct_mean_s,
        simulated_s=simulated_s,
        ended=summary.programs_ended,
        failed=summary.programs_failed,
        turns=summary.turns_ended,
    )


def printed(cases: Sequence[Case], arms: Sequence[str]) -> str:
    """As Markdown: the arms side by side, and the first ones over the last."""
    seeds = sorted({each.seed for each in cases})
    by = {(each.seed, each.arm): each for each in cases}
    lines = []
    for seed in seeds:
        of_seed = [by[seed, arm] for arm in arms]
        lines.append([str(seed), *map(_said, of_seed), str(of_seed[0].turns), str(sum(e.failed for e in of_seed))])
    shown = table(["seed", *(f"{arm}, s" for arm in arms), "turns", "failed"], lines)
    means = {arm: fmean(by[seed, arm].jct_mean_s for seed in seeds) for arm in arms}
    ratios = ", ".join(f"{arms[-1]} / {arm} {means[arms[-1]] / means[arm]:.2f}" for arm in arms[:-1])
    return "\n".join([*shown, *(["", ratios] if ratios else [])])


def _said(each: Case) -> str:
    beside = f" (simulated {each.simulated_s:.0f})" if each.simulated_s else ""
    return f"{each.jct_mean_s:.0f}{beside}" if each.simulated_s else f"{each.jct_mean_s:.1f}"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=(DOUBLE, SGLANG), default=DOUBLE, help="default: %(default)s")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1])
    parser.add_argument("--programs", type=int, help="roots of a run; default: 12, on SGLang 4")
    parser.add_argument("--arms", type=arms, default=USUAL, help=f"default: {','.join(USUAL)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    one = parser.add_argument_group("the double")
    one.add_argument("--load", type=float, default=2.0, help="times the saturation rate; default: %(default)s")
    one.add_argument("--time-scale", type=float, default=20.0, help="default: %(default)s")
    other = parser.add_argument_group("SGLang")
    other.add_argument("--rate", type=float, default=0.2, help="programs a second; default: %(default)s")
    other.add_argument("--model", choices=("tiny", "20m"), default="tiny", help="default: %(default)s")
    other.add_argument("--pool", type=int, default=4000, help="tokens of KV; default: %(default)s")
    other.add_argument("--scale-tokens", type=float, default=0.01, help="of contexts and outputs")
    other.add_argument("--scale-tools", type=float, default=0.1, help="of tool times; default: %(default)s")
    other.add_argument("--most-turns", type=int, default=60, help="of a session; default: %(default)s")
    options = parser.parse_args()
    options.programs = options.programs or (12 if options.engine == DOUBLE else 4)
    if CLAIRVOYANT in options.arms:
        parser.error(
            "--arms: what programs will do is known in the simulator alone: bench/trees.py has the clairvoyant"
        )
    return options


def main() -> int:
    options = parse_arguments()
    one_run.prepare()
    cases = []
    for each in on_the_double(options) if options.engine == DOUBLE else on_sglang(options):
        print(f"  seed {each.seed}, {each.arm}: {each.ended} ended, {each.failed} failed", file=sys.stderr)
        cases.append(each)
    print(json.dumps([asdict(each) for each in cases]) if options.json else printed(cases, options.arms))
    return 0


if __name__ == "__main__":
    sys.exit(main())

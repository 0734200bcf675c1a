"""What it does to scale engines on held demand, against scaling on a queue's length and on turns in flight.

    python bench/fleet_scaling.py [--seeds 1,2] [--high 0.25] [--low 0.03] [--period-s 3600] [--periods 1]

Programs come in waves: a third of each period at the high rate (programs a second), the rest at the low one. The
simulator's engines follow a HorizontalPodAutoscaler's rules (controlplane/lab/sim/scaling.py): looked at each 15 s,
an engine serves 120 s after it was wanted, fewer are wanted only after 300 s of that. Each signal is tried with
several targets, since one proves nothing: a signal is better if for the same engine-hours its programs end sooner,
or its turns begin sooner. ``fixed`` has so many engines from the first moment to the last. Controller, preset and
placement are the same in all rows, which are means over the seeds.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed

from controlplane.core.presets import PRESETS
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.scaling import Autoscaler, Scaling
from controlplane.lab.simulate import Run, run_of, simulate
from controlplane.lab.workload.arrivals import Poisson

HIGH_SHARE = 1 / 3  # of a period
TARGETS: dict[str, tuple[float, ...]] = {  # of one engine; of `held`: shares of its pool
    "fixed": (4, 6, 8),
    "queue": (1, 2, 4),
    "in_flight": (6, 10, 16),
    "held": (0.6, 0.85, 1.1),
}


class Waves(Run):
    """A run whose programs come in waves; the seed says when each does."""

    waves: ClassVar[argparse.Namespace]

    @property
    def arrivals_ns(self) -> list[int]:
        asked, rng, at_s, times = self.waves, random.Random(self.asked.seed), 0.0, []
        while len(times) < len(self.programs):
            is_high = at_s % asked.period_s < HIGH_SHARE * asked.period_s
            at_s += rng.expovariate(asked.high if is_high else asked.low)
            times.append(round(at_s * 1e9))
        return times


def waves(asked: argparse.Namespace, experiment: Experiment) -> Waves:
    Waves.waves = asked
    run = run_of(experiment)
    return Waves(**{field.name: getattr(run, field.name) for field in fields(run)})


def programs(asked: argparse.Namespace) -> int:
    """As many as come on average."""
    high_s = HIGH_SHARE * asked.period_s
    return round(asked.periods * (asked.high * high_s + asked.low * (asked.period_s - high_s)))


def experiment(asked: argparse.Namespace, seed: int, engines: int) -> Experiment:
    return Experiment(
        workload=Workload(trace=asked.trace, programs=programs(asked)),
        hardware=Hardware(
            profile=asked.profile,
            pool_tokens=asked.pool_tokens,
            replicas=engines,
            routing="session",
            link_gb_per_s=0,
        ),
        arrival=Poisson(asked.high),
        preset=PRESETS[asked.preset],
        seed=seed,
    )


def figures(asked: argparse.Namespace, signal: str, target: float, seed: int) -> dict[str, float]:
    """One run."""
    if signal == "fixed":
        result = simulate(waves(asked, experiment(asked, seed, int(target))))
        hours, most = target * result.summary.makespan_s / 3600, target
    else:
        per_engine = target * asked.pool_tokens if signal == "held" else target
        scaler = Autoscaler(
            rules=Scaling(signal=signal, per_engine=per_engine, most=asked.most, start_s=asked.start_s)
        )
        result = simulate(waves(asked, experiment(asked, seed, asked.most)), autoscaler=scaler)
        hours = scaler.engine_hours(round(result.summary.makespan_s * 1e9))
        most = max(engines for _, engines in scaler.counts)
    summary = result.summary
    return {
        "engine_hours": hours,
        "most_engines": float(most),
        "jct_mean_s": summary.jct_mean_s,
        "jct_p95_s": summary.jct_p95_s,
        "ttft_p95_s": summary.ttft_p95_s,
        "in_time_ratio": summary.ttft_within_10s_ratio,
        "hit_ratio": summary.cache_hit_ratio,
    }


def mean(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: fmean(run[name] for run in runs) for name in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", default="synthetic:five-kinds")
    parser.add_argument("--high", type=float, default=0.25)
    parser.add_argument("--low", type=float, default=0.03)
    parser.add_argument("--period-s", type=float, default=3600.0)
    parser.add_argument("--periods", type=float, default=1.0)
    parser.add_argument("--profile", default="h200-llama31-8b")
    parser.add_argument("--pool-tokens", type=int, default=200_000)
    parser.add_argument("--preset", default="penstock")
    parser.add_argument("--most", type=int, default=8)
    parser.add_argument("--start-s", type=float, default=120.0)
    parser.add_argument("--seeds", default="1,2")
    parser.add_argument("--signals", default=",".join(TARGETS))
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = []
    for signal in asked.signals.split(","):
        for target in TARGETS[signal]:
            runs = [figures(asked, signal, target, int(seed)) for seed in asked.seeds.split(",")]
            found.append({"signal": signal, "target": target, **mean(runs)})
            print(f"{signal} {target:g}", file=sys.stderr)
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    head = ["signal", "an engine's target", "engine-hours", "most engines", "JCT mean, s", "p95", "TTFT p95, s",
            "TTFT <= 10 s", "hit rate"]  # fmt: skip
    rows = [
        [
            str(row["signal"]),
            f"{row['target']:g}",
            f"{row['engine_hours']:.2f}",
            f"{row['most_engines']:.1f}",
            f"{row['jct_mean_s']:.0f}",
            f"{row['jct_p95_s']:.0f}",
            f"{row['ttft_p95_s']:.1f}",
            f"{row['in_time_ratio']:.1%}",
            f"{row['hit_ratio']:.1%}",
        ]
        for row in found
    ]
    print("\n".join(table(head, rows)))


if __name__ == "__main__":
    main()

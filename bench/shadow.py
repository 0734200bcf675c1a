"""What a shadow predicts of its preset, and what was then measured when that preset was live; and what it costs.

    .venv/bin/python bench/shadow.py [--programs N] [--rate R] [--time-scale X] [--pair LIVE:SHADOW]... [--json]

Of each pair: a whole loop (nats-server, daemon, engine double, agent programs whose tools are reported) under the
one preset, with the other one in its shadow. Once all programs have ended, the estimate of that stretch is waited
for. Then the shadow's preset is live and the other one
in its shadow, as ``penstock promote`` leaves them, with the same programs and arrivals, on an empty engine. The
changes are of what the clients measured; ``off by`` is the difference, which is to be 5 points at most. The same
preset run twice (``--again``) shows what no prediction can be better than.

The cost is the shadow's share of the daemon's CPU time, as its status tells it, and the CPU seconds of the last
estimate, which a process of its own took.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ab  # noqa: F401  makes the tests' helpers importable
from support.whole_loop import Loop

from controlplane.lab.compare.markdown import table
from controlplane.lab.workload.summary import Summary
from controlplane.operate.client import connect

PAIRS = ("fcfs:penstock", "penstock:mars", "thunderagent:continuum")
NAMES = {"mean_jct_s": "mean JCT", "p95_ttft_s": "p95 TTFT", "hit_rate": "hit rate"}
POOL_TOKENS = 60_000
BUDGET_SHARE = 0.2
_ESTIMATE_S = 60.0  # of the engine's time
_WITHIN_S = 300.0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--programs", type=int, default=40)
    parser.add_argument("--rate", type=float, default=0.3, help="programs/s of the engine's time")
    parser.add_argument("--time-scale", type=float, default=20.0, help="of the double")
    parser.add_argument("--pair", action="append", help=f"LIVE:SHADOW; default: {', '.join(PAIRS)}")
    parser.add_argument("--again", action="store_true", help="run the first pair's live preset twice as well")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    pairs = [tuple(pair.split(":")) for pair in options.pair or PAIRS]
    cases = [_case(options, live, shadow) for live, shadow in pairs]
    if options.json:
        print(json.dumps(cases))
    else:
        print(
            "\n".join(
                table(["live", "shadow", "figure", "live's", "predicted", "measured", "off by"], _rows(cases))
            )
        )
        for case in cases:
            took = f"{case['cpu_ratio']:.1%} of the daemon's CPU time (budget {BUDGET_SHARE:.0%})"
            took += f", its last estimate {case['estimate_cpu_s']:.1f} CPU s; it rested {case['rests']} times"
            alike = f"{case['same']} decisions alike, {case['other']} not"
            print(f"\n{case['shadow']} beside {case['live']}: {took}; {alike}. {case['reason']}")
    if options.again:
        live = pairs[0][0]
        once, twice = (_figures(_run(options, live, live)[0]) for _ in range(2))
        differ = ", ".join(f"{NAMES[name]} {100 * at:+.1f}" for name, at in _changes(once, twice).items())
        print(f"\n{live} run twice differs by: {differ}")


def _case(options: argparse.Namespace, live: str, shadow: str) -> dict[str, Any]:
    summary, status = _run(options, live, shadow, waited=True)
    then, _ = _run(options, shadow, live)
    other, estimate = status.shadow, status.shadow.estimate
    counts = {name: value for name, value in vars(other.counts).items() if name not in ("order", "unjudged")}
    same = counts.pop("same")
    return {
        "live": live,
        "shadow": shadow,
        "predicted": {each.name: each.value for each in estimate.changes},
        "bounds": {each.name: (each.low, each.high) for each in estimate.changes if each.is_bounded},
        "measured": _changes(_figures(summary), _figures(then)),
        "before": _figures(summary),
        "cpu_ratio": other.cpu_ratio,
        "estimate_cpu_s": estimate.cpu_s,
        "same": same,
        "other": sum(counts.values()),
        "rests": other.rests,
        "reason": estimate.reason,
    }


def _run(options: argparse.Namespace, live: str, shadow: str, *, waited: bool = False) -> tuple[Summary, Any]:
    """What clients measured; and, where it is waited for, the status once an estimate has seen it all."""
    with tempfile.TemporaryDirectory() as scratch:
        every_s = _ESTIMATE_S / options.time_scale
        toml = f'[http]\nlisten = "off"\n[shadow]\npreset = "{shadow}"\nestimate_s = {every_s}\nstretch_s = 86400\n'
        config = Path(scratch) / "penstock.toml"
        config.write_text(toml)
        loop = Loop(
            Path(scratch) / "state",
            live,
            pool_tokens=POOL_TOKENS,
            rate=options.rate,
            time_scale=options.time_scale,
            daemon=("--config", str(config)),
        )
        try:
            loop.start()
            summary = loop.run(options.programs).summary
            print(f"{live}: {summary.programs_ended} of {options.programs} programs ended", file=sys.stderr)
            return summary, _status(loop) if waited else None
        finally:
            loop.stop()


def _status(loop: Loop) -> Any:
    """Once the last estimate was begun after the programs' end; it may take a while."""
    with connect(None, loop.node, loop.folder) as client:
        status = client.call("GetStatus")
        ended, until_s = status.shadow.estimate.made, time.monotonic() + _WITHIN_S
        cost = status.shadow.cpu_ratio
        # The one that is being made now has not seen the end.
        while status.shadow.estimate.made < ended + 2 and time.monotonic() < until_s:
            time.sleep(0.5)
            status = client.call("GetStatus")
        status.shadow.cpu_ratio = cost  # while there was work
        return status


def _figures(summary: Summary) -> dict[str, float]:
    return {
        "mean_jct_s": summary.jct_mean_s,
        "p95_ttft_s": summary.ttft_p95_s,
        "hit_rate": summary.cache_hit_ratio,
    }


def _changes(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Of times a ratio less 1, of the hit rate a difference."""
    return {
        name: after[name] - at if name == "hit_rate" else after[name] / at - 1 if at else 0.0
        for name, at in before.items()
    }


def _rows(cases: Sequence[dict[str, Any]]) -> Iterator[list[str]]:
    for case in cases:
        for name, words in NAMES.items():
            at, measured = case["predicted"].get(name), case["measured"][name]
            low, high = (100 * end for end in case["bounds"].get(name, (0.0, 0.0)))
            ends = f" [{low:+.0f}, {high:+.0f}]" if name in case["bounds"] else ""
            yield [
                case["live"],
                case["shadow"],
                words,
                f"{case['before'][name]:.2f}",
                f"{100 * at:+.1f}{ends}" if at is not None else "none",
                f"{100 * measured:+.1f}",
                f"{100 * (at - measured):+.1f}" if at is not None else "",
            ]


if __name__ == "__main__":
    main()

"""Resident memory of a daemon's controller and its regret ledger: at 100,000 live programs, and over a soak.

The budgets are 300 MB and no growth.

    .venv/bin/python bench/memory.py [--live N] [--soak N] [--json]

live: a process with all that the daemon imports, and a ``mars`` controller with so many programs, two of three
    in a turn, the others with a tool running; then a snapshot is taken. The budget holds for the peak. The regret
    ledger hears all of it, as in the daemon; ``ledger_mb`` is what it holds, by a second process without it.
soak: in another process, programs come, are admitted, run two turns and a tool, and end, a few hundred at a time.
    The first tenth is warm-up; growth is the memory at the end over that after the warm-up. It ends after a minute
    of CPU time at the latest.
"""

import argparse
import gc
import json
import multiprocessing
import platform
import resource
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

BUDGET_MB = 300.0
BUDGET_GROWTH_RATIO = 1.05
LONGEST_SOAK_CPU_S = 60.0
BATCH = 500
_SECOND_NS = 1_000_000_000


def resident_mb() -> float:
    return float(psutil.Process().memory_info().rss) / 1e6


def controller() -> Any:
    """``mars`` with an open window: it is memory that is measured, not admission."""
    import controlplane.daemon.compose  # noqa: F401  all that ``penstock up`` loads counts
    from controlplane.core.model.events import PoolSampled
    from controlplane.core.policies.admission.fixed import Fixed
    from controlplane.core.policies.presets import preset
    from controlplane.core.scheduling.controller import Controller

    made = Controller(replace(preset("mars"), admission=Fixed(window=0)))
    made.receive(PoolSampled(total_blocks=10_000_000, free_blocks=0, block_tokens=16), 0)
    return made


def ledger() -> Any:
    """The regret ledger of a daemon that leads."""
    from controlplane.daemon.observe.regrets import Regrets

    made = Regrets()
    made.lead([], 0)
    return made


def live_unjudged(programs: int, answer: Any) -> None:
    """As ``live``, and nobody judges."""
    live(programs, answer, judged=False)


def live(programs: int, answer: Any, *, judged: bool = True) -> None:
    """In its own process: fill, tick, and take a snapshot."""
    from controlplane.core.model import events as ev
    from controlplane.daemon.bus.snapshot import pieces
    from controlplane.daemon.pipeline import DecisionPipeline
    from controlplane.files import replace_file
    from controlplane.wire.codec import encode_events

    pipeline = DecisionPipeline(controller())
    if judged:
        pipeline.recorders.append(ledger())
    empty_mb = resident_mb()
    sequence = 0
    for first in range(0, programs, 100):
        events: list[ev.Event] = []
        for n in range(first, min(programs, first + 100)):
            ids: dict[str, Any] = {"program_id": f"tenant-7/session-{n:08x}", "turn_id": f"session-{n:08x}/turn-1"}
            events.append(ev.TurnSubmitted(projected_blocks=500, prompt_tokens=8000, **ids))
            if n % 3 == 0:
                events.append(ev.TurnEnded(prompt_tokens=8000, output_tokens=300, tool="bash", tool_calls=1, **ids))
                call: dict[str, Any] = {"program_id": ids["program_id"], "call_id": f"session-{n:08x}/call-1"}
                events.append(ev.ToolStarted(tool="bash", **call))
        # As bytes, as the bus brings them: each event has its own strings.
        pipeline.feed(encode_events("node/engine/bench", sequence + 1, [(0, event) for event in events]), 1)
        pipeline.record()  # as after each round
        sequence += len(events)
    pipeline.decide(2 * _SECOND_NS)
    pipeline.record()
    held = len(pipeline.controller.ledger.programs.by_name)
    live_mb = resident_mb()
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.json"
        replace_file(
            path,
            pieces(
                pipeline.controller.state,
                preset="mars",
                stream_sequence=1,
                stream_created="",
                now_ns=1,
                time_scale=1,
            ),
        )
        size = path.stat().st_size
    answer.send(
        {
            "programs": held,
            "empty_mb": round(empty_mb, 1),
            "live_mb": round(live_mb, 1),
            "bytes_a_program": round((live_mb - empty_mb) * 1e6 / max(1, held)),
            "snapshot_mb": round(size / 1e6, 1),
            "snapshot_ms": round((time.perf_counter() - began_s) * 1e3),
            "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6, 1),
        }
    )


def soak(programs: int, answer: Any) -> None:
    """In its own process: programs come and go, in virtual time."""
    from controlplane.core.model import events as ev

    made, judge, now_ns, before_mb, ended = controller(), ledger(), _SECOND_NS, 0.0, 0

    def receive(event: ev.Event) -> None:
        made.receive(event, now_ns)
        judge.event(event, now_ns)

    def tick() -> None:
        commands = made.tick(now_ns)
        judge.tick(now_ns)
        for command in commands:
            judge.command(command, now_ns)

    began_s = time.perf_counter()
    for first in range(0, programs, BATCH):
        names = [f"session-{n:08x}" for n in range(first, first + BATCH)]
        for turn in (1, 2):
            for name in names:
                receive(ev.TurnQueued(program_id=name, turn_id=f"{name}/{turn}", prompt_tokens=9000))
            tick()
            now_ns += _SECOND_NS
            for name in names:
                ids: dict[str, Any] = {"program_id": name, "turn_id": f"{name}/{turn}"}
                call: dict[str, Any] = {
                    "program_id": name,
                    "call_id": f"{name}/{turn}",
                    "tool": f"tool-{first % 97}",
                }
                receive(ev.TurnSubmitted(projected_blocks=600, **ids))
                receive(ev.FirstToken(prompt_tokens=9000, prefill_ns=_SECOND_NS, **ids))
                receive(ev.TurnEnded(prompt_tokens=9000, output_tokens=99, tool_calls=1, **ids))
                receive(ev.ToolStarted(**call))
                receive(ev.ToolEnded(duration_ns=_SECOND_NS, **call))
            tick()
        for name in names:
            receive(ev.ProgramEnded(program_id=name))
        now_ns += 120 * _SECOND_NS
        tick()
        ended += len(names)
        if not before_mb and ended >= programs // 10:
            gc.collect()
            before_mb = resident_mb()
        if time.process_time() > LONGEST_SOAK_CPU_S and before_mb:
            break
    gc.collect()
    after_mb = resident_mb()
    answer.send(
        {
            "programs": ended,
            "left": len(made.ledger.programs.by_name),
            "before_mb": round(before_mb, 1),
            "after_mb": round(after_mb, 1),
            "growth_ratio": round(after_mb / before_mb, 3) if before_mb else 0.0,
            "took_s": round(time.perf_counter() - began_s, 1),
        }
    )


def in_a_process(work: Any, programs: int) -> dict[str, Any]:
    """What ``work`` answers from a fresh process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(programs, theirs))
    process.start()
    theirs.close()
    try:
        result: dict[str, Any] = ours.recv()
    finally:
        process.join()
    return result


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--live", type=int, default=100_000, help="live programs (default 100000)")
    parser.add_argument("--soak", type=int, default=200_000, help="programs that come and go (default 200000)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if min(options.live, options.soak) < 10 * BATCH:
        parser.error(f"expected --live and --soak >= {10 * BATCH}")
    rows = {"live": in_a_process(live, options.live), "soak": in_a_process(soak, options.soak)}
    unjudged_mb = in_a_process(live_unjudged, options.live)["live_mb"]
    rows["live"]["ledger_mb"] = round(rows["live"]["live_mb"] - unjudged_mb, 1)
    result = {
        "about": {"python": platform.python_version(), "platform": platform.platform()},
        **rows,
        "within_budget": rows["live"]["peak_mb"] <= BUDGET_MB
        and rows["soak"]["growth_ratio"] <= BUDGET_GROWTH_RATIO,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, row in rows.items():
        print(f"{name}:  " + "  ".join(f"{key} {value:,}" for key, value in row.items()))
    print(
        f"budget: {BUDGET_MB:g} MB at {options.live:,} live programs, growth at most {BUDGET_GROWTH_RATIO:g}: "
        f"{'met' if result['within_budget'] else 'missed'}"
    )


if __name__ == "__main__":
    main()

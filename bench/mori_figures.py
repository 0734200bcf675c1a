"""MORI's Figures 7 to 10 in the simulator, beside what the paper says of them.

    python bench/mori_figures.py [--trace FILE] [--scale-tokens X] [--at-once 20,50,80] [--rounds 2] [--jobs N]

Its clients replay Claude Code sessions, so many at once on each engine, and begin the next session when one ends.
``--trace`` is a file of such sessions. The systems are the paper's: a cache-aware gateway before stock engines
(SMG), ThunderAgent without (TA) and with host memory (TA+O), and MORI; host memory is once and twice the device's.
With ``--scale-tokens`` prompts are so much shorter: by it the memory holds as many sessions as the paper's does.
Figures are of the time until the last session begins, while all clients are busy. The engines are ours, and so are
their sizes: what is compared is the order of the systems, and how they go with the number of programs. The paper's
figures are those that its text gives.
"""

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace

from controlplane.core.placement.prefix import Prefix
from controlplane.core.policies import Choice
from controlplane.core.presets import PRESETS, Preset
from controlplane.core.types import NANOSECONDS_PER_SECOND
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Closed

MOST_TOKENS = 120_000
HARDWARE = {  # figure: name, profile, tokens of the pool, engines
    "7": ("one H200 of 80 GB, 8B", "h200-llama31-8b", 420_000, 1),
    "9": ("one B200, 70B", "b200-llama31-70b", 400_000, 1),
    "10": ("three H200, 8B", "h200-llama31-8b", 420_000, 3),
}
SYSTEMS: dict[str, tuple[Preset, bool]] = {
    "SMG": (replace(PRESETS["fcfs"], placement=Prefix()), False),
    "TA": (PRESETS["thunderagent"], False),
    "TA+O": (PRESETS["thunderagent"], True),
    "MORI": (PRESETS["mori"], True),
}
THEIRS = {  # output tokens/s, by figure, host memory (0: none), system, programs an engine
    ("7", 1, "MORI", 20): 546,
    ("7", 1, "TA+O", 20): 534,
    ("7", 1, "MORI", 80): 853,
    ("7", 1, "TA+O", 80): 667,
    ("7", 0, "SMG", 80): 447,
    ("7", 0, "TA", 80): 557,
    ("9", 1, "TA+O", 20): 147,
    ("9", 1, "TA+O", 50): 181,
    ("9", 1, "TA+O", 80): 146,
    ("9", 1, "MORI", 20): 136,
    ("9", 1, "MORI", 50): 191,
    ("9", 1, "MORI", 80): 189,
    ("9", 0, "SMG", 80): 96,
    ("9", 2, "MORI", 80): 213,
    ("9", 2, "TA+O", 80): 124,
    ("10", 0, "TA", 50): 1147,
    ("10", 0, "TA", 80): 798,
    ("10", 2, "TA+O", 50): 1395,
    ("10", 2, "TA+O", 80): 920,
}
THEIR_TTFT_S = {
    ("9", 0, "SMG", 80): 108,
    ("9", 0, "TA", 80): 73,
    ("9", 1, "TA+O", 80): 56,
    ("9", 2, "TA+O", 80): 58,
    ("9", 1, "MORI", 80): 38,
    ("9", 2, "MORI", 80): 33,
}
THEIR_MOVED = {  # share of programs that changed their engine
    ("10", 2, "MORI", 80): 0.020,
    ("10", 2, "TA+O", 80): 0.055,
    ("10", 0, "TA", 80): 0.076,
}

Case = tuple[str, int, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """``moved``: the share of programs that changed their engine; ``moves``: how often one did, on average."""

    tokens_per_s: float
    ttft_s: float
    hits: float
    moved: float
    moves: float


def run(case: Case, trace: str, rounds: int, scale_tokens: float) -> Figures:
    figure, memory, system, programs = case
    _, profile, pool_tokens, engines = HARDWARE[figure]
    preset, _ = SYSTEMS[system]
    at_once = programs * engines
    result = simulate(
        Experiment(
            workload=Workload(
                trace=trace,
                programs=at_once * rounds,
                max_context=MOST_TOKENS,
                humans=False,
                scale_tokens=scale_tokens,
            ),
            hardware=Hardware(
                profile=profile,
                pool_tokens=pool_tokens,
                replicas=engines,
                link_gb_per_s=0.0,
                tiers=(f"dram:{memory * pool_tokens}:50",) if memory else (),
            ),
            arrival=Closed(at_once),
            preset=preset,
        )
    )
    until_ns = max(program.arrived_ns for program in result.programs) or result.turns[-1].ended_ns
    turns = [turn for turn in result.turns if turn.ended_ns <= until_ns and not turn.error]
    moves = sum(1 for turn in turns if turn.routed and turn.routed.choice in (Choice.MIGRATE, Choice.REPREFILL))
    return Figures(
        tokens_per_s=sum(turn.output_tokens for turn in turns) * NANOSECONDS_PER_SECOND / until_ns,
        ttft_s=sum(turn.first_token_ns - turn.queued_ns for turn in turns) / NANOSECONDS_PER_SECOND / len(turns),
        hits=sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns),
        moved=result.summary.programs_moved_ratio,
        moves=moves / len({turn.program_id for turn in turns}),
    )


def cases(at_once: list[int], figures: list[str], memory: list[int]) -> list[Case]:
    return [
        (figure, times, system, programs)
        for figure in figures
        for programs in at_once
        for system, (_, tiered) in SYSTEMS.items()
        for times in (memory if tiered else [0])
    ]


def show(case: Case, ours: Figures, *, first: bool) -> None:
    """A line, under its figure's head where it is the ``first`` of it."""
    figure, memory, system, programs = case
    if first:
        print(f"Figure {figure}: {HARDWARE[figure][0]}; the paper's in brackets, where its text tells them")
        print(f"  {'system':8} {'host':>4} {'at once':>8} {'tokens/s':>16} {'TTFT':>14} {'hits':>6} {'moved':>9}")
    tokens, ttft, moved = THEIRS.get(case), THEIR_TTFT_S.get(case), THEIR_MOVED.get(case)
    print(
        f"  {system:8} {f'{memory}x' if memory else '-':>4} {programs:>8} "
        f"{ours.tokens_per_s:8.0f} {f'({tokens})' if tokens else '':>7} "
        f"{ours.ttft_s:7.1f} {f'({ttft})' if ttft else '':>6} {ours.hits:6.1%} "
        f"{ours.moved:6.1%} {f'({moved:.1%})' if moved else '':>7}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--trace", default="synthetic:five-kinds", help="sessions: a file of Claude Code's, or a name"
    )
    parser.add_argument("--scale-tokens", type=float, default=1.0, help="on prompts' tokens")
    parser.add_argument("--at-once", default="20", help="programs at once on each engine, comma-separated")
    parser.add_argument("--figures", default=",".join(HARDWARE))
    parser.add_argument("--memory", default="1,2", help="host memory over the device's, comma-separated")
    parser.add_argument("--rounds", type=int, default=2, help="sessions of each client")
    parser.add_argument("--jobs", type=int, help="runs at a time; default: one a CPU")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    at_once, memory = ([int(each) for each in text.split(",")] for text in (args.at_once, args.memory))
    asked = cases(at_once, args.figures.split(","), memory)
    with ProcessPoolExecutor(args.jobs) as workers:
        told = ([value] * len(asked) for value in (args.trace, args.rounds, args.scale_tokens))
        runs = workers.map(run, asked, *told)
        found: dict[Case, Figures] = {}
        for case in asked:
            is_first = case[0] not in {figure for figure, *_ in found}
            found[case] = next(runs)
            if args.json:
                print(f"  figure {case[0]}, {case[2]}, {case[1]}x, {case[3]} at once", file=sys.stderr, flush=True)
            else:
                show(case, found[case], first=is_first)
    if args.json:
        print(json.dumps([{"case": case, **asdict(figures)} for case, figures in found.items()]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

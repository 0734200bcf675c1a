"""Live runs in short, beside what the simulator said of the same programs at the same rates."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from controlplane.lab.compare.rows import (
    BASELINE,
    BETTER,
    JCT,
    RATIO,
    SAME,
    SUBJECT,
    Group,
    Line,
    group_runs,
    jct_ratio,
    line_of,
    mean_jct_s,
    name_of,
    standing,
)
from controlplane.lab.workload.run import RunResult

SIMULATED = "simulated"
_HIT = "cache_hit_ratio"
_SHOWN = {
    JCT: "mean JCT (s)",
    RATIO: f"mean JCT vs {BASELINE}",
    _HIT: "cache hit rate",
    "ttft_p95_s": "TTFT p95, hold included (s)",
    "hold_mean_s": "hold at the gate, mean (s)",
}
_PREDICTED = (JCT, RATIO, _HIT)


def same_runs(group: Group, predicted: Sequence[RunResult]) -> Group | None:
    """Of each run of the group the one that was predicted, in the same order; None unless all were."""
    found = {name_of(run): run for run in predicted if (run.rate, run.arrival) == (group.rate, group.arrival)}
    names = [name_of(run) for run in group.runs]
    return replace(group, runs=tuple(found[name] for name in names)) if found.keys() >= set(names) else None


def rows_beside(predicted: Sequence[RunResult]) -> Callable[[Group], list[Line]]:
    """The figures to look at first, what was predicted of each below it."""

    def rows(group: Group) -> list[Line]:
        other = same_runs(group, predicted)
        found = []
        for figure, label in _SHOWN.items():
            found.append(replace(line_of(group, figure), label=label))
            if other is not None and figure in _PREDICTED:
                found.append(replace(line_of(other, figure), label=f"{label}, {SIMULATED}"))
        return found

    return rows


def outcome(runs: Sequence[RunResult]) -> list[str]:
    """What came of it, in sentences: at the highest rate at which both ran, then at the others."""
    met = [(group, ratio) for group in group_runs(runs) if (ratio := jct_ratio(group)) is not None]
    if not met:
        return []
    (group, ratio), others = met[-1], met[:-1]
    ours, theirs = mean_jct_s(group, SUBJECT), mean_jct_s(group, BASELINE)
    hits = {name_of(run): run.summary.cache_hit_ratio or 0.0 for run in group.runs}
    sentences = [
        f"At {group.title} a program takes {ours:.0f} s with {SUBJECT} and {theirs:.0f} s with {BASELINE}, the "
        f"stock engine: mean JCT {ratio:.2f}x, {_words(ratio)}. Cache hit rate {hits[SUBJECT]:.0%} and "
        f"{hits[BASELINE]:.0%}."
    ]
    sentences += [f"At {group.title}: mean JCT {ratio:.2f}x, {_words(ratio)}." for group, ratio in others]
    return sentences


def _words(ratio: float) -> str:
    how = standing(ratio)
    return "even" if how == SAME else "better" if how == BETTER else "NOT better"

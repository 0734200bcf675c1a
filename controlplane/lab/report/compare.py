"""Runs side by side: which belong together, which figure is best, and where the control plane does not help."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.core.presets import DEFAULT
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.summary import ROWS

BASELINE = "fcfs"
SUBJECT = DEFAULT
EVEN_BAND = 0.02  # ratios so close to 1 are even: a repetition of a live run differs by as much
UNKNOWN = "–"
BETTER, SAME, WORSE = "better", "same", "worse"

_LOWER_IS_BETTER = (
    "jct_",
    "ttft_mean",
    "ttft_p",
    "tpot_",
    "hold_mean",
    "longest",
    "programs_failed",
    "turns_failed",
    "pool_recompute",
    "tool_",
    "routed_",
    "ttl_",
    "recomputed",
    "retractions",
)
_NEITHER = (
    "programs_ended",
    "turns_ended",
    "makespan",
    "pool_prefill",
    "pool_caching",
    "pool_unused",
    "loaded",
    "moves",
    "routed_new",
    "routed_stay",
    "routed_migrate",
    "routed_reprefill",
    "routed_moved",
)
_NEEDS_IDEAL = ("goodput_", "jain_")
_NEEDS_ACCOUNT = ("pool_", "loaded", "moves", "ttl_", "recomputed", "retractions")
_NEEDS_CONTENTION = "tool_slowdown"
_NEEDS_ENGINES = "routed_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs under the same arrivals."""

    arrival: str
    rate: float
    runs: tuple[RunResult, ...]
    routed: bool = False  # some run of the comparison had several engines

    @property
    def title(self) -> str:
        return f"{self.rate:g} programs/s" if self.rate else self.arrival or "unknown arrivals"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One figure of one run, as printed. ``best``: no other run of its group has a better one."""

    text: str
    best: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure over the runs of a group, in their order."""

    label: str
    cells: tuple[Cell, ...]


def group_runs(runs: Sequence[RunResult]) -> list[Group]:
    """Groups by arrivals, lowest rate first; within one the baseline first, then as given."""
    groups: dict[tuple[float, str], list[RunResult]] = {}
    routed = any(run.summary.is_routed for run in runs)
    for run in runs:
        groups.setdefault((run.rate, run.arrival), []).append(run)
    return [
        Group(
            arrival=arrival,
            rate=rate,
            runs=tuple(sorted(members, key=lambda run: name_of(run) != BASELINE)),
            routed=routed,
        )
        for (rate, arrival), members in sorted(groups.items())
    ]


def name_of(run: RunResult) -> str:
    """What a run is called beside others: its preset, or its label where it has none."""
    return run.preset or run.label


def column_names(group: Group) -> list[str]:
    """A name for each run of the group; the seed tells repeated ones apart."""
    names = [name_of(run) for run in group.runs]
    return [
        f"{name}, seed {run.seed}" if names.count(name) > 1 else name
        for name, run in zip(names, group.runs, strict=True)
    ]


def mean_jct_s(group: Group, preset: str) -> float | None:
    """Mean JCT of the preset's runs in the group, over their seeds; None without a program that ended."""
    means = [run.summary.jct_mean_s for run in group.runs if name_of(run) == preset]
    means = [mean for mean in means if mean > 0]
    return sum(means) / len(means) if means else None


def jct_ratio(group: Group, preset: str, baseline: str = BASELINE) -> float | None:
    """Mean JCT of ``preset`` over that of ``baseline``; below 1 the preset is faster. None: not comparable."""
    ours, theirs = mean_jct_s(group, preset), mean_jct_s(group, baseline)
    return ours / theirs if ours is not None and theirs is not None else None


def rows(group: Group, baseline: str = BASELINE) -> list[Row]:
    """Every figure of the group, the ratio of mean JCT to the baseline's first."""
    metrics = [metric for metric in ROWS if group.routed or not metric[0].startswith(_NEEDS_ENGINES)]
    return [_ratio_row(group, baseline), *(_row(group, *metric) for metric in metrics)]


def standing(ratio: float) -> str:
    """What a ratio of mean JCTs says: better, same or worse than the baseline."""
    if abs(ratio - 1) <= EVEN_BAND:
        return SAME
    return BETTER if ratio < 1 else WORSE


def lower_is_better(field: str) -> bool | None:
    """Which end of a summary's figure is the better one; None where neither is."""
    return None if field.startswith(_NEITHER) else field.startswith(_LOWER_IS_BETTER)


def verdict(groups: Sequence[Group], subject: str = SUBJECT, baseline: str = BASELINE) -> str:
    """At which loads ``subject`` does not have the lower mean JCT; empty where they never met."""
    ratios = [(group.title, jct_ratio(group, subject, baseline)) for group in groups]
    met = [(title, ratio) for title, ratio in ratios if ratio is not None]
    if not met:
        return ""
    told = [(f"{title} ({ratio:.2f}x)", standing(ratio)) for title, ratio in met]
    better, same, worse = ([text for text, how in told if how == kind] for kind in (BETTER, SAME, WORSE))
    if len(better) == len(told):
        return f"{subject} has a lower mean JCT than {baseline} at every load measured: {', '.join(better)}."
    parts = [
        f"{subject} is NOT better than {baseline} in mean JCT at {', '.join(worse)}" if worse else "",
        f"{subject} and {baseline} are even (within 2%) at {', '.join(same)}" if same else "",
        f"{subject} is better at {', '.join(better)}" if better else "",
    ]
    return "; ".join(part for part in parts if part) + "."


def telemetries(runs: Sequence[RunResult]) -> list[str]:
    """What the programs told of themselves, by the runs that say so: more than one are not to be compared."""
    return sorted({told for run in runs if (told := run.facts.get("telemetry"))})


def caveats(groups: Sequence[Group]) -> list[str]:
    """What a reader must know before believing a figure."""
    found = []
    for group in groups:
        for name, run in zip(column_names(group), group.runs, strict=True):
            where = f"{name} at {group.title}"
            if run.cut:
                found.append(f"{where} was stopped before every program had ended: its times are biased.")
            elif run.summary.programs_failed:
                failed, ended = run.summary.programs_failed, run.summary.programs_ended
                why = next((f" ({turn.error})" for turn in run.turns if turn.error), "")
                found.append(
                    f"{where}: {failed} of {failed + ended} programs failed{why} and are in no time figure."
                )
    told = telemetries([run for group in groups for run in group.runs])
    if len(told) > 1:
        found.append(f"The runs differ in what their programs told (telemetry {', '.join(told)}).")
    if any(not group.rate for group in groups):
        found.append(
            "With closed arrivals mean JCT is concurrency over throughput (Little's law): compare steps/min."
        )
    return found


def _row(group: Group, field: str, label: str, form: str) -> Row:
    values: list[float | None] = []
    for run in group.runs:
        known = not field.startswith(_NEEDS_IDEAL) or any(p.ideal_ns for p in run.programs)
        known = known and (not field.startswith(_NEEDS_ACCOUNT) or run.summary.is_accounted)
        known = known and (not field.startswith(_NEEDS_CONTENTION) or run.summary.tool_slowdown_ratio > 0)
        known = known and (not field.startswith(_NEEDS_ENGINES) or run.summary.is_routed)
        values.append(getattr(run.summary, field) if known else None)
    texts = [UNKNOWN if value is None else form.format(value) for value in values]
    present = [value for value in values if value is not None]
    lower = lower_is_better(field)
    compared = len(set(texts)) > 1 and lower is not None
    best = (min if lower else max)(present) if present and compared else None
    best_texts = {form.format(best)} if best is not None else set()
    return Row(label=label, cells=tuple(Cell(text=text, best=text in best_texts) for text in texts))


def _ratio_row(group: Group, baseline: str) -> Row:
    theirs = mean_jct_s(group, baseline)
    ratios = [run.summary.jct_mean_s / theirs if theirs and run.summary.jct_mean_s else None for run in group.runs]
    present = [ratio for ratio in ratios if ratio is not None]
    best = min(present) if len(present) > 1 and standing(min(present)) == BETTER else None
    return Row(
        label=f"mean JCT vs {baseline}",
        cells=tuple(
            Cell(text=UNKNOWN if ratio is None else f"{ratio:.2f}x", best=best is not None and ratio == best)
            for ratio in ratios
        ),
    )

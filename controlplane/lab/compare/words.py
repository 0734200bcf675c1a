"""A comparison in words: where a preset wins and where it loses, by how much, and what a reader must know first."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, log10

from controlplane.lab.compare.rows import (
    BASELINE,
    BETTER,
    EVEN_BAND,
    JCT,
    SAME,
    SUBJECT,
    UNKNOWN,
    WORSE,
    Grid,
    Group,
    LoadLevel,
    Section,
    column_names,
    jct_ratio,
    standing,
    telemetries,
)
from controlplane.lab.workload.interval import Interval

_LITTLE = "With closed arrivals mean JCT is concurrency over throughput (Little's law): compare steps/min."
_MOST_DECIMALS = 4
_MOST_REASONS = 3
_MOST_RIVALS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A preset against the best of the others at one load. ``ratio``: its figure over the other's."""

    section: Section
    load: LoadLevel
    figure: str
    other: str
    ratio: Interval
    where: str  # in words

    @property
    def text(self) -> str:
        """What came of it."""
        unsure = ", within noise" if self.ratio.is_known else ", of one seed"
        return f"{self.where}: {self.ratio} times {self.other}'s" + ("" if self.is_sure else unsure)

    @property
    def is_loss(self) -> bool:
        """Whether the other's figure is the better one, sure or not."""
        return standing(self.ratio.value, self.figure) == WORSE

    @property
    def is_sure(self) -> bool:
        """Whether the ratio is beyond what seeds do."""
        return self.ratio.excludes(1.0)

    @property
    def standing(self) -> str:
        """Better or worse, if both beyond noise and more than even; else the two are not told apart."""
        return standing(self.ratio.value, self.figure) if self.is_sure else SAME


def plus_minus(found: Interval | None, figure: str) -> str:
    """Mean and half of its interval, to two digits, or both ends of one that is cut; ratios in percent."""
    if found is None:
        return UNKNOWN
    factor, unit = (100.0, "%") if figure.endswith("_ratio") else (1.0, "")
    value, half = factor * found.value, factor * max(found.high - found.value, found.value - found.low)
    if not found.is_known or not half:
        return f"{value:.4g}{unit}" if abs(value) < 1000 else f"{value:,.0f}{unit}"
    decimals = min(_MOST_DECIMALS, max(0, 1 - floor(log10(half))))
    if abs((found.high - found.value) - (found.value - found.low)) > 1e-9 * abs(found.value):
        low, high = factor * found.low, factor * found.high
        return f"{value:,.{decimals}f}{unit} ({low:,.{decimals}f} to {high:,.{decimals}f})"
    return f"{value:,.{decimals}f}{unit} ± {half:,.{decimals}f}"


def against_best(grid: Grid, figure: str = JCT) -> list[Match]:
    """The subject at each load against the best of the others; loads at which either was not run are left out."""

    def best_of_others(section: Section, load: LoadLevel) -> str:
        return section.best(load, figure, [name for name in section.systems if name != SUBJECT])

    return _met(grid, figure, best_of_others)


def _met(grid: Grid, figure: str, other: Callable[[Section, LoadLevel], str]) -> list[Match]:
    """The subject against another preset at each load, where both were run."""
    return [
        Match(
            section=section,
            load=load,
            figure=figure,
            other=name,
            ratio=ratio,
            where=f"{section.title}, {load.title}",
        )
        for section in grid.sections
        for load in section.loads
        if (name := other(section, load)) and (ratio := section.ratio(SUBJECT, name, load, figure)) is not None
    ]


def headlines(grid: Grid, baseline: str) -> list[str]:
    """What the sweep says of mean JCT, in sentences; none where the subject met nobody."""
    sentences = []
    matches = against_best(grid)
    if matches:
        stood = Counter(match.standing for match in matches)
        sentences.append(
            f"Of {len(matches)} cases (a workload on a hardware at a load) {SUBJECT} has the lowest mean JCT of "
            f"all presets in {stood[BETTER]}, is not told from the best of the others in {stood[SAME]} (even "
            f"within {EVEN_BAND:.0%}, or within noise), and is beaten in {stood[WORSE]}."
        )
    if baseline != SUBJECT and (met := _met(grid, JCT, lambda section, load: baseline)):
        least, most = (choose(met, key=lambda match: match.ratio.value) for choose in (min, max))
        sentences.append(
            f"Against {baseline} its mean JCT is {least.ratio} times as long at best ({least.where}) "
            f"and {most.ratio} times at worst ({most.where})."
        )
    return sentences


def winners(grid: Grid) -> list[str]:
    """For each workload on each hardware: which preset has the lowest mean JCT at which loads."""
    sentences = []
    for section in grid.sections:
        at: dict[str, list[str]] = {}
        for load in section.loads:
            best = section.best(load, JCT)
            if best:
                at.setdefault(best, []).append(load.title + _rivals(section, load, best))
        if at:
            listed = "; ".join(f"{preset} at {', '.join(loads)}" for preset, loads in at.items())
            sentences.append(f"{section.title}: {listed}.")
    return sentences


def _rivals(section: Section, load: LoadLevel, best: str) -> str:
    """Presets that the best one is not told from, in brackets."""
    rivals = [
        preset
        for preset in section.systems
        if preset != best
        and (ratio := section.ratio(preset, best, load, JCT)) is not None
        and not (ratio.excludes(1.0) and standing(ratio.value) != SAME)
    ]
    if len(rivals) > _MOST_RIVALS:
        return f" (not told from {len(rivals)} others)"
    return f" (not told from {', '.join(rivals)})" if rivals else ""


def losses(grid: Grid) -> list[str]:
    """Where another preset has a lower mean JCT than the subject: a line for each load, sure ones first."""
    found = [match for match in against_best(grid) if match.is_loss]
    found.sort(key=lambda match: (not match.is_sure, -match.ratio.value))
    return [match.text for match in found]


def grid_caveats(grid: Grid) -> list[str]:
    """What a reader must know before believing a figure."""
    sentences = [*_of_codes(grid), *_of_rows(grid)]
    fewest, most = _seeds(grid) if grid.sections else (0, 0)
    if most == 1:
        one = "One seed was run" if len(grid.seeds) == 1 else "One seed was run of each case"
        sentences.append(f"{one}: there are no intervals, and a difference may be chance.")
    elif most:
        every = f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds (CAREFUL: they differ)"
        sentences.append(
            f"Means over {every}, with 95% intervals by Student's t, as so few values are too few to resample. "
            "Ratios are of runs with the same seed, hence the same arrivals: they are surer than the means."
        )
    if any(section.closed for section in grid.sections):
        sentences.append(_LITTLE)
    return sentences


def _of_codes(grid: Grid) -> list[str]:
    if len({code for code, _ in grid.codes}) < 2:
        return []
    listed = ", ".join(f"{revision or code} ({count} runs)" for (code, revision), count in grid.codes.items())
    return [
        f"CAREFUL: runs of several versions of the code are mixed: {listed}. --redo-changed runs old ones anew."
    ]


def _of_rows(grid: Grid) -> list[str]:
    sentences = []
    if grid.outdated:
        sentences.append(f"{grid.outdated} rows of other parameters than the last ones are left out.")
    if grid.wrong:
        reasons = Counter(row["error"] for row in grid.wrong).most_common(_MOST_REASONS)
        listed = "; ".join(f"{reason} ({count})" for reason, count in reasons)
        sentences.append(f"{len(grid.wrong)} runs went wrong and are in no figure: {listed}.")
    failed = Counter[str]()
    for row in grid.rows:
        failed[row["preset"]] += int(float(row["programs_failed"]))
    listed = ", ".join(f"{preset} {count}" for preset, count in failed.items() if count)
    return [*sentences, f"Programs failed, and are in no time figure: {listed}."] if listed else sentences


def _seeds(grid: Grid) -> tuple[int, int]:
    counts: Sequence[int] = [
        len(rows)
        for section in grid.sections
        for preset in section.presets
        for load in section.loads
        if (rows := section.rows(preset, load))
    ]
    return min(counts), max(counts)


def verdict(groups: Sequence[Group]) -> str:
    """At which loads the subject does not have the lower mean JCT; empty where they never met."""
    ratios = [(group.title, jct_ratio(group)) for group in groups]
    met = [(title, ratio) for title, ratio in ratios if ratio is not None]
    if not met:
        return ""
    listed = [(f"{title} ({ratio:.2f}x)", standing(ratio)) for title, ratio in met]
    better, same, worse = ([text for text, how in listed if how == kind] for kind in (BETTER, SAME, WORSE))
    if len(better) == len(listed):
        return f"{SUBJECT} has a lower mean JCT than {BASELINE} at every load measured: {', '.join(better)}."
    parts = [
        f"{SUBJECT} is NOT better than {BASELINE} in mean JCT at {', '.join(worse)}" if worse else "",
        f"{SUBJECT} and {BASELINE} are even (within 2%) at {', '.join(same)}" if same else "",
        f"{SUBJECT} is better at {', '.join(better)}" if better else "",
    ]
    return "; ".join(part for part in parts if part) + "."


def run_caveats(groups: Sequence[Group]) -> list[str]:
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
    listed = telemetries([run for group in groups for run in group.runs])
    if len(listed) > 1:
        found.append(f"The runs differ in what their programs told (telemetry {', '.join(listed)}).")
    if any(not group.rate for group in groups):
        found.append(_LITTLE)
    return found

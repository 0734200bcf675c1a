"""An answer on a terminal: first how far the replay is from what was measured, then the difference."""

from collections.abc import Iterator, Sequence
from math import isfinite

from rich.console import Console
from rich.table import Table

from controlplane.lab.whatif.advice import Advice
from controlplane.lab.whatif.answer import Answer
from controlplane.lab.whatif.figures import NAMES, SHARES
from controlplane.lab.workload.interval import Interval

LABELS = {
    "mean_jct_s": "JCT mean (s)",
    "p95_ttft_s": "TTFT p95 (s)",
    "hit_rate": "cache hit rate",
    "makespan_s": "makespan (s)",
}
UNKNOWN = "–"
MUCH = 0.15  # that a replay is off by, of a time or of all prompt tokens


def show_answer(answer: Answer, console: Console | None = None) -> None:
    """Print it."""
    console = console or Console(highlight=False)
    for line in _heads(answer):
        console.print(line, highlight=False)
    console.print(_replay_table(answer))
    console.print(_change_table(answer))
    for line in _warnings(answer):
        console.print(line, highlight=False)
    for note in answer.notes:
        console.print(f"Note: {note}.", highlight=False)


def figure(name: str, value: float) -> str:
    """One value of it."""
    if not isfinite(value):
        return UNKNOWN
    return f"{value:.1%}" if name in SHARES else f"{value:.2f}"


def by(name: str, value: float) -> str:
    """One change of it: in percent, of a share in points."""
    if not isfinite(value):
        return UNKNOWN
    return f"{100 * value:+.1f} points" if name in SHARES else f"{value:+.1%}"


def interval(name: str, found: Interval) -> str:
    """A change with its interval."""
    if not (isfinite(found.low) and isfinite(found.high)):
        return by(name, found.value)
    ends = [by(name, end).removesuffix(" points") for end in (found.low, found.high)]
    return f"{by(name, found.value)} [{', '.join(ends)}]"


def _heads(answer: Answer) -> Iterator[str]:
    stretch, costs = answer.stretch, answer.costs
    yield (
        f"[bold]Stretch[/] {stretch['since_s']:.0f} to {stretch['until_s']:.0f} s of the log: "
        f"{stretch['programs']:g} whole programs, {stretch['turns']:g} turns"
    )
    yield (
        f"[bold]Engine[/] {answer.engines} x {answer.pool_tokens:,} tokens of KV; step times from {costs.turns} "
        f"turns: prefill off by {costs.prefill_error_ratio:.1%}, decode by {costs.decode_error_ratio:.1%}"
    )


def _warnings(answer: Answer) -> Iterator[str]:
    """Which figures the reader should believe the least."""
    off = {name: answer.replay_error[name] for name in NAMES if abs(answer.replay_error[name]) > MUCH}
    if off:
        told = ", ".join(f"{LABELS[name]} by {by(name, error)}" for name, error in off.items())
        yield f"The replay misses what was measured: {told}. Of these figures believe the direction at most."
    unsure = [LABELS[name] for name in NAMES if answer.change[name].excludes(0.0) and not answer.is_sure(name)]
    if unsure:
        yield (
            f"One run need not show it: {', '.join(unsure)}. It changes in the mean, and by less than what differs "
            "from run to run or what the replay is off by."
        )


def _replay_table(answer: Answer) -> Table:
    table = Table(title=f"The replay of what was decided ({answer.presets[0]})", title_justify="left")
    for column in ("", "measured", "replayed", "off by"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name in NAMES:
        measured, replayed = getattr(answer.measured, name), getattr(answer.replayed, name)
        error = by(name, answer.replay_error[name])
        table.add_row(LABELS[name], figure(name, measured), figure(name, replayed), error)
    return table


def _change_table(answer: Answer) -> Table:
    table = Table(title=f"What if: {answer.question.title}", title_justify="left")
    for column in ("", "simulated", "mean change (95%)", "to expect", "in one run (95%)"):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for name in NAMES:
        found = answer.change[name]
        sure = "bold" if found.excludes(0.0) else "dim"
        table.add_row(
            LABELS[name],
            figure(name, getattr(answer.alternative, name)),
            f"[{sure}]{_in_round_brackets(interval(name, found))}[/]",
            figure(name, getattr(answer.predicted, name)),
            _between(name, answer.bounds(name)),
        )
    return table


def _between(name: str, ends: tuple[float, float]) -> str:
    return " to ".join(figure(name, end) for end in ends) if all(map(isfinite, ends)) else UNKNOWN


def show_advice(found: Sequence[Advice], figure_name: str, console: Console | None = None) -> None:
    """Print the candidates, those that are advised in bold, and what is to be done about them."""
    console = console or Console(highlight=False)
    if not found:
        console.print("There is nothing to try: no parameter of the policies in force has a value to change.")
        return
    answer = found[0].answer
    for line in _heads(answer):
        console.print(line, highlight=False)
    console.print(_replay_table(answer))
    order = [figure_name, *(name for name in NAMES if name != figure_name)]
    table = Table(title=f"Candidates, by {LABELS[figure_name]}", title_justify="left")
    for column in ("what", *(LABELS[name] for name in order), ""):
        table.add_column(column, justify="left" if column in ("what", "") else "right")
    for each in found:
        cells = [_in_round_brackets(interval(name, each.answer.change[name])) for name in order[:1]]
        cells += [by(name, each.answer.change[name].value) for name in order[1:]]
        table.add_row(each.answer.question.title, *cells, each.why, style="bold" if each.advised else "dim")
    console.print(table)
    advised = [each for each in found if each.advised]
    if not advised:
        console.print("Nothing is advised: no candidate is better by more than what is not known.")
    for note in answer.notes:
        console.print(f"Note: {note}.", highlight=False)
    if len(found) > 1:
        console.print(
            f"Note: of {len(found)} intervals of 95% one in twenty misses. Nothing was changed here: a change is "
            "proven once it was made and recorded again.",
            highlight=False,
        )


def _in_round_brackets(text: str) -> str:
    """As rich takes square ones for a style."""
    return text.replace("[", "(").replace("]", ")")

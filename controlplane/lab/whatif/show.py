"""An answer on a terminal: how far the replay is from what was measured, and beside it the difference."""

from collections.abc import Iterator
from math import isfinite

from rich.table import Table
from rich.text import Text

from controlplane.lab.compare.rows import UNKNOWN
from controlplane.lab.console import Console
from controlplane.lab.whatif.answer import Answer
from controlplane.lab.whatif.figures import LABELS, NAMES, SHARES

_COLUMNS = ("measured", "replay off by", "mean change (95%)", "to expect", "in one run (95%)")
_MUCH = 0.15  # that a replay is off by, of a time or of all prompt tokens


def show_answer(answer: Answer, console: Console | None = None) -> None:
    """Print the table, what it is made from, and what a reader must know."""
    console, part, costs = console or Console(), answer.stretch, answer.costs
    console.print(
        f"{part['since_s']:.0f} to {part['until_s']:.0f} s of the log: {part['programs']:g} whole programs, "
        f"{part['turns']:g} turns, {answer.engines} x {answer.pool_tokens:,} tokens of KV. Step times are off "
        f"by {costs.prefill_error_ratio:.1%} (prefill) and {costs.decode_error_ratio:.1%} (decode)."
    )
    title = f"Recorded: {answer.presets[0]}; what if: {answer.question.title}"
    table = Table("", title=title, title_justify="left", header_style="bold")
    for column in _COLUMNS:
        table.add_column(column, justify="right", no_wrap=True)
    for name in NAMES:
        found = answer.change[name]
        ends = [_by(name, end).removesuffix(" points") for end in (found.low, found.high)]
        interval = "" if UNKNOWN in ends else f" ({', '.join(ends)})"
        table.add_row(
            LABELS[name],
            _figure(name, answer.measured[name]),
            _by(name, answer.replay_error[name]),
            Text(answer.too_few or _by(name, found.value) + interval, "bold" if found.excludes(0.0) else "dim"),
            UNKNOWN if answer.too_few else _figure(name, answer.predicted[name]),
            UNKNOWN if answer.too_few else " to ".join(_figure(name, end) for end in answer.bounds(name)),
        )
    console.print(table)
    for warning in _warnings(answer):
        console.print(warning)
    for note in answer.notes:
        console.print(f"Note: {note}.")


def _figure(name: str, value: float) -> str:
    if not isfinite(value):
        return UNKNOWN
    return f"{value:.1%}" if name in SHARES else f"{value:.2f}"


def _by(name: str, value: float) -> str:
    """A change in percent; of a share in points."""
    if not isfinite(value):
        return UNKNOWN
    return f"{100 * value:+.1f} points" if name in SHARES else f"{value:+.1%}"


def _warnings(answer: Answer) -> Iterator[str]:
    """Which figures the reader should believe the least."""
    off = {name: error for name, error in answer.replay_error.items() if abs(error) > _MUCH}
    if off:
        named = ", ".join(f"{LABELS[name]} by {_by(name, error)}" for name, error in off.items())
        yield f"The replay misses what was measured: {named}. Of these figures believe the direction at most."
    unsure = [LABELS[name] for name in NAMES if answer.change[name].excludes(0.0) and not answer.is_sure(name)]
    if unsure:
        yield (
            f"One run need not show it: {', '.join(unsure)}. It changes in the mean, and by less than what differs "
            "from run to run or what the replay is off by."
        )

"""Lines of a terminal: spans of text, each with a style, that fit a width in cells.

Strangers chose the texts: each goes through ``printable`` as it is made to fit, and again as it is drawn.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.cells import cell_len, chop_cells, set_cell_size

from controlplane.core.model.text import printable

Line = tuple[tuple[str, str], ...]  # texts and their styles, as Rich names them

_BARS = "▁▂▃▄▅▆▇█"


def begin_of(text: str, width: int) -> str:
    """The text, or as much of its begin as there is room for."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, width - 1) + "…" if width > 0 else ""


def end_of(text: str, width: int) -> str:
    """The text, or as much of its end as there is room for: names differ there."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    for at in range(max(1, len(text) - width), len(text)):
        if cell_len(text[at:]) < width:
            return "…" + text[at:]
    return "…" if width > 0 else ""


def ends_of(text: str, width: int) -> str:
    """The text, or its begin and its end: of an engine one is its host, the other its port."""
    text = printable(text)
    if cell_len(text) <= width:
        return text
    begin = max(0, width - 1) // 2
    return set_cell_size(text, begin) + end_of(text, width - begin)


def padded(text: str, width: int, *, right: bool = False) -> str:
    """The text with spaces up to that width; ``right``: before it."""
    spaces = " " * max(0, width - cell_len(text))
    return spaces + text if right else text + spaces


def fitting(parts: Iterable[str], width: int, separator: str = ", ") -> str:
    """The first parts, as many as fit whole; of the first one its begin, if it must be."""
    shown = ""
    for part in map(printable, parts):
        longer = f"{shown}{separator}{part}" if shown else part
        if cell_len(longer) > width:
            return shown or begin_of(part, width)
        shown = longer
    return shown


def wrapped(text: str, width: int, most: int) -> list[str]:
    """The text in up to ``most`` lines, broken between words where it can be; more of it is left out."""
    lines: list[str] = []
    for word in printable(text).split(" "):
        if lines and cell_len(f"{lines[-1]} {word}") <= width:
            lines[-1] += f" {word}"
        else:
            lines += chop_cells(word, width) or [""]
    return [*lines[: most - 1], begin_of(lines[most - 1] + "…", width)] if len(lines) > most else lines


def bars(values: Sequence[float | None], most: float) -> str:
    """Each value as a bar from 0 to ``most``; none and nothing as a space."""
    last = len(_BARS) - 1
    return "".join(_BARS[min(last, int(value / most * len(_BARS)))] if value and most else " " for value in values)


def changed(before: Sequence[Line], after: Sequence[Line]) -> list[tuple[int, int]]:
    """Where the two differ: first line and number of lines, of each stretch."""
    length = max(len(before), len(after))
    same = [before[at : at + 1] == after[at : at + 1] for at in range(length)]
    edges = [at for at, (one, two) in enumerate(pairwise([True, *same, True])) if one != two]
    return [(begin, end - begin) for begin, end in zip(edges[::2], edges[1::2], strict=True)]

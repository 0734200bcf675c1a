"""Which columns of a table a width has room for, and its rows as lines.

A label and a number are shown whole or not at all. Of a name that is too long the end stays, where names differ.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from controlplane.core.model.text import printable
from controlplane.operate.top.lines import begin_of, end_of, ends_of, padded

HEAD_STYLE = "bold underline"
BEGIN, END, BOTH = begin_of, end_of, ends_of  # what stays of a text that is too long
_GAP = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """``rank``: where not all fit, the lowest ones stay."""

    name: str
    rank: int
    number: bool = False  # on the right
    least: int = 0  # a name, that may be cut to so many characters
    keeps: Callable[[str, int], str] = END


@dataclass(frozen=True, slots=True)
class Fitted:
    """The columns that there is room for, each with its width."""

    columns: Sequence[tuple[Column, int]]

    def line(self, texts: Iterable[str]) -> str:
        """A row, by the text for each column."""
        cells = []
        for (column, width), text in zip(self.columns, texts, strict=True):
            cells.append(padded(column.keeps(text, width), width, right=column.number))
        return (" " * _GAP).join(cells)

    def head(self, sorted_by: str = "") -> str:
        """The columns' names. What the rows are sorted by has a mark."""
        marks = {True: " ▼", False: " ▲"}
        return self.line(
            each.name + (marks[each.number] if each.name == sorted_by else "") for each, _ in self.columns
        )


class Layout:
    """The columns of one table. A width that was wanted once stays, so that nothing moves while one looks."""

    def __init__(self) -> None:
        self._wanted: dict[str, int] = {}

    def fit(
        self, columns: Sequence[Column], texts: Mapping[str, Iterable[str]], width: int, sorted_by: str = ""
    ) -> Fitted:
        """For these texts below each column's name."""
        for column in columns:
            widest = max((cell_len(printable(text)) for text in texts[column.name]), default=0)
            head = len(column.name) + 2 * (column.name == sorted_by)
            self._wanted[column.name] = max(self._wanted.get(column.name, 0), widest, head)
        ranked = sorted(columns, key=lambda column: column.rank)
        widths: dict[str, int] = {}
        left = width + _GAP
        for column in ranked:
            wanted = self._wanted[column.name]
            need = min(wanted, max(column.least, len(column.name))) if column.least else wanted
            if need + _GAP <= left:
                widths[column.name] = need
                left -= need + _GAP
        for column in ranked:
            if column.least and column.name in widths:
                more = min(left, self._wanted[column.name] - widths[column.name])
                widths[column.name] += more
                left -= more
        return Fitted([(column, widths[column.name]) for column in columns if column.name in widths])

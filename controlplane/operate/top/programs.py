"""The table of programs: its columns, its order, and which program is selected."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.operate.tables import PROGRAM_CELLS, phase_word
from controlplane.operate.top.columns import BEGIN, BOTH, HEAD_STYLE, Column, Layout
from controlplane.operate.top.lines import Line
from controlplane.wire.control import Fields

PHASE_STYLE = {"reasoning": "green", "acting": "cyan", "held": "yellow", "idle": "dim"}
_ORDER = {"reasoning": 0, "acting": 2, "held": 1, "idle": 3}
_KEPT_LOOKS = 30  # for which a column stays that has become empty, so that none flickers


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProgramColumn(Column):
    value: Callable[[Fields], Any]  # that it is sorted by; where all have none the column is left out
    several: bool = False  # it is also left out where all have the same

    def tells(self, rows: Sequence[Fields]) -> bool:
        if self.several:
            return len(set(filter(None, map(self.value, rows)))) > 1
        return any(map(self.value, rows))

    def key(self, row: Fields) -> Any:
        """Numbers from the largest down, names up, and nothing at the end."""
        value = self.value(row)
        return -value if self.number else (not value, value)


_COLUMNS = (
    _ProgramColumn(name="program", rank=0, value=lambda row: row.program_id, least=20),
    _ProgramColumn(name="tenant", rank=9, value=lambda row: row.tenant, least=8, several=True),
    _ProgramColumn(name="status", rank=1, value=lambda row: (row.status, row.queue_position)),
    _ProgramColumn(name="phase", rank=2, value=lambda row: phase_word(row.phase)),
    _ProgramColumn(name="tool", rank=7, value=lambda row: row.tool, least=8),
    _ProgramColumn(name="turns", rank=3, value=lambda row: row.turns, number=True),
    _ProgramColumn(name="tokens", rank=4, value=lambda row: row.context_tokens, number=True),
    _ProgramColumn(name="waited", rank=5, value=lambda row: row.hold_ns, number=True),
    _ProgramColumn(name="idle", rank=6, value=lambda row: row.idle_ns, number=True),
    _ProgramColumn(name="pinned", rank=11, value=lambda row: row.retained_ns, number=True),
    _ProgramColumn(name="tier", rank=13, value=lambda row: row.kv_tier),
    _ProgramColumn(name="idleness", rank=14, value=lambda row: row.idleness_ratio, number=True),
    _ProgramColumn(name="engine", rank=8, value=lambda row: row.replica, least=12, several=True, keeps=BOTH),
    _ProgramColumn(name="moves", rank=12, value=lambda row: row.moves, number=True),
    _ProgramColumn(name="waits for", rank=10, value=lambda row: row.waits_for, least=20, keeps=BEGIN),
)
_BY_NAME = {column.name: column for column in _COLUMNS}


@dataclass(slots=True)
class Programs:
    """The programs of the last look. Who is selected stays so, and on its line, wherever others go."""

    rows: list[Fields] = field(default_factory=list)
    total: int = 0  # that there are, in the rows or not
    sorted_by: str = ""  # a column; empty: who reasons, who waits in the queue's order, who acts, who is idle
    selected: Fields | None = None  # as it was seen last
    is_gone: bool = False  # the selected one, from the rows
    first: int = 0  # row on the screen
    _at: int = 0  # row of the selected one
    _places: int = 1  # for rows on the screen
    _looks: int = 0
    _told: dict[str, int] = field(default_factory=dict)  # each column's last look at which it was not empty
    _shown: Sequence[str] = ()  # columns on the screen
    _layout: Layout = field(default_factory=Layout)

    def take(self, listed: Fields) -> None:
        """The rows of another look."""
        self.rows, self.total = list(listed.programs), listed.total
        self._looks += 1
        self._told |= {column.name: self._looks for column in _COLUMNS if column.tells(self.rows)}
        self._order()

    def forget(self) -> None:
        """Choose the columns anew, as another width or other programs want them."""
        self._layout = Layout()
        self._told = {name: look for name, look in self._told.items() if look == self._looks}

    def sort(self, step: int) -> None:
        """By the next one of the columns on the screen, or the previous one."""
        names = ["", *self._shown]
        at = names.index(self.sorted_by) if self.sorted_by in names else 0
        self.sorted_by = names[(at + step) % len(names)]
        self._order()

    def _order(self) -> None:
        self.rows.sort(key=_BY_NAME[self.sorted_by].key if self.sorted_by else _place)
        if self.selected is None:
            return
        wanted = self.selected.program_id
        found = next((at for at, row in enumerate(self.rows) if row.program_id == wanted), None)
        self.is_gone = found is None
        if found is not None:
            self.selected = self.rows[found]
            self.first += found - self._at
            self._at = found

    def move(self, rows: int) -> None:
        """Select the program so many rows below; the first time so many from the top of the screen."""
        if not self.rows:
            return
        at = (self.first - 1 if self.selected is None else self._at) + rows
        self._at = min(max(0, at), len(self.rows) - 1)
        self.selected, self.is_gone = self.rows[self._at], False

    def page(self, pages: int) -> None:
        """Select the program so many screens below."""
        self.move(pages * self._places)

    def unselect(self) -> None:
        self.selected, self.first = None, 0

    def where(self) -> str:
        """Which of the programs are on the screen."""
        if not self.rows:
            return "no programs"
        last = min(self.first + self._places, len(self.rows))
        more = f" ({len(self.rows):,} listed)" if self.total > len(self.rows) else ""
        return f"{self.first + 1}-{last} of {self.total:,}{more}"

    def lines(self, width: int, height: int) -> list[Line]:
        """The table's head, and the rows that there is room for."""
        self._places = max(1, height - 1)
        if self.selected is not None:
            self.first = min(max(self.first, self._at - self._places + 1), self._at)
        self.first = max(0, min(self.first, len(self.rows) - self._places))
        shown = self.rows[self.first : self.first + self._places]
        columns = [each for each in _COLUMNS if self._told.get(each.name, -_KEPT_LOOKS) > self._looks - _KEPT_LOOKS]
        told = {column.name: [PROGRAM_CELLS[column.name](row) for row in shown] for column in columns}
        longest = {  # of labels and numbers, so that no column moves as rows come and go
            column.name: [*told[column.name], PROGRAM_CELLS[column.name](max(self.rows, key=column.value))]
            for column in columns
        }
        fitted = self._layout.fit(columns, longest, width, self.sorted_by)
        self._shown = [column.name for column, _ in fitted.columns]
        lines: list[Line] = [((fitted.head(self.sorted_by), HEAD_STYLE),)]
        for number, row in enumerate(shown):
            is_selected = self.selected is not None and row.program_id == self.selected.program_id
            style = PHASE_STYLE.get(row.phase, "") + (" reverse" if is_selected else "")
            lines.append(((fitted.line(told[name][number] for name in self._shown), style.strip()),))
        return lines


def _place(program: Fields) -> tuple[int, int, int]:
    if program.queue_position:
        return (1, program.queue_position, 0)
    return (_ORDER.get(program.phase, 4), 0, -program.idle_ns)

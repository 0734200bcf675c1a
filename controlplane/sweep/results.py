"""The results of a sweep: a tidy CSV file, a run a row, written as each run ends."""

import csv
import io
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from controlplane.core.errors import ConfigError
from controlplane.sweep.run_cell import Figures
from controlplane.sweep.spec import Cell
from controlplane.workload.summary import Summary

KEYS = ("workload", "hardware", "preset", "arrival", "seed", "digest")
FIGURES = ("rate", "programs", *(item.name for item in fields(Summary)), "cpu_s")
COLUMNS = (*KEYS, *FIGURES, "error")

Row = dict[str, str]


def read(path: Path) -> list[Row]:
    """The rows of the file; none where there is no file. A last line that breaks off is left out.

    Raises ``ConfigError`` for a file of something else.
    """
    if not path.exists():
        return []
    text = path.read_text()
    rows = list(csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])))
    if rows and set(rows[0]) != set(COLUMNS):
        raise ConfigError(f"{path}: not the results of a sweep of this version: give another --out")
    return rows


def append(path: Path, cell: Cell, figures: Figures, error: str = "") -> None:
    """Write one row, behind a header where it is the first; what is left of one that broke off goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before = path.read_bytes() if path.exists() else b""
    whole = before.rfind(b"\n") + 1
    with path.open("ab") as file:
        file.truncate(whole)
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        if not whole:
            writer.writeheader()
        known = {key: getattr(cell, key) for key in KEYS}
        writer.writerow(known | {name: _short(value) for name, value in figures.items()} | {"error": error})
        file.write(text.getvalue().encode())


def done(rows: Iterable[Row], wanted: Iterable[Cell]) -> set[Cell]:
    """Those of ``wanted`` that have a row without an error."""
    keys = {tuple(row[key] for key in KEYS) for row in rows if not row["error"]}
    return {cell for cell in wanted if tuple(str(getattr(cell, key)) for key in KEYS) in keys}


def _short(value: float) -> str:
    return f"{value:.6g}"

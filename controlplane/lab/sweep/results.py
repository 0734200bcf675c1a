"""The results of a sweep: a tidy CSV file, a run a row, written as each run ends."""

import csv
import io
from collections.abc import Iterable
from dataclasses import fields
from io import StringIO
from pathlib import Path

from controlplane.core.model.errors import ConfigError
from controlplane.files import replace_file
from controlplane.lab.compare.rows import COSTS, Row
from controlplane.lab.sweep.run_cell import CellOutcome
from controlplane.lab.sweep.spec import Cell
from controlplane.lab.workload.summary import Summary
from controlplane.wire.files import read_text

_MOST_BYTES = 1 << 30

KEYS = ("workload", "hardware", "preset", "arrival", "seed", "digest", "telemetry")
KNOWN = ("kv_pool_tokens", "saturation_rate", "bound_jct_mean_s")  # before the run, of what is run
FIGURES = ("rate", "programs", *(item.name for item in fields(Summary)), *COSTS, *KNOWN)
COLUMNS = (*KEYS, *FIGURES, "code", "revision", "error")
_COUNTED = ("programs_moved_ratio", "turns_cut")
_LATER: dict[str, str] = {
    "telemetry": "full",
    **dict.fromkeys((*KNOWN, "tpot_mean_s", "tpot_p99_s", *_COUNTED), "0"),
}  # columns that older files lack


def read(path: Path) -> list[Row]:
    """The rows of the file; none where there is no file. A later row of the same run replaces an earlier one.

    A last line that breaks off is left out. Raises ``ConfigError`` for a file of something else.
    """
    if not path.exists():
        return []
    try:
        text = read_text(path, _MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the results: {error}") from error
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1]))
    missing = [name for name in COLUMNS if name not in (*(reader.fieldnames or COLUMNS), *_LATER)]
    if missing:
        names = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise ConfigError(
            f"{path}: not the results of a sweep of this version: no column {names}; give another file"
        )
    rows: dict[tuple[str, ...], Row] = {}
    for row in reader:
        _check(row, f"{path}:{reader.line_num}")
        row = _LATER | row
        key = tuple(row[name] for name in KEYS)
        rows.pop(key, None)
        rows[key] = row
    return list(rows.values())


def _check(row: Row, where: str) -> None:
    """A row that a hand or another program has spoilt is told rather than averaged."""
    if None in row or None in row.values():
        raise ConfigError(f"{where}: expected {len(COLUMNS)} columns")
    name = ""
    try:
        for name in ("seed", *(figure for figure in FIGURES if figure in row)):
            if row[name] or not row["error"]:
                float(row[name])
    except ValueError:
        raise ConfigError(f"{where}: {name}: expected a number, got {row[name]!r}") from None


def read_all(path: Path) -> list[Row]:
    """As ``read``, of a file that must be there and have a row. Raises ``ConfigError``."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file: expected the CSV that penstock sweep writes")
    rows = read(path)
    if not rows:
        raise ConfigError(f"{path}: it has no runs yet")
    return rows


def append(path: Path, cell: Cell, outcome: CellOutcome) -> None:
    """Write one row, behind a header where it is the first; what is left of one that broke off goes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    _complete(path)
    with path.open("ab+") as file:
        if not _mend(file):
            writer.writeheader()
        known = {key: getattr(cell, key) for key in KEYS}
        figures = {name: _short(value) for name, value in outcome.figures.items()}
        origin = {"code": outcome.code, "revision": outcome.revision, "error": " ".join(outcome.error.split())}
        writer.writerow(known | figures | origin)
        file.write(text.getvalue().encode())


def _complete(path: Path) -> None:
    """Write a file of an older version anew, with the columns that it lacks."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open() as file:
        header = file.readline().rstrip("\n").split(",")
    if not header[-1] or tuple(header) == COLUMNS or set(COLUMNS) - set(header) - set(_LATER):
        return
    rows = read(path)
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, [text.getvalue().encode()], like_before=True)


def _mend(file: io.BufferedRandom) -> int:
    """Cut the file behind its last whole line; how many bytes that leaves."""
    size = file.seek(0, io.SEEK_END)
    if not size:
        return 0
    file.seek(size - 1)
    if file.read(1) == b"\n":
        return size
    file.seek(0)
    whole = file.read().rfind(b"\n") + 1
    file.truncate(whole)
    return whole


def done(rows: Iterable[Row], wanted: Iterable[Cell], code: str = "") -> set[Cell]:
    """Those of ``wanted`` that have a row without an error; with ``code``, of that code."""
    keys = {tuple(row[key] for key in KEYS) for row in rows if not row["error"] and code in ("", row["code"])}
    return {cell for cell in wanted if key_of(cell) in keys}


def key_of(cell: Cell) -> tuple[str, ...]:
    """What names the cell's row."""
    return tuple(str(getattr(cell, key)) for key in KEYS)


def _short(value: float) -> str:
    return f"{value:.6g}"

"""A sweep's results as a Parquet file, with columns of their types: for tools that read many of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controlplane.core.errors import ConfigError
from controlplane.lab.compare.rows import Row
from controlplane.lab.sweep.results import COLUMNS, FIGURES

SUFFIX = ".parquet"


def require_parquet() -> Any:
    """pyarrow. Raises ``ConfigError`` that says how to get it."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("a .parquet file needs pyarrow: pip install 'penstock[parquet]'") from None
    return pyarrow


def write(rows: Sequence[Row], path: Path) -> None:
    """All rows; a figure that a run does not have is null."""
    pyarrow = require_parquet()
    columns: dict[str, Any] = {}
    for name in COLUMNS:
        texts = [row[name] for row in rows]
        if name in FIGURES:
            columns[name] = pyarrow.array([float(text) if text else None for text in texts], pyarrow.float64())
        elif name in ("seed", "drawn_from"):
            columns[name] = pyarrow.array([int(text) for text in texts], pyarrow.int64())
        else:
            columns[name] = pyarrow.array(texts, pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table(columns), path)

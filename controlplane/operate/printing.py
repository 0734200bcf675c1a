"""Output of the operators' commands: a table and durations for a person, or JSON for a program."""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from controlplane.wire.control import Fields

_PIPE_WIDTH = 200  # a pipe is not a terminal: its lines must not wrap


def print_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table, one line per row; in a terminal it fits the width."""
    table = Table(*head, box=None, pad_edge=False, header_style="bold", show_header=any(head))
    for row in rows:
        table.add_row(*map(str, row))
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


def print_json(value: Any) -> None:
    """Print a value as indented JSON."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())  # noqa: T201


def duration(value_ns: int) -> str:
    """A duration as a person says it, such as ``3m05s``; empty for none."""
    value_s = value_ns / 1e9
    if value_ns <= 0:
        return ""
    if value_s < 60:
        return f"{value_s:.1f}s"
    minutes, rest_s = divmod(round(value_s), 60)
    return f"{minutes}m{rest_s:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"


def plain(fields: Any) -> Any:
    """``Fields``, also nested in lists and other fields, as plain mappings."""
    if isinstance(fields, Fields):
        return {name: plain(value) for name, value in vars(fields).items()}
    return [plain(each) for each in fields] if isinstance(fields, list) else fields

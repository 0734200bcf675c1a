"""Output of the operators' commands: a table for a person, or JSON for a program."""

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

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

"""Output of the operators' commands: a table and durations for a person, or JSON for a program.

Nothing else prints for them. What is shown was chosen by strangers: a terminal neither obeys it nor takes it for
markup, and a name takes one line. Rich is imported where a table is made, as most commands do without.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from controlplane.core.model.text import printable

if TYPE_CHECKING:
    from rich.text import Text

_PIPE_WIDTH = 1 << 20  # a pipe is no terminal: nothing is cut, and no line wraps
_NOT_PRINTABLE = re.compile(r"[^\n -~]")


def to_a_person() -> bool:
    """Whether what is printed goes to a terminal, and not to a pipe or a file."""
    return sys.stdout.isatty()


def echo(line: str = "", *, err: bool = False) -> None:
    """Print one line."""
    typer.echo(printable(line), err=err)


def echo_text(text: str) -> None:
    """Print a text of several lines that is an operator's own or ours, as it is but for what is not printable."""
    typer.echo("\n".join(map(printable, text.split("\n"))), nl=False)


def cells(row: Iterable[Any]) -> list["Text"]:
    """One row of a table."""
    from rich.text import Text

    return [Text(printable(str(value))) for value in row]


def print_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a table, one line per row; in a terminal it fits the width, and without a head it wraps."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_header=any(head))
    for name in head:
        table.add_column(name, no_wrap=any(head), overflow="ellipsis" if any(head) else "fold")
    for row in rows:
        table.add_row(*cells(row))
    Console(highlight=False, markup=False, width=None if to_a_person() else _PIPE_WIDTH).print(table)


def print_json(value: Any) -> None:
    """Print a value as indented JSON, in ASCII."""
    typer.echo(json_line(value, indent=2))


def json_line(value: Any, *, indent: int = 0) -> str:
    """A value as JSON in ASCII; in one line without ``indent``."""
    try:
        data = msgspec.json.encode(value)
    except UnicodeEncodeError:  # half a surrogate pair
        return json.dumps(msgspec.to_builtins(value), indent=indent or None).replace("\x7f", "\\u007f")
    text = (msgspec.json.format(data, indent=indent) if indent else data).decode()
    return _NOT_PRINTABLE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


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
    if isinstance(fields, SimpleNamespace):
        return {name: plain(value) for name, value in vars(fields).items()}
    return [plain(each) for each in fields] if isinstance(fields, list) else fields

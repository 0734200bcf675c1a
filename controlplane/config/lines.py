"""On which line of a TOML file each key stands; the parser of the standard library does not tell."""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any


def lines_of(text: str) -> dict[str, int]:
    """The line, from 1, of each table and key by its dotted path; of a key that is given twice the first.

    ``text`` is valid TOML. A statement ends with the first line after which what was read so far can be parsed: so
    strings and lists over several lines are one.
    """
    found: dict[str, int] = {}
    header, waiting, began = "", "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not waiting:
            began = number
        waiting += f"{line}\n"
        try:
            said = tomllib.loads(f"{header}\n{waiting}")
        except tomllib.TOMLDecodeError:
            continue
        if waiting.lstrip().startswith("["):
            header = waiting
        for path in _paths(said):
            found.setdefault(path, began)
        waiting = ""
    return found


def _paths(tables: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in tables.items():
        path = f"{above}.{key}" if above else key
        yield path
        if isinstance(value, Mapping):
            yield from _paths(value, path)

"""The line of each key in a TOML file, which the standard library's parser does not report."""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

_PATIENT = 64


def lines_of(text: str) -> dict[str, int]:
    """The line, from 1, of each table and key by its dotted path; the first line if a path occurs twice.

    ``text`` must be valid TOML. A statement ends with the first line after which the text so far can be parsed, so
    a string or list over several lines is one statement. Past ``_PATIENT`` lines of one that is tried ever more
    rarely, and what follows may count as part of it: otherwise a list of thousands takes minutes.
    """
    found: dict[str, int] = {}
    header, waiting, began = "", "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        if not waiting:
            began = number
        waiting += f"{line}\n"
        count = number - began
        if count > _PATIENT and count & (count - 1):
            continue
        try:
            parsed = tomllib.loads(f"{header}\n{waiting}")
        except tomllib.TOMLDecodeError:
            continue
        if waiting.lstrip().startswith("["):
            header = waiting
        for path in _paths(parsed):
            found.setdefault(path, began)
        waiting = ""
    return found


def _paths(tables: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for key, value in tables.items():
        path = f"{above}.{key}" if above else key
        yield path
        if isinstance(value, Mapping):
            yield from _paths(value, path)

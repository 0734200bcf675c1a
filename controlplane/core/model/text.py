"""Text that agents, engines and their clients chose, made fit to be listed, logged and shown.

A terminal obeys escape sequences, a line feed begins a row, and direction marks turn around what is beside them.
So no such character is taken in: a name becomes its digest, of a sentence only the character is replaced.
"""

import hashlib
import unicodedata

from controlplane.core.model.types import MOST_NAME

_INSTEAD = "\N{REPLACEMENT CHARACTER}"
_MOST_MARKS = 4  # combining marks on one character: more of them cover the lines above and below


def is_printable(text: str) -> bool:
    """Whether each character shows as itself, in its own place."""
    return text.isprintable() and (text.isascii() or printable(text) == text)


def printable(text: str) -> str:
    """The text with each character that is not printable replaced, and without marks heaped upon marks."""
    if text.isascii() and text.isprintable():
        return text
    shown: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character)[0] == "M" else 0
        if marks <= _MOST_MARKS:
            shown.append(character if character.isprintable() else _INSTEAD)
    return "".join(shown)


def sanitize(name: str) -> str:
    """The name, or its digest if it is not printable or longer than ``MOST_NAME`` characters."""
    if len(name) <= MOST_NAME and is_printable(name):
        return name
    return "sha256-" + hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]

"""Errors, told apart by who has to act (h11's local and remote errors)."""

import difflib
from collections.abc import Callable, Iterable


class ControlPlaneError(Exception):
    """The root of everything Penstock raises on purpose."""


class ConfigError(ControlPlaneError, ValueError):
    """A value that the user wrote is wrong. ``field`` is its name where one field is to blame."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class UnknownPolicy(ConfigError):
    """No policy or preset has this name."""


class UnknownProgram(ConfigError):
    """Nobody told of a program of this name, or it ended."""


class LocalEventError(ControlPlaneError):
    """We fed our own code something impossible: a bug of ours, so stop."""


class RemoteEventError(ControlPlaneError):
    """A peer's event makes no sense: count it, quarantine that program, go on."""


class EngineUnavailable(ControlPlaneError):
    """The engine or the bus that leads to it cannot be reached."""


_MOST_SHOWN = 10**300


def require(field: str, value: float, *, low: float, high: float, ends: str = "[]") -> None:
    """Raise ``ConfigError`` unless ``value`` lies between ``low`` and ``high``.

    ``ends`` says which bounds belong to the range, as in mathematics: ``"(]"`` leaves ``low`` out. Infinity is no
    value: as ``high`` it says that any number is allowed.
    """
    above = value > low if ends[0] == "(" else value >= low
    below = value < high if ends[1] == ")" or high == float("inf") else value <= high
    if above and below:
        return
    left = "<" if ends[0] == "(" else "<="
    right = "<" if ends[1] == ")" else "<="
    range_text = f"{low:g} {left} {field}"
    if high != float("inf"):
        range_text += f" {right} {high:g}"
    if isinstance(value, int):
        value = max(-_MOST_SHOWN, min(value, _MOST_SHOWN))  # a longer one has no short form
    raise ConfigError(f"expected {range_text}, got {value:g}", field=field)


def near(name: object, known: Iterable[str]) -> str:
    """The end of a sentence that asks whether the most similar of the ``known`` names was meant; empty: none is."""
    found = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def allowed(make: Callable[..., object], name: str, default: object) -> str:
    """A number's range, as ``make`` states it with ``require`` when ``name`` is extreme; empty for other kinds."""
    if isinstance(default, bool) or not isinstance(default, int | float):
        return ""
    bounds = []
    for extreme in (-(10**18), 10**18):
        try:
            make(**{name: type(default)(extreme)})
        except ConfigError as error:
            bounds.append(str(error).partition("expected ")[2].partition(", got")[0])
    ranges = [text for text in dict.fromkeys(bounds) if name in text.split()]
    return ranges[0] if ranges else ""

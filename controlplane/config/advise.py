"""What automatic advice may change: the bounds of its table, read and judged by the settings that they are of."""

import copy
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

from controlplane.config.changes import values
from controlplane.config.model import Config
from controlplane.config.parse import parse
from controlplane.config.shadow import put
from controlplane.core.control import ControlRules
from controlplane.core.errors import ConfigError
from controlplane.core.presets import POLICIES
from controlplane.core.tuning import Bound

_HELP = "expected KEY=LOW..HIGH, such as admission.kv_high=0.7..0.95"
_NUMBERS = (int, float)


def bounds_of(data: Mapping[str, Any], config: Config) -> tuple[Bound, ...]:
    """The bounds of ``config``, which was made from the tables ``data``.

    A key that only another preset's policies have is none of them: it waits for that preset. Raises
    ``ConfigError``, whose text begins with ``$.advise.bounds: ``.
    """
    found: list[Bound] = []
    for text in config.advise.bounds:
        try:
            bound = _bound(text)
            if any(bound.key == other.key for other in found):
                raise ConfigError(f"{bound.key} has bounds already")
            if bound.key in values(config):
                _try_ends(data, bound)
            found.append(bound)
        except ConfigError as error:
            raise ConfigError(f"$.advise.bounds: {text}: {error}", field="advise") from None
    return tuple(found)


def idle_bounds(config: Config, bounds: tuple[Bound, ...]) -> Iterator[str]:
    """Bounds within which nothing is changed now, each with the reason."""
    now = values(config)
    for bound in bounds if config.advise.auto else ():
        value = now.get(bound.key)
        if value is None:
            yield f"{bound.key} has bounds, but preset {config.preset} as it is configured does not have the key"
        elif not bound.low <= value <= bound.high:
            yield (
                f"{bound.key} is {value:g}, outside its bounds {bound.low:g}..{bound.high:g}: it stays what it is"
            )


def _bound(text: str) -> Bound:
    key, equals, ends = (part.strip() for part in text.partition("="))
    low, dots, high = (part.strip() for part in ends.partition(".."))
    if not (equals and dots):
        raise ConfigError(_HELP)
    kinds = _kinds()
    if key not in kinds:
        near = difflib.get_close_matches(key, kinds, n=1)
        hint = f"did you mean {near[0]}?" if near else f"expected a key of {', '.join((*POLICIES, 'control'))}"
        raise ConfigError(f"no setting {key!r} that is a number; {hint}")
    kind = kinds[key]
    try:
        least, most = kind(low), kind(high)
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise ConfigError(f"{_HELP}; {key} takes {what}") from None
    if not least < most:
        raise ConfigError(f"expected LOW < HIGH, got {least:g} and {most:g}")
    return Bound(key=key, low=least, high=most, is_whole=kind is int)


def _kinds() -> dict[str, Any]:
    """Every setting that is a number, of any policy and of the controller's rules: int or float by its key."""
    found: dict[str, Any] = {}
    for table, registry in POLICIES.items():
        for policy in registry.values():
            found |= _numbers(policy, table)
    return found | _numbers(ControlRules, "control")


def _numbers(cls: Any, path: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if not is_dataclass(cls):
        return found
    hints = get_type_hints(cls)
    for item in fields(cls):
        kind = hints[item.name]
        if kind in _NUMBERS:
            found[f"{path}.{item.name}"] = kind
        elif is_dataclass(kind) and item.name != "tenancy":
            found |= _numbers(kind, f"{path}.{item.name}")
    return found


def _try_ends(data: Mapping[str, Any], bound: Bound) -> None:
    """Either end has to be a value that the setting may have."""
    for end in (bound.low, bound.high):
        tables = copy.deepcopy(dict(data))
        tables.pop("advise", None)
        put(tables, bound.key, end)
        parse(tables)

"""What a shadow decides by: the configuration in force, with the shadow's preset and settings in its place."""

import copy
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.config.changes import values
from controlplane.config.model import Config
from controlplane.config.parse import parse
from controlplane.core.errors import ConfigError
from controlplane.core.presets import POLICIES

_TABLES = (*POLICIES, "control")  # what a shadow may have otherwise: what decides, and nothing that the daemon is

Setting = tuple[str, Any]
"""A dotted key with its value; None: as if it were not given."""


def setting(text: str) -> Setting:
    """Read ``KEY=VALUE``, the value as TOML has it or a bare word; ``KEY=`` takes what was given back.

    Raises ``ConfigError`` for anything else, and for a key that decides nothing.
    """
    key, equals, said = (part.strip() for part in text.partition("="))
    table, dot, name = key.partition(".")
    if not (equals and dot and name):
        raise ConfigError(f"expected KEY=VALUE, such as admission.kv_high=0.9, got {text!r}", field="settings")
    if table not in _TABLES:
        raise ConfigError(f"{key}: expected a key of {', '.join(_TABLES)}", field="settings")
    return key, value_of(said) if said else None


def value_of(said: str) -> Any:
    """What stands behind ``KEY=``: a value as TOML has it, or else the bare words."""
    try:
        return tomllib.loads(f"value = {said}")["value"]
    except (ValueError, RecursionError):
        return said


def written(key: str, value: Any) -> str:
    """A setting as ``setting`` reads it."""
    if value is None:
        return f"{key}="
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    return f"{key}={value}"


def shadowed(data: Mapping[str, Any], config: Config) -> Config | None:
    """The shadow's whole configuration, from the tables that ``config`` was made from; None if there is no shadow.

    Raises ``ConfigError``, whose text begins with ``$.shadow: ``.
    """
    if not config.shadow.preset:
        return None
    tables = copy.deepcopy(dict(data))
    tables.pop("shadow", None)
    tables["preset"] = config.shadow.preset
    try:
        for each in config.shadow.settings:
            put(tables, *setting(each))
        return parse(tables)
    except ConfigError as error:
        field = error.field if error.field in ("preset", "settings") else ""
        raise type(error)(f"$.shadow{field and f'.{field}'}: {error}", field="shadow") from None


def promoted(config: Config, given: Sequence[str]) -> dict[str, Any]:
    """What makes the shadow live and the live one its shadow: options by dotted key; None: as if not given.

    ``given``: the keys that somebody gave a value, so that a default goes back to being one.
    """
    now, kept, new = values(config), [], {}
    for key, value in map(setting, config.shadow.settings):
        new[key] = value
        kept.append(written(key, now.get(key) if key in given else None))
    return {**new, "preset": config.shadow.preset, "shadow.preset": config.preset, "shadow.settings": tuple(kept)}


def put(tables: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, or take it out where ``value`` is None.

    A table that is none in a file stays so, for whoever judges it.
    """
    *above, last = key.split(".")
    for name in above:
        tables = tables.setdefault(name, {})
        if not isinstance(tables, dict):
            return
    if value is None:
        tables.pop(last, None)
    else:
        tables[last] = value

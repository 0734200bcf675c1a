"""A configuration with another preset and other values, each as ``KEY=VALUE``: a shadow's, and what-if's."""

import copy
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.config.changes import values
from controlplane.config.model import Config
from controlplane.config.parse import parse
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import POLICIES

_TABLES = (*POLICIES, "control")  # what a shadow may have otherwise: what decides, and nothing that the daemon is

Setting = tuple[str, Any]
"""A dotted key with its value; None: as if it were not given."""


def parse_setting(text: str) -> Setting:
    """``admission.beta=0.6`` as its key and its value: one of TOML, or else text. Raises ``ConfigError``."""
    key, equals, literal = text.partition("=")
    key = key.strip().removeprefix("$.")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"expected KEY=VALUE, as admission.beta=0.6, got {text!r}", field="settings")
    return key, _value_of(literal.strip())


def setting(text: str) -> Setting:
    """The same of a shadow, where ``KEY=`` takes back what was given. A key that decides nothing is refused."""
    key, value = parse_setting(text)
    if key.partition(".")[0] not in _TABLES:
        raise ConfigError(f"{key}: expected a key of {', '.join(_TABLES)}", field="settings")
    return key, value if text.partition("=")[2].strip() else None


def _value_of(literal: str) -> Any:
    try:
        return tomllib.loads(f"value = {literal}")["value"]
    except (ValueError, RecursionError):
        return literal


def written(key: str, value: Any) -> str:
    """A setting as ``setting`` reads it."""
    if value is None:
        return f"{key}="
    if isinstance(value, bool):
        return f"{key}={str(value).lower()}"
    return f"{key}={value}"


def overridden(text: str, *, preset: str = "", settings: Sequence[str] = ()) -> Config:
    """The configuration of a TOML text under ``preset`` (empty: its own), with each ``KEY=VALUE`` of ``settings``.

    A preset brings its own parameters: what the text says of the six policies was said of those of another one.
    Raises ``ConfigError``, its text beginning with what is wrong.
    """
    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not TOML: {error}") from error
    if preset:
        data = {key: value for key, value in data.items() if key not in POLICIES} | {"preset": preset}
    for each in settings:
        put(data, *parse_setting(each))
    return parse(data)


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


def promoted(config: Config, explicit: Sequence[str]) -> dict[str, Any]:
    """What makes the shadow live and the live one its shadow: options by dotted key; None: as if not given.

    ``explicit``: the keys that somebody gave a value, so that a default goes back to being one.
    """
    now, former, new = values(config), [], {}
    for key, value in map(setting, config.shadow.settings):
        new[key] = value
        former.append(written(key, now.get(key) if key in explicit else None))
    return {**new, "preset": config.shadow.preset, "shadow.preset": config.preset, "shadow.settings": tuple(former)}


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

"""A configuration with another preset or other values than its text has."""

import tomllib
from collections.abc import Sequence
from typing import Any

from controlplane.config.model import Config
from controlplane.config.parse import parse
from controlplane.config.shadow import put, value_of
from controlplane.core.errors import ConfigError
from controlplane.core.presets import POLICIES


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
    for setting in settings:
        key, value = parse_setting(setting)
        put(data, key, value)
    return parse(data)


def parse_setting(text: str) -> tuple[str, Any]:
    """``admission.beta=0.6`` as its key and its value: one of TOML, or else text. Raises ``ConfigError``."""
    key, equals, value = text.partition("=")
    key, value = key.strip().removeprefix("$."), value.strip()
    if not equals or not all(key.split(".")):
        raise ConfigError(f"expected KEY=VALUE, as admission.beta=0.6, got {text!r}")
    return key, value_of(value)

"""Read a configuration from the defaults, a file, the environment and the command line, in this order."""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

from controlplane.config.lines import lines_of
from controlplane.config.model import ENVIRONMENT, Config
from controlplane.config.parse import mistakes, parse
from controlplane.config.settings import put, shadowed
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import STOCK
from controlplane.wire.files import read_bytes

_LINK = "link_tokens_per_s"
_MOST_BYTES = 1 << 18  # parsed in less than a second, in the loop of a daemon that runs
_LINE = re.compile(r"^(?:[^$]*?:(\d+): )?")
_NESTED = re.compile(r"""(?<![\w."'-])(?:(?:[\w-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A configuration, and the origin of each value that is not a default, by dotted key."""

    config: Config
    origins: Mapping[str, str]  # ``penstock.toml:7``, ``PENSTOCK_NODE``, ``--preset``
    shadow: Config | None = None  # what a shadow decides by, if there is to be one
    left_to_nodes: tuple[str, ...] = ()  # of a fleet's preset

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Settings that change nothing in a daemon, each with its place and the reason."""
        why = f"{_LINK} is for `penstock simulate` and sweeps: no engine sends another what it holds"
        told = [f"{origin}: {why}" for key, origin in self.origins.items() if key == f"placement.{_LINK}"]
        if self.config.experiment.on and self.config.is_stock:
            where = self.origins.get("experiment.slice_s", "[experiment]")
            told.append(f"{where}: an experiment compares a preset with {STOCK}, which is this one")
        return tuple(told)

    def for_a_daemon(self) -> "Resolved":
        """The same without what a daemon's engines cannot do."""
        shadow = None if self.shadow is None else _without_link(self.shadow)
        return replace(self, config=_without_link(self.config), shadow=shadow)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A daemon's configuration source, read at the start and at each reload.

    ``options`` are command-line options by dotted key, None where not given. ``promoted`` holds what `penstock
    promote` made live over all of that, None for a key or a table that is to be as if it were not given.
    """

    path: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    promoted: Mapping[str, Any] = field(default_factory=dict)

    def read(self, *, again: bool = False, content: bytes | None = None) -> Resolved:
        """Read all sources. ``again`` means that they were read before.

        ``content``: the file's, for who has read it already. Raises ``ConfigError``, which says where, which key,
        and what was expected.
        """
        data, origins = self._merged(again=again, content=content)
        try:
            config = parse(data)
            return Resolved(config=config, origins=origins, shadow=shadowed(data, config))
        except ConfigError as error:
            raise self._placed(error, origins) from None

    def mistakes(self) -> list[ConfigError]:
        """All that is wrong, each as ``read`` would raise it, in the file's order.

        Raises ``ConfigError`` for what cannot be read.
        """
        data, origins = self._merged()
        found = mistakes(data)
        if not found:
            try:
                shadowed(data, parse(data))
            except ConfigError as error:
                found.append(error)
        placed = [self._placed(error, origins) for error in found]
        return sorted(placed, key=lambda error: int(_LINE.findall(str(error))[0] or 0))

    def _merged(
        self, *, again: bool = False, content: bytes | None = None
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The tables of all sources, and the origin of each key."""
        text = _text(self.path, content, again=again) if self.path else ""
        data, origins = _tables(text, self.path), _in_file(text, self.path)
        for name, key in ENVIRONMENT.items():
            if os.environ.get(name):
                put(data, key, os.environ[name])
                origins[key] = name
        for key, value in self.options.items():
            if value is not None:
                put(data, key, value)
                origins[key] = f"--{key.rpartition('.')[2].removesuffix('_url').replace('_', '-')}"
        for key, value in self.promoted.items():
            put(data, key, value)
            for gone in [name for name in origins if f"{name}.".startswith(f"{key}.")]:
                del origins[gone]
            if value is not None:
                origins[key] = "penstock promote"
        return data, origins

    def _placed(self, error: ConfigError, origins: Mapping[str, str]) -> ConfigError:
        where = self._to_blame(str(error), origins)
        return type(error)(f"{where}: {error}" if where else str(error), field=error.field)

    def _to_blame(self, message: str, origins: Mapping[str, str]) -> str:
        """The place of the key that the message begins with, or else of its table, or else the file."""
        matched = re.match(r"\$\.(.*?): ", message)
        key = matched[1] if matched else ""
        while key:
            if key in origins:
                return origins[key]
            key = key.rpartition(".")[0]
        return str(self.path) if self.path else ""


def _without_link(config: Config) -> Config:
    policies = config.policies
    placement: Any = policies.placement
    if not getattr(placement, _LINK, 0.0):
        return config
    placed = replace(policies, placement=replace(placement, **{_LINK: 0.0}))
    return replace(config, policies=placed)


def load(path: Path | None, options: Mapping[str, Any] | None = None) -> Config:
    """Load defaults, then the file, then the environment, then ``options`` (except None values).

    Raises ``ConfigError`` with the place, path and range of the first wrong value.
    """
    return Source(path=path, options=options or {}).read().config


def content_of(path: Path, *, again: bool = False) -> bytes:
    """What is in the file: one rule for the start and for each reload, by whomever.

    A pipe is read to its end at the start only: later it would keep the daemon waiting. An empty file is refused,
    since it is about to be written, or its writer died. Raises ``ConfigError``.
    """
    try:
        stream = is_stream(path)
        if stream and (again or not path.is_relative_to("/dev")):
            hint = "it cannot be read again" if again else "to read standard input, name /dev/stdin"
            raise ConfigError(f"{path}: expected a regular file; {hint}")
        content = read_bytes(path, _MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if not stream and not content.strip():
        raise ConfigError(f"{path}: it is empty; for the defaults, leave a comment in it")
    return content


def _text(path: Path, content: bytes | None, *, again: bool) -> str:
    data = content_of(path, again=again) if content is None else content
    try:
        return TextIOWrapper(BytesIO(data), encoding="utf-8").read()
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def is_stream(path: Path) -> bool:
    """True for a pipe, a socket or a device, which has no content of its own. Raises ``OSError``."""
    mode = path.stat().st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _tables(text: str, path: Path | None) -> dict[str, Any]:
    if _NESTED.search(text):  # each part of a key costs tomllib as much as all before it
        raise ConfigError(f"{path}: a key of more than 32 parts")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a wrong syntax; a number or nesting without end
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _in_file(text: str, path: Path | None) -> dict[str, str]:
    return {key: f"{path}:{line}" for key, line in lines_of(text).items()}

"""Read a configuration from the defaults, a file, the environment and the command line, in this order."""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controlplane.config.lines import lines_of
from controlplane.config.model import ENVIRONMENT, Config
from controlplane.config.parse import parse
from controlplane.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A configuration, and the origin of each value that is not a default, by dotted key."""

    config: Config
    origins: Mapping[str, str]  # ``penstock.toml:7``, ``PENSTOCK_NODE``, ``--preset``

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Settings that change nothing in a daemon, each with its place and the reason."""
        said = [origin for key, origin in self.origins.items() if key.partition(".")[0] == "placement"]
        why = "[placement] is for `penstock simulate` and sweeps: a daemon has no router that would ask it"
        return tuple(f"{origin}: {why}" for origin in said[:1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A daemon's configuration source, read at the start and at each reload.

    ``options`` are command-line options by key, None where not given.
    """

    path: Path | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, *, again: bool = False) -> Resolved:
        """Read all sources. ``again`` means that they were read before.

        Raises ``ConfigError``, which says where, which key, and what was expected.
        """
        text = _text(self.path, again=again) if self.path else ""
        data, origins = _tables(text, self.path), _in_file(text, self.path)
        for name, key in ENVIRONMENT.items():
            if os.environ.get(name):
                data[key], origins[key] = os.environ[name], name
        for key, value in self.options.items():
            if value is not None:
                data[key], origins[key] = value, f"--{key.removesuffix('_url').replace('_', '-')}"
        try:
            return Resolved(config=parse(data), origins=origins)
        except ConfigError as error:
            where = self._to_blame(str(error), origins)
            raise type(error)(f"{where}: {error}" if where else str(error), field=error.field) from None

    def _to_blame(self, message: str, origins: Mapping[str, str]) -> str:
        """The place of the key that the message begins with, or else of its table, or else the file."""
        matched = re.match(r"\$\.(.*?): ", message)
        key = matched[1] if matched else ""
        while key:
            if key in origins:
                return origins[key]
            key = key.rpartition(".")[0]
        return str(self.path) if self.path else ""


def load(path: Path | None, options: Mapping[str, Any] | None = None) -> Config:
    """Load defaults, then the file, then the environment, then ``options`` (except None values).

    Raises ``ConfigError`` with the place, path and range of the first wrong value.
    """
    return Source(path=path, options=options or {}).read().config


def _text(path: Path, *, again: bool) -> str:
    """The file's text. A pipe is read to its end at the start only: later it would keep the daemon waiting."""
    try:
        if is_stream(path) and (again or not path.is_relative_to("/dev")):
            hint = "it cannot be read again" if again else "to read standard input, name /dev/stdin"
            raise ConfigError(f"{path}: expected a regular file; {hint}")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def is_stream(path: Path) -> bool:
    """True for a pipe, a socket or a device, which has no content of its own. Raises ``OSError``."""
    mode = path.stat().st_mode
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _tables(text: str, path: Path | None) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a wrong syntax; a number or nesting without end
        raise ConfigError(f"{path}: not TOML: {error}") from error


def _in_file(text: str, path: Path | None) -> dict[str, str]:
    return {key: f"{path}:{line}" for key, line in lines_of(text).items()}

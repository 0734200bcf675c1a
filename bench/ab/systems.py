"""What is compared: an engine as it is, its own priorities, and the plugin under a daemon's configuration."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ab import ROOT
from ab.kinds import Kind
from controlplane.config import parse, show
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.workload import provenance

STOCK = "stock"
PRIORITY = "priority"
_STATIC = re.compile(r"static-(\d+)")
_DECIDING = ("core", "tool_calls", "gate", "emit", "transport", "wire", "daemon")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One of the compared. ``toml`` is the daemon's configuration; empty: neither plugin nor daemon.

    ``flags``: what its engine is started with beside. ``first_come``: its programs' requests are numbered in order
    of the programs' arrival.
    """

    name: str
    toml: str = ""
    flags: Sequence[str] = ()
    first_come: bool = False

    @property
    def has_plugin(self) -> bool:
        return bool(self.toml)


def static(window: int) -> System:
    """A fixed window of programs, first come, first served: what an operator can do by hand."""
    toml = f'preset = "fcfs"\n[admission]\npolicy = "fixed"\nwindow = {window}\n'
    return System(name=f"static-{window}", toml=toml)


def by_priority(kind: Kind) -> System:
    """The engine as it is, but for its queue, in which requests of the program that came first go first.

    That is all that an operator can tell a stock engine of programs. Raises ``ConfigError`` for one that is not
    asked to.
    """
    if not kind.priorities:
        raise ConfigError(f"--systems: {PRIORITY} is not tried on {kind.title}")
    return System(name=PRIORITY, flags=kind.priorities, first_come=True)


def parse_system(text: str, kind: Kind) -> System:
    """``stock``, ``priority``, ``static-8``, a preset's name, or ``NAME=FILE.toml``. Raises ``ConfigError``."""
    name, separator, file = text.partition("=")
    if separator:
        toml = Path(file).read_text()
        parse(tomllib.loads(toml))
        return System(name=name, toml=toml)
    if name == STOCK:
        return System(name=name)
    if name == PRIORITY:
        return by_priority(kind)
    if found := _STATIC.fullmatch(name):
        return static(int(found[1]))
    if name in PRESETS:
        return System(name=name, toml=f'preset = "{name}"\n')
    known = ", ".join((STOCK, *([PRIORITY] if kind.priorities else []), "static-N", *PRESETS, "NAME=FILE.toml"))
    raise ConfigError(f"--systems: expected some of {known}, got {text!r}")


def effective_digest(system: System) -> str:
    """Of the configuration with every default in it; empty for stock."""
    return provenance.digest(show(parse(tomllib.loads(system.toml)))) if system.has_plugin else ""


def code_digest(system: System) -> str:
    """Of all the code that decides, holds or tells; empty for stock."""
    if not system.has_plugin:
        return ""
    rooms = [ROOT / "controlplane" / room for room in _DECIDING] + [ROOT / "engine_hooks"]
    return provenance.code_digest(rooms)

"""What differs between two configurations, and what of it a running daemon can take over."""

from dataclasses import dataclass, replace
from typing import Any

from controlplane.config.model import Config
from controlplane.config.walk import tables

# Names of subjects, files and connections, and the clock: what exists goes by them.
UNTIL_RESTART = (
    "node",
    "nats_url",
    "state_dir",
    "tool_socket",
    "time_scale",
    "decision_log_mb",
    "api",
    "http",
    "telemetry",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key. ``before`` or ``after`` is None where only the other configuration's policy has it."""

    key: str
    before: Any
    after: Any

    @property
    def is_live(self) -> bool:
        """Whether a running daemon takes it over."""
        return self.key.partition(".")[0] not in UNTIL_RESTART

    def __str__(self) -> str:
        return f"{self.key}: {said(self.before)} -> {said(self.after)}"


def values(config: Config) -> dict[str, Any]:
    """Every key's value by its dotted path, in the order of ``show``."""
    return {f"{table.above}{name}": value for table in tables(config) for name, value in table.items()}


def changes(before: Config, after: Config) -> list[Change]:
    """Key by key."""
    old, new = values(before), values(after)
    return [
        Change(key=key, before=old.get(key), after=new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def keep_until_restart(running: Config, wanted: Config) -> Config:
    """``wanted`` with what cannot change in a running daemon left as it is. Raises ``ConfigError``."""
    return replace(wanted, **{key: getattr(running, key) for key in UNTIL_RESTART})


def said(value: Any) -> str:
    """A value of a key as a person reads it."""
    return "none" if value is None else repr(value)

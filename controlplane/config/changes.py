"""The differences between two configurations, and which of them a running daemon can apply."""

from dataclasses import dataclass, replace
from typing import Any

from controlplane.config.model import Config
from controlplane.config.walk import tables

# Subjects, files, connections and the clock depend on these, so a running daemon cannot change them.
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
    "otlp",
    "fleet",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key's change. ``before`` or ``after`` is None if only the other configuration's policy has the key."""

    key: str
    before: Any
    after: Any

    @property
    def is_live(self) -> bool:
        return self.key.partition(".")[0] not in UNTIL_RESTART

    def __str__(self) -> str:
        return f"{self.key}: {quoted(self.before)} -> {quoted(self.after)}"


def values(config: Config) -> dict[str, Any]:
    """Every key's value by its dotted path, in the order of ``show``."""
    return {f"{table.above}{name}": value for table in tables(config) for name, value in table.items()}


def changes(before: Config, after: Config) -> list[Change]:
    """The changes from ``before`` to ``after``, one for each key that differs."""
    old, new = values(before), values(after)
    return [
        Change(key=key, before=old.get(key), after=new.get(key))
        for key in dict.fromkeys([*old, *new])
        if old.get(key) != new.get(key)
    ]


def keep_until_restart(running: Config, wanted: Config) -> Config:
    """``wanted``, but with the running values of keys that only a restart can change. Raises ``ConfigError``."""
    return replace(wanted, **{key: getattr(running, key) for key in UNTIL_RESTART})


def quoted(value: Any) -> str:
    """A key's value as a person reads it."""
    return "none" if value is None else repr(value)

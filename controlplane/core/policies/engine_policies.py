"""The two policies that run inside the engine, and how the daemon tells an engine which ones to run.

The daemon's heartbeat carries them as text. So an engine needs no configuration of its own, and one that hears no
daemon runs as it did before.
"""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from controlplane.core.model.errors import ConfigError, RemoteEventError
from controlplane.core.policies.memory import MEMORY
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.priority import PRIORITY
from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.protocols import MemoryPolicy, PriorityPolicy

_KINDS: dict[str, dict[str, Any]] = {"priority": PRIORITY, "memory": MEMORY}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePolicies:
    """The queue's order and the memory's victims; the defaults are the stock engine's."""

    priority: PriorityPolicy = field(default_factory=Fcfs)
    memory: MemoryPolicy = field(default_factory=Lru)

    def dumps(self) -> str:
        """As text: each policy's registered name and its parameters."""
        return json.dumps({kind: _plain(kind, getattr(self, kind)) for kind in _KINDS}, separators=(",", ":"))


STOCK = EnginePolicies()


def loads(text: str) -> EnginePolicies:
    """The policies of ``dumps``; the stock engine's for an empty text.

    Raises ``RemoteEventError`` for text of another version or none of ours.
    """
    if not text:
        return STOCK
    try:
        data = json.loads(text)
        return EnginePolicies(**{kind: _made(kind, data[kind]) for kind in _KINDS})
    except (ValueError, KeyError, TypeError, ConfigError, RecursionError) as error:
        raise RemoteEventError(f"engine policies that make no sense: {error}: {text[:200]}") from error


def _plain(kind: str, policy: Any) -> dict[str, Any]:
    name = next(name for name, cls in _KINDS[kind].items() if cls is type(policy))
    return {"policy": name, **asdict(policy)}


def _made(kind: str, values: dict[str, Any]) -> Any:
    cls = _KINDS[kind][values["policy"]]
    defaults, parameters = cls(), {}
    for item in fields(cls):
        if item.name in values:
            parameters[item.name] = _like(getattr(defaults, item.name), values[item.name], item.name)
    return cls(**parameters)


def _like(default: Any, value: Any, name: str) -> Any:
    """The value, if it is of its default's type (a whole number may stand for any). Raises ``TypeError``."""
    if isinstance(value, list) and isinstance(default, tuple):
        return tuple(_like(default[0], each, name) for each in value)
    if type(value) is type(default) or (type(value) is int and type(default) is float):
        return value
    raise TypeError(f"{name}: expected {type(default).__name__}, got {value!r}")

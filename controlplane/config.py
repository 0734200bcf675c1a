"""Configuration: TOML to checked dataclasses, each error with its path and range.

    $.admission.beta: expected 0 < beta < 1, got 1.5

A preset gives the six policies; a section of the policy's kind overrides its parameters, or names another policy:

    preset = "mars"
    [admission]
    beta = 0.6
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from controlplane.core.controller import ControlRules
from controlplane.core.errors import ConfigError, UnknownPolicy, require
from controlplane.core.presets import POLICIES, PRESETS, Preset, policy_name, preset
from controlplane.wire.subjects import check_name

T = TypeVar("T")

ENVIRONMENT = {
    "PENSTOCK_NODE": "node",
    "PENSTOCK_PRESET": "preset",
    "PENSTOCK_NATS_URL": "nats_url",
    "PENSTOCK_STATE_DIR": "state_dir",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """The machine that tools run on. ``cpus`` 0: what this process may use."""

    cpus: float = 0.0
    probe_interval_s: float = 1.0

    def __post_init__(self) -> None:
        require("cpus", self.cpus, low=0, high=100_000)
        require("probe_interval_s", self.probe_interval_s, low=0.05, high=3600)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that a daemon is told."""

    node: str = "local"
    preset: str = "mars"
    nats_url: str = ""  # empty: an embedded nats-server
    state_dir: str = ""  # empty: $XDG_STATE_HOME/penstock
    tool_socket: str = ""  # for agents without credentials of the bus; empty: NODE.sock in the state directory
    time_scale: float = 1.0  # for demos: engine seconds that pass in one second
    heartbeat_s: float = 0.25
    lease_s: float = 5.0
    snapshot_s: float = 1.0
    host: HostConfig = field(default_factory=HostConfig)
    control: ControlRules = field(default_factory=ControlRules)
    policies: Preset = field(default_factory=lambda: PRESETS["mars"])

    def __post_init__(self) -> None:
        check_name(self.node, field="node")
        require("time_scale", self.time_scale, low=0, high=100, ends="(]")
        require("heartbeat_s", self.heartbeat_s, low=0.01, high=60)
        require("lease_s", self.lease_s, low=2 * self.heartbeat_s, high=600)
        require("snapshot_s", self.snapshot_s, low=0.05, high=3600)


def load(path: Path | None, overrides: Mapping[str, Any] | None = None) -> Config:
    """Defaults, then the file, then the environment, then ``overrides`` (None values are left out).

    Raises ``ConfigError`` with the path of the first wrong value.
    """
    data = read_toml(path) if path else {}
    data |= {key: os.environ[name] for name, key in ENVIRONMENT.items() if os.environ.get(name)}
    data |= {key: value for key, value in (overrides or {}).items() if value is not None}
    return parse(data)


def read_toml(path: Path) -> dict[str, Any]:
    """The file's tables. Raises ``ConfigError`` if it cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # a wrong syntax or encoding; a number or nesting without end
        raise ConfigError(f"{path}: not TOML: {error}") from error


def parse(data: Mapping[str, Any]) -> Config:
    """Build a ``Config`` from tables. Raises ``ConfigError``."""
    rest = dict(data)
    sections = {kind: rest.pop(kind) for kind in POLICIES if kind in rest}
    if "policies" in rest:
        raise ConfigError("$.policies: unknown key; name a policy in its own section, as [admission]")
    name = _plain(rest.get("preset", Config().preset), str, "$.preset")
    try:
        chosen = preset(name)
    except UnknownPolicy as error:
        raise UnknownPolicy(f"$.preset: {error}", field="preset") from None
    for kind, section in sections.items():
        policy = _policy(kind, getattr(chosen, kind), section, f"$.{kind}")
        chosen = replace(chosen, **{kind: policy})
    return _build(Config, rest, "$", policies=chosen, choices=[*POLICIES])


def _policy(kind: str, base: Any, section: Any, path: str) -> Any:
    if not isinstance(section, Mapping):
        raise ConfigError(f"{path}: expected a table, got {section!r}", field=kind)
    values = dict(section)
    registry = POLICIES[kind]
    name = values.pop("policy", policy_name(kind, base))
    if not isinstance(name, str) or name not in registry:
        raise UnknownPolicy(
            f"{path}.policy: no {kind} policy {name!r}; there are: {', '.join(registry)}", field="policy"
        )
    policy = registry[name]
    if policy is type(base):  # the preset's own: what the section leaves out stays as the preset has it
        values = {item.name: getattr(base, item.name) for item in fields(base)} | values
    return _build(policy, values, path)


def _build(
    cls: type[T], data: Mapping[str, Any], path: str, *, choices: list[str] | None = None, **given: Any
) -> T:
    known = [item.name for item in fields(cls) if item.name not in given]  # type: ignore[arg-type]
    known += choices or []
    for key in data:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; there are: {', '.join(known) or 'none'}"
            raise ConfigError(f"{path}.{key}: unknown key{hint}", field=key)
    kinds = get_type_hints(cls)
    values = dict(given)
    for key, value in data.items():
        kind = kinds[key]
        if is_dataclass(kind) and isinstance(value, Mapping):
            values[key] = _build(kind, value, f"{path}.{key}")  # type: ignore[arg-type]
        else:
            values[key] = _plain(value, kind, f"{path}.{key}")
    try:
        return cls(**values)
    except ConfigError as error:
        where = f"{path}.{error.field}" if error.field else path
        raise type(error)(f"{where}: {error}", field=error.field) from None


def _plain(value: Any, kind: Any, path: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = str(error).split(" - at ")[0]
        raise ConfigError(f"{path}: {reason[0].lower()}{reason[1:]}", field=path.rpartition(".")[2]) from None


def show(config: Config) -> str:
    """The configuration in force as TOML, every default written out."""
    lines = _section("", config, skip={"policies"})
    for kind in POLICIES:
        policy = getattr(config.policies, kind)
        lines += ["", f"[{kind}]", f'policy = "{policy_name(kind, policy)}"', *_values(policy)]
    return "\n".join(lines) + "\n"


def _section(path: str, value: Any, skip: set[str] | None = None) -> list[str]:
    lines = ([""] if path else []) + ([f"[{path}]"] if path else []) + _values(value)
    for item in fields(value):
        inner = getattr(value, item.name)
        if is_dataclass(inner) and item.name not in (skip or ()):
            lines += _section(f"{path}.{item.name}" if path else item.name, inner)
    return lines


def _values(value: Any) -> list[str]:
    pairs = ((item.name, getattr(value, item.name)) for item in fields(value))
    return [f"{name} = {msgspec.json.encode(inner).decode()}" for name, inner in pairs if not is_dataclass(inner)]

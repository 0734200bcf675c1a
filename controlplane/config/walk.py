"""Iterate over a configuration's keys, table by table, in the order in which they are shown."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import msgspec

from controlplane.config.model import Config
from controlplane.core.policies.presets import POLICIES, policy_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table. ``path`` is empty for the top level; ``policy`` names the policy in the table of its kind."""

    path: str
    value: Any
    policy: str = ""

    @property
    def above(self) -> str:
        return f"{self.path}." if self.path else ""

    def items(self) -> Iterator[tuple[str, Any]]:
        """This table's own keys with their values; a policy's name comes first."""
        if self.policy:
            yield "policy", self.policy
        for item in fields(self.value):
            value = getattr(self.value, item.name)
            if not is_dataclass(value):
                yield item.name, value


def tables(config: Config) -> Iterator[Table]:
    """All tables of a configuration: the nested ones, one for each tenant, then one for each kind of policy."""
    yield from _nested(Table(path="", value=config))
    for name, tenant in config.control.tenancy.named.items():
        yield Table(path=f"tenants.{_key(name)}", value=tenant)
    for kind in POLICIES:
        policy = getattr(config.policies, kind)
        yield Table(path=kind, value=policy, policy=policy_name(kind, policy))


def _key(name: str) -> str:
    """A name as a key of TOML: between quotes where it is not bare."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else msgspec.json.encode(name).decode()


def _nested(table: Table) -> Iterator[Table]:
    yield table
    for item in fields(table.value):
        value = getattr(table.value, item.name)
        if is_dataclass(value) and item.name not in ("policies", "tenancy"):
            yield from _nested(Table(path=f"{table.above}{item.name}", value=value))

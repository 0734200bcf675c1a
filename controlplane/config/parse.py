"""Turn TOML tables into a ``Config``; refuse every wrong value with its path and its range."""

import copy
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, get_type_hints

import msgspec

from controlplane.config.changes import values
from controlplane.config.model import Config
from controlplane.core.model.errors import ConfigError, UnknownPolicy, near
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.model.text import is_printable
from controlplane.core.model.types import MOST_NAME
from controlplane.core.policies.presets import POLICIES, policy_name, preset

T = TypeVar("T")


def parse(data: Mapping[str, Any]) -> Config:
    """Build a ``Config`` from tables. Raises ``ConfigError``, its text beginning with ``$.PATH: ``."""
    rest = dict(data)
    sections = {kind: rest.pop(kind) for kind in POLICIES if kind in rest}
    if "policies" in rest:
        raise ConfigError("$.policies: unknown key; name a policy in its own section, as [admission]")
    tenancy = _tenancy(rest.pop("tenants", {}))
    name = _plain(rest.get("preset", Config().preset), str, "$.preset")
    try:
        chosen = preset(name)
    except UnknownPolicy as error:
        raise UnknownPolicy(f"$.preset: {error}", field="preset") from None
    for kind, section in sections.items():
        policy = _policy(kind, getattr(chosen, kind), section, f"$.{kind}")
        chosen = replace(chosen, **{kind: policy})
    config = _build(Config, rest, "$", policies=chosen, choices=[*POLICIES, "tenants"])
    return replace(config, control=replace(config.control, tenancy=tenancy)) if tenancy.on else config


def mistakes(data: Mapping[str, Any]) -> list[ConfigError]:
    """All that is wrong with tables, in the order in which ``parse`` finds it; each as ``parse`` raises it.

    What is wrong is left out, so that what is wrong beside it is found. A range that depends on another key, which
    is not in its table, leaves the table out.
    """
    rest, found = copy.deepcopy(dict(data)), list[ConfigError]()
    while True:
        try:
            parse(rest)
        except ConfigError as error:
            found.append(error)
            if not _without(rest, str(error)):
                return found
        else:
            return found


def _without(tables: dict[str, Any], message: str) -> bool:
    """Take out the key that an error's message begins with, or else its table. True: there was one.

    A name may have a dot in it.
    """
    path = message.removeprefix("$.")
    for key in sorted(tables, key=len, reverse=True):
        if not re.match(rf"{re.escape(key)}(\.|: )", path):
            continue
        inner, rest = tables[key], path.removeprefix(key)
        if not (isinstance(inner, dict) and rest.startswith(".") and _without(inner, rest[1:])):
            del tables[key]
        return True
    return False


def _tenancy(section: Any) -> Tenancy:
    if not isinstance(section, Mapping):
        raise ConfigError(f"$.tenants: expected a table for each tenant, got {section!r}", field="tenants")
    named = {}
    for name, table in section.items():
        path = f"$.tenants.{name}"
        if not isinstance(table, Mapping):
            raise ConfigError(f"{path}: expected a table, got {table!r}", field=name)
        if not 0 < len(name) <= MOST_NAME or not is_printable(name):
            raise ConfigError(f"{path}: expected a name of printable characters, {MOST_NAME} at most", field=name)
        named[name] = _build(Tenant, table, path)
    try:
        return Tenancy(named=named)
    except ConfigError as error:
        raise ConfigError(f"$.tenants: {error}", field="tenants") from None


def _policy(kind: str, base: Any, section: Any, path: str) -> Any:
    if not isinstance(section, Mapping):
        raise ConfigError(f"{path}: expected a table, got {section!r}", field=kind)
    values = dict(section)
    registry = POLICIES[kind]
    name = values.pop("policy", policy_name(kind, base))
    if not isinstance(name, str) or name not in registry:
        raise UnknownPolicy(
            f"{path}.policy: no {kind} policy {name!r}; there are: {', '.join(registry)}{near(name, registry)}",
            field="policy",
        )
    policy = registry[name]
    if policy is type(base):  # the preset's own: what the section leaves out stays as the preset has it
        values = {item.name: getattr(base, item.name) for item in fields(base)} | values
    return _build(policy, values, path)


def _build(
    cls: type[T], data: Mapping[str, Any], path: str, *, choices: list[str] | None = None, **fixed: Any
) -> T:
    known = [item.name for item in fields(cls) if item.name not in (*fixed, "tenancy")]  # type: ignore[arg-type]
    known += choices or []
    for key in data:
        if key not in known:
            hint = near(key, known) or f"; there are: {', '.join(known) or 'none'}{_elsewhere(key, path)}"
            raise ConfigError(f"{path}.{key}: unknown key{hint}", field=key)
    kinds = get_type_hints(cls)
    values = dict(fixed)
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


def _elsewhere(key: str, path: str) -> str:
    """Where a key of that name is, if it was written into the wrong table, or is of another policy."""
    tables = [found.rpartition(".")[0] for found in values(Config()) if found.endswith(f".{key}")]
    if (own := path.removeprefix("$.")) in tables:
        return f"; {key!r} is of another {own} policy than the preset's: name it, as policy = ..."
    return f"; {key!r} belongs into {' or '.join(f'[{table}]' for table in tables)}" if tables else ""


def _plain(value: Any, kind: Any, path: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = str(error).split(" - at ")[0]
        raise ConfigError(f"{path}: {reason[0].lower()}{reason[1:]}", field=path.rpartition(".")[2]) from None

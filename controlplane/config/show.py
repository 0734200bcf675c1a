"""A configuration as TOML, with every default written out."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from controlplane.config.describe import describe
from controlplane.config.model import Config
from controlplane.core.presets import POLICIES, policy_name


def template(config: Config) -> str:
    """A file to begin with: every key explained, and commented out, so that it changes nothing."""
    return re.sub(r"^(?=\w+ = )", "#", show(config, explained=True), flags=re.M)


def show(config: Config, *, origins: Mapping[str, str] | None = None, explained: bool = False) -> str:
    """``origins``: by key, where a value comes from, told behind it; ``explained``: what it means, above it."""
    told = origins or {}
    lines = list(_section("", config, told, explained))
    for kind in POLICIES:
        policy = getattr(config.policies, kind)
        name = policy_name(kind, policy)
        lines += ["", f"[{kind}]", f'policy = "{name}"{_origin(f"{kind}.policy", told)}']
        lines += _values(policy, f"{kind}.", told, explained, words=f"{kind}.{name}.")
    return "\n".join(lines) + "\n"


def _section(path: str, value: Any, told: Mapping[str, str], explained: bool) -> Iterator[str]:
    if path:
        yield from ("", f"[{path}]")
    above = f"{path}." if path else ""
    yield from _values(value, above, told, explained, words=above)
    for item in fields(value):
        inner = getattr(value, item.name)
        if is_dataclass(inner) and item.name != "policies":
            yield from _section(f"{above}{item.name}", inner, told, explained)


def _values(value: Any, above: str, told: Mapping[str, str], explained: bool, *, words: str) -> Iterator[str]:
    """``words``: what the keys' descriptions go by, in which a policy has its name."""
    for item in fields(value):
        inner = getattr(value, item.name)
        if is_dataclass(inner):
            continue
        if explained:
            yield f"# {describe(type(value), words, item.name, inner)}"
        yield f"{item.name} = {msgspec.json.encode(inner).decode()}{_origin(f'{above}{item.name}', told)}"


def _origin(key: str, told: Mapping[str, str]) -> str:
    return f"  # {told[key]}" if key in told else ""

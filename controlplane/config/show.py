"""Write a configuration as TOML, with every default."""

import re
from collections.abc import Collection, Mapping

import msgspec

from controlplane.config.describe import describe
from controlplane.config.model import Config
from controlplane.config.walk import tables


def template(config: Config) -> str:
    """A file to start from: every key is explained and commented out, so it changes nothing."""
    return re.sub(r"^(?=\w+ = )", "#", show(config, explained=True), flags=re.M)


def show(
    config: Config,
    *,
    origins: Mapping[str, str] | None = None,
    explained: bool = False,
    without: Collection[str] = (),
) -> str:
    """Write ``config`` as TOML.

    ``origins`` says by key where a value comes from, which is written after it. With ``explained`` each key's
    meaning is written above it. Tables and keys that ``without`` names are left out, and tables in them.
    """
    origin_of = origins or {}
    lines = []
    for table in tables(config):
        if table.path.partition(".")[0] in without:
            continue
        if table.path:
            lines += ["", f"[{table.path}]"]
        words = f"{table.above}{table.policy}." if table.policy else table.above
        for name, value in table.items():
            key = f"{table.above}{name}"
            if key in without:
                continue
            if explained and (name, value) != ("policy", table.policy):
                lines.append(f"# {describe(type(table.value), words, name, value)}")
            origin = f"  # {origin_of[key]}" if key in origin_of else ""
            lines.append(f"{name} = {msgspec.json.encode(value).decode()}{origin}")
    return "\n".join(lines) + "\n"

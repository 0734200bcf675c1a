"""``penstock presets``: list the presets and policies to choose from."""

from dataclasses import asdict
from typing import Any

import typer

from controlplane.cli.options import Json


def presets(json: Json = False) -> None:
    """List the presets, and the policies that each one combines."""
    if json:
        typer.echo(_as_json())
    else:
        _print_presets()


def _as_json() -> str:
    import msgspec

    from controlplane.core.policies.mechanisms import MECHANISMS
    from controlplane.core.policies.presets import POLICIES, PRESETS

    presets = {
        name: {"summary": preset.summary, "does": list(MECHANISMS[name])}
        | {kind: _described(kind, getattr(preset, kind)) for kind in POLICIES}
        for name, preset in PRESETS.items()
    }
    listing = {"presets": presets, "policies": {kind: list(registry) for kind, registry in POLICIES.items()}}
    return msgspec.json.format(msgspec.json.encode(listing), indent=2).decode()


def _described(kind: str, policy: Any) -> dict[str, Any]:
    from controlplane.core.policies.presets import policy_name

    return {"policy": policy_name(kind, policy), **asdict(policy)}


def _print_presets() -> None:
    from rich.console import Console

    from controlplane.core.policies.mechanisms import MECHANISMS
    from controlplane.core.policies.presets import POLICIES, PRESETS, policy_name

    console = Console(highlight=False)
    for name, preset in PRESETS.items():
        parts = (f"{kind} [cyan]{policy_name(kind, getattr(preset, kind))}[/cyan]" for kind in POLICIES)
        does = "; ".join(MECHANISMS[name]) or "nothing beside the engine"
        console.print(f"[bold]{name}[/bold]  {preset.summary}\n    {does}\n    {', '.join(parts)}")
    console.print("\nA configuration may choose another policy for each kind:")
    for kind, registry in POLICIES.items():
        console.print(f"    \\[{kind}] policy = {' | '.join(registry)}")

"""``penstock presets``: list the presets and policies to choose from."""

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from controlplane.cli.options import Json

_OF_A_FLEET = ("admission", "packing", "retention", "placement")
"""The kinds of policies that a fleet decides by; the others are its nodes' engines'."""


def presets(
    fleet: Annotated[
        bool, typer.Option("--fleet", help="What of each a fleet does, and what it leaves to its nodes.")
    ] = False,
    json: Json = False,
) -> None:
    """List the presets, and the policies that each one combines."""
    if json:
        typer.echo(_as_json(fleet=fleet))
    else:
        _print_presets(fleet=fleet)


def _as_json(*, fleet: bool) -> str:
    import msgspec

    from controlplane.core.policies.mechanisms import MECHANISMS
    from controlplane.core.policies.presets import POLICIES, PRESETS
    from controlplane.fleet.settings import left_to_nodes, slots_of

    presets: dict[str, dict[str, Any]] = {}
    for name, preset in PRESETS.items():
        does = replace(preset, retention=slots_of(preset.retention)) if fleet else preset
        left = {"left_to_nodes": list(left_to_nodes(preset))} if fleet else {"does": list(MECHANISMS[name])}
        described = {kind: _described(kind, getattr(does, kind)) for kind in POLICIES}
        presets[name] = {"summary": preset.summary, **left, **described}
    listing = {"presets": presets, "policies": {kind: list(registry) for kind, registry in POLICIES.items()}}
    return msgspec.json.format(msgspec.json.encode(listing), indent=2).decode()


def _described(kind: str, policy: Any) -> dict[str, Any]:
    from controlplane.core.policies.presets import policy_name

    return {"policy": policy_name(kind, policy), **asdict(policy)}


def _print_presets(*, fleet: bool) -> None:
    from rich.console import Console

    from controlplane.core.policies.mechanisms import MECHANISMS
    from controlplane.core.policies.presets import POLICIES, PRESETS, policy_name
    from controlplane.fleet.settings import left_to_nodes, slots_of

    console = Console(highlight=False)
    for name, preset in PRESETS.items():
        does, kinds = preset, list(POLICIES)
        last = "; ".join(MECHANISMS[name]) or "nothing beside the engine"
        if fleet:
            does, kinds = replace(preset, retention=slots_of(preset.retention)), list(_OF_A_FLEET)
            last = f"left to nodes: {'; '.join(left_to_nodes(preset)) or 'nothing'}"
        parts = (f"{kind} [cyan]{policy_name(kind, getattr(does, kind))}[/cyan]" for kind in kinds)
        console.print(f"[bold]{name}[/bold]  {preset.summary}\n    {', '.join(parts)}\n    {last}")
    if fleet:
        console.print("\nNodes do what is left to them if their own daemons run the same preset.")
        return
    console.print("\nA configuration may choose another policy for each kind:")
    for kind, registry in POLICIES.items():
        console.print(f"    \\[{kind}] policy = {' | '.join(registry)}")

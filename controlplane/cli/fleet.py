"""``penstock fleet``: many engines behind one Envoy."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from controlplane.cli import fleet_envoy
from controlplane.cli.options import ConfigFile, Json, PresetName, about_to_serve

if TYPE_CHECKING:
    from controlplane.fleet.registry import Registry

_Reply = TypeVar("_Reply")

fleet_app = typer.Typer(name="fleet", no_args_is_help=True, help="Many engines behind one Envoy.")
engines_app = typer.Typer(
    name="engines",
    no_args_is_help=True,
    help="The engines of a fleet: list, add, drain, remove. Its daemons hear of it within seconds.",
)

Name = Annotated[str | None, typer.Option("--name", help="The fleet's name. Default: fleet.")]
NameOf = Annotated[str, typer.Option("--name", help="The fleet's name.")]
Servers = Annotated[
    str | None,
    typer.Option("--nats", help="URL of the NATS servers that all nodes use; several with commas between them."),
]
BusOf = Annotated[str, typer.Option("--nats", envvar="PENSTOCK_NATS_URL", help="URL of the fleet's NATS servers.")]
Place = Annotated[str, typer.Argument(metavar="PLACE", help="The engine, NODE/engine-PORT, as its events name it.")]


@fleet_app.command(rich_help_panel="Run it")
def up(
    config: ConfigFile = None,
    preset: PresetName = None,
    name: Name = None,
    nats: Servers = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT or unix:PATH at which Envoy asks where each turn goes.")
    ] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT of the page and of /metrics, or off.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine",
            help="An engine to begin with: NODE/engine-PORT=HOST:PORT, with `,plain` behind it if it has no "
            "plugin. Repeatable.",
        ),
    ] = None,
    endpoints: Annotated[
        Path | None, typer.Option(help="File in which Envoy reads the engines' addresses; it is kept up to date.")
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(help="How many of the fleet's daemons Envoy asks before this one; 0: none, it is preferred."),
    ] = None,
    state_dir: Annotated[
        str | None, typer.Option("--state-dir", help="Folder of snapshots; each daemon of a machine has its own.")
    ] = None,
    time_scale: Annotated[
        float | None,
        typer.Option("--time-scale", help="For demos: seconds of engine time that pass in one second."),
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a daemon of the fleet: it says for each turn when it may go, and to which engine.

    Run two, on two machines, with `--rank 0` and `--rank 1`, and name both to Envoy in that order. One leads; the
    other one follows the same stream and takes over with all that the leader knew: after 12 s if its machine is
    lost, at once if it is stopped. Turns that wait meanwhile go on waiting.

    Nodes keep what is theirs: each node's own daemon lets in what the fleet sends it, keeps contexts and orders
    turns, best by the same preset (`penstock presets --fleet`). Cut off from the fleet a node goes on alone, and
    without any fleet daemon Envoy sends each session to an engine by itself.
    """
    about_to_serve(log_level)
    from controlplane.fleet.compose import run_fleet
    from controlplane.fleet.settings import FleetSource

    options = {
        "preset": preset,
        "node": name,
        "nats_url": nats,
        "state_dir": state_dir,
        "time_scale": time_scale,
        "fleet.listen": listen,
        "fleet.engines": engine or None,
        "fleet.endpoints": None if endpoints is None else str(endpoints),
        "fleet.rank": rank,
        "http.listen": http,
    }
    run_fleet(FleetSource(path=config, options=options))


@fleet_app.command(rich_help_panel="Run it")
def drain(nats: BusOf, name: NameOf = "fleet") -> None:
    """Have the leading daemon hand over to another one, as before its machine is taken down.

    Its turns go on, and turns that wait go on waiting. Without another daemon it leads on.
    """
    import anyio

    from controlplane.core.model.errors import EngineUnavailable
    from controlplane.fleet.stream import FleetBus

    async def ask() -> str:
        bus = FleetBus(nats, name)
        await bus.connect()
        try:
            return await bus.ask_to_hand_over()
        finally:
            await bus.close()

    reply = anyio.run(ask)
    if not reply:
        raise EngineUnavailable(f"no daemon of fleet {name!r} leads there")
    typer.echo(reply)


@engines_app.command("list")
def list_engines(nats: BusOf, name: NameOf = "fleet", json: Json = False) -> None:
    """List the fleet's engines, and which of them drain. Whether each answers, `penstock status` tells."""
    from controlplane.operate.printing import echo, print_json

    found = _with_registry(nats, name, lambda known: known.engines())
    if json:
        print_json(found)
        return
    for engine in found:
        kind = "" if engine.has_plugin else "  no plugin"
        echo(f"{engine.place:<32} {engine.address:<24} {engine.standing}{kind}")


@engines_app.command("add")
def add_engine(
    place: Place,
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where Envoy reaches it.")],
    nats: BusOf,
    name: NameOf = "fleet",
    plain: Annotated[bool, typer.Option("--plain", help="It has no plugin, and tells nothing of its own.")] = False,
    pool_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that its KV memory holds, where its metrics page does not tell.")
    ] = 0,
) -> None:
    """Add an engine, or let one that drains serve again."""
    from controlplane.fleet.registry import checked
    from controlplane.fleet.roster import Engine

    engine = checked(Engine(place=place, address=address, has_plugin=not plain, pool_tokens=pool_tokens))
    _with_registry(nats, name, lambda known: known.put(engine))


@engines_app.command("drain")
def drain_engine(place: Place, nats: BusOf, name: NameOf = "fleet") -> None:
    """Send an engine no more programs. Turns on it end; its programs go on elsewhere with their next turn."""
    from dataclasses import replace

    from controlplane.core.model.errors import ConfigError
    from controlplane.fleet.roster import Standing

    async def stop(known: "Registry") -> None:
        found = {engine.place: engine for engine in await known.engines()}
        if place not in found:
            raise ConfigError(f"no engine {place!r}; there are: {', '.join(found) or 'none'}")
        await known.put(replace(found[place], standing=Standing.DRAINING))

    _with_registry(nats, name, stop)


@engines_app.command("remove")
def remove_engine(place: Place, nats: BusOf, name: NameOf = "fleet") -> None:
    """Take an engine out of the fleet. Turns on it end there; its contexts are computed again elsewhere."""
    _with_registry(nats, name, lambda known: known.remove(place))


def _with_registry(nats: str, name: str, ask: "Callable[[Registry], Awaitable[_Reply]]") -> _Reply:
    import anyio

    from controlplane.fleet.registry import registry

    async def asking() -> _Reply:
        async with registry(nats, name) as known:
            return await ask(known)

    return anyio.run(asking)


fleet_app.add_typer(engines_app, rich_help_panel="Run it")
fleet_app.add_typer(fleet_envoy.commands)

"""``penstock fleet envoy-config | demo``: the fleet's data plane, and a whole fleet on one machine to try it on."""

from pathlib import Path
from typing import Annotated

import typer

commands = typer.Typer()  # part of `penstock fleet`


@commands.command("envoy-config", rich_help_panel="Set it up")
def envoy_config(
    picker: Annotated[
        list[str],
        typer.Option(
            "--picker", help="HOST:PORT where a fleet daemon serves Envoy, the preferred one first. Repeatable."
        ),
    ],
    endpoints: Annotated[
        Path, typer.Option(help="The file of the engines' addresses, which `penstock fleet up` keeps.")
    ] = Path("eds.json"),
    engine: Annotated[
        list[str] | None,
        typer.Option(
            "--engine", help="IP:PORT of an engine, for a file of addresses that is not there yet. Repeatable."
        ),
    ] = None,
    listen: Annotated[str, typer.Option(help="Where clients reach Envoy.")] = "127.0.0.1:8080",
    admin: Annotated[
        str, typer.Option(help="Envoy's own page: whoever reaches it can end Envoy.")
    ] = "127.0.0.1:9901",
    name: Annotated[str, typer.Option(help="The fleet's name.")] = "fleet",
    largest_body: Annotated[
        int, typer.Option(min=1, max=1 << 30, help="Largest request body in bytes; a larger one gets a 413.")
    ] = 32 << 20,
    health_path: Annotated[str, typer.Option(help="What engines answer with 200 while they serve.")] = "/health",
    watch_bodies: Annotated[
        bool,
        typer.Option(
            "--watch-bodies",
            help="Copy answers to the daemon, which reads the usage of engines without a plugin. Costs CPU there.",
        ),
    ] = False,
    otlp_endpoint: Annotated[
        str,
        typer.Option(
            help="Tell a collector at http://HOST:PORT a span of each turn, by OTLP over HTTP. Default: none."
        ),
    ] = "",
    trace_ratio: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of requests that are traced where clients do not decide that."),
    ] = 1.0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write here. Default: print it.")] = None,
) -> None:
    """Write Envoy's configuration for a fleet: `envoy -c envoy.yaml` then serves it.

    Envoy carries the turns; a fleet daemon says for each when it may go and to which engine. What happens when
    something fails:

    - **The daemon that it asks dies**: running turns go on. Held turns are asked again of the other one, with the
      time that they have waited. A frozen one is noticed after 3 to 4 s; one that stalls for less keeps its turns.

    - **The only daemon restarts**: what it held waits 6 to 9 s and asks it again, with the time that it has waited.

    - **All daemons are gone**: after about half a second each turn goes to an engine by a hash of its session's
      header, so that a session stays on its engine. Requests that name their program in the body go anywhere.

    - **An engine dies**: a turn that had not reached it goes to the second engine that the daemon named. What ran
      on it is cut, and never run a second time by Envoy: clients ask again.

    - **A body is too large**: 413. An engine's own 429 and 503 are passed on.

    TLS, HTTP/2 for clients and access logs are the site's own: add them to the listener `front`. Daemons and
    engines are reached without TLS: keep them on a private network.
    """
    from controlplane.core.model.errors import ConfigError
    from controlplane.fleet.envoy import DataPlane, bootstrap, write_endpoints
    from controlplane.fleet.roster import Engine

    plane = DataPlane(
        pickers=tuple(picker),
        endpoints=endpoints,
        name=name,
        listen=listen,
        admin=admin,
        largest_body_bytes=largest_body,
        health_path=health_path,
        watches_bodies=watch_bodies,
        otlp_endpoint=otlp_endpoint,
        trace_ratio=trace_ratio,
    )
    text = bootstrap(plane)
    try:
        if not endpoints.exists():  # Envoy does not begin without
            write_endpoints(endpoints, (Engine(place=at, address=at) for at in engine or ()))
        if out is not None:
            out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot write there: {error.strerror}") from None
    if out is None:
        typer.echo(text, nl=False)


@commands.command("demo", rich_help_panel="Try it")
def demo(
    agents: Annotated[int, typer.Option(min=1, max=1000, help="How many programs run at once.")] = 12,
    seconds: Annotated[float, typer.Option(min=0, help="How long; 0: until q.")] = 60.0,
    kill_every: Annotated[
        float, typer.Option(min=0, help="Kill or freeze some process after so many seconds; 0: only by key.")
    ] = 0.0,
    kills: Annotated[int, typer.Option(min=0, help="End after so many; 0: the time counts.")] = 0,
    seed: Annotated[int, typer.Option("--seed", "-s", min=0, help="Which process when.")] = 1,
    engines: Annotated[int, typer.Option(min=1, max=16, help="Engine doubles.")] = 3,
    folder: Annotated[Path | None, typer.Option(help="Keep logs and settings there.")] = None,
) -> None:
    """Run a whole fleet on this machine: NATS cluster, engine doubles, two fleet daemons, two Envoys, and agents.

    Each process has a key that kills it; it is started again within 3 s. At the end stands what it cost: programs
    lost, requests run twice, requests that failed and why, and how long the fleet was not whole after each kind of
    fault. Exits with 1, and keeps the logs, if a program was lost, a request was run twice, or one failed that was
    not on a killed engine or Envoy. Ctrl-C ends it at once with what there is.
    """
    from controlplane.lab.fleet.demo import FleetDemoOptions, run_fleet_demo
    from controlplane.lab.fleet.site import SiteOptions

    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    options = FleetDemoOptions(
        agents=agents,
        seconds=seconds,
        kill_every_s=kill_every,
        kills=kills,
        seed=seed,
        patience=1.0,  # so that it tells of each how long it took
        folder=folder,
        site=SiteOptions(engines=engines),
    )
    result = run_fleet_demo(options)
    raise typer.Exit(130 if result.stopped else 0 if result.is_good else 1)

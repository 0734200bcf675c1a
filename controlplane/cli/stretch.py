"""The options of every command that asks something of a recorded stretch, written once."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from controlplane.cli.options import HARDWARE

if TYPE_CHECKING:  # what the command line needs not load to show its help
    from controlplane.lab.whatif.replays import Replays

LOG = typer.Argument(help="A log that `penstock up --record` wrote, or still writes.")
_PLACE = "replays"


def _replays(
    log: Path,
    *,
    since: Annotated[
        float | None,
        typer.Option(help="Begin so many seconds after the log's first event; before its last one, if negative."),
    ] = None,
    until: Annotated[float | None, typer.Option(help="End there, likewise.")] = None,
    repeat: Annotated[
        int,
        typer.Option(
            min=1, max=100, help="How often each side is simulated, with arrivals and tool times a little shifted."
        ),
    ] = 3,
    chunk_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens in one step of the engine's chunked prefill.")
    ] = HARDWARE.chunk_tokens,
    max_running: Annotated[
        int, typer.Option(min=1, help="Most turns that the engine runs at once.")
    ] = HARDWARE.max_running,
) -> "Replays":
    """The stretch of ``log`` that the options choose."""
    from controlplane.lab.whatif.replays import Replays, Stretch

    return Replays(
        Stretch(
            log=log,
            since_s=since,
            until_s=until,
            repeat=repeat,
            chunk_tokens=chunk_tokens,
            max_running=max_running,
        )
    )


def of_a_stretch(command: Callable[..., None]) -> Callable[..., None]:
    """``command``, which gets its ``replays`` of a log from these options: they stand where ``replays`` stood."""
    shared = [each for each in inspect.signature(_replays).parameters.values() if each.name != "log"]
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command).parameters.values():
        parameters += shared if each.name == _PLACE else [each.replace(kind=inspect.Parameter.KEYWORD_ONLY)]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        chosen = {each.name: given.pop(each.name) for each in shared}
        command(**given, **{_PLACE: functools.partial(_replays, **chosen)})

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run

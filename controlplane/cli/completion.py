"""The names that the shell offers at Tab. Nothing here may fail or print."""

import itertools
from collections.abc import Callable, Iterable

import typer

from controlplane.core.model.text import is_printable

_MOST = 200  # programs


def _offered(find: Callable[[typer.Context], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Complete with the found names that begin as typed, or with none if anything goes wrong."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        try:
            return [name for name in find(ctx) if name.startswith(incomplete) and is_printable(name)]
        except Exception:
            return []

    return complete


@_offered
def presets(_: typer.Context) -> Iterable[str]:
    """Names of the presets."""
    from controlplane.core.policies.presets import PRESETS

    return PRESETS


@_offered
def programs(ctx: typer.Context) -> Iterable[str]:
    """Programs that the daemon knows now, by its control API."""
    from controlplane.operate.client import connect

    asked = ctx.params
    with connect(asked.get("api"), asked.get("node") or "local", asked.get("state_dir")) as client:
        return [program.program_id for program in client.call("ListPrograms", limit=_MOST).programs]


@_offered
def decided(ctx: typer.Context) -> Iterable[str]:
    """Programs in the decision log, the latest first."""
    from controlplane.operate.explain import names
    from controlplane.transport.endpoint import default_state_dir
    from controlplane.wire.decisions import log_path, read_decisions

    asked = ctx.params
    nodes, folder = asked.get("node") or ["local"], asked.get("state_dir") or default_state_dir()
    paths = [*(log_path(node, folder) for node in nodes), *(asked.get("log") or ())]
    found = (names(read_decisions(path))[::-1] for path in paths if path.exists())
    return list(dict.fromkeys(itertools.chain.from_iterable(found)))[:_MOST]

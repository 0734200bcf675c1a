"""What the commands of soaks have in common: how many, from which seed, in a folder that is gone afterwards."""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path


def command(
    soak: Callable[..., Awaitable[int]],
    *,
    prog: str,
    about: str | None,
    counted: str,
    default: int,
    choices: Mapping[str, Sequence[str]] | None = None,
    numbers: Mapping[str, float] | None = None,
) -> int:
    """Run ``soak(count, seed, folder)`` as the command line says; its exit status.

    ``choices``: more arguments of ``soak`` by their names, and what each may be; the first is the default.
    ``numbers``: likewise, with their defaults.
    """
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument(f"--{counted}", dest="count", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    for name, values in (choices or {}).items():
        parser.add_argument(f"--{name}", choices=values, default=values[0], help="default: %(default)s")
    for name, value in (numbers or {}).items():
        parser.add_argument(f"--{name}", type=float, default=value, help="default: %(default)g")
    arguments = parser.parse_args()
    chosen = {name: getattr(arguments, name) for name in (*(choices or {}), *(numbers or {}))}

    async def run() -> int:
        with tempfile.TemporaryDirectory() as folder:
            return await soak(arguments.count, arguments.seed, Path(folder), **chosen)

    return asyncio.run(run())

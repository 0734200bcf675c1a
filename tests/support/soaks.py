"""What the commands of soaks have in common: how many, from which seed, in a folder that is gone afterwards."""

import argparse
import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path


def command(
    soak: Callable[[int, int, Path], Awaitable[int]], *, prog: str, about: str | None, counted: str, default: int
) -> int:
    """Run ``soak(count, seed, folder)`` as the command line says; its exit status."""
    parser = argparse.ArgumentParser(prog=prog, description=about)
    parser.add_argument(f"--{counted}", dest="count", type=int, default=default)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()

    async def run() -> int:
        with tempfile.TemporaryDirectory() as folder:
            return await soak(arguments.count, arguments.seed, Path(folder))

    return asyncio.run(run())

"""The thread that watches a configuration file does not keep a daemon that ends."""

import itertools
import time
from pathlib import Path

import pytest
from anyio import sleep

from controlplane.config import Config, Source
from controlplane.eventloop import task_group
from controlplane.shell.reload import Reloader

LONGEST_S = 3.0  # a look at whether it is over comes 20 times a second, and by itself the thread looks up after 5 s


@pytest.mark.asyncio
async def test_who_watches_ends_at_once(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    windows = itertools.count(1)

    def write() -> None:
        file.write_text(f'preset = "fcfs"\n[admission]\nwindow = {next(windows)}\n')

    write()
    source = Source(path=file)
    taken_over: list[Config] = []
    reloader = Reloader(source, source.read(), taken_over.append)
    async with task_group() as group:
        group.start_soon(reloader.watch)
        while not taken_over:  # it watches
            write()
            await sleep(0.5)
        began_s = time.monotonic()
        group.cancel_scope.cancel()
    assert time.monotonic() - began_s < LONGEST_S

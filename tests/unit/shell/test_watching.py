"""The thread that watches a configuration file: it does not keep a daemon that ends, and takes what it has seen."""

import itertools
import time
from functools import partial
from pathlib import Path

import pytest
import watchfiles
from anyio import sleep

from controlplane.config import Config, Source
from controlplane.eventloop import task_group
from controlplane.shell import reload
from controlplane.shell.reload import Reloader

BY_ITSELF_S = 600.0  # the thread looks up; a look at whether it is over comes 20 times a second


@pytest.mark.asyncio
async def test_who_watches_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = partial(watchfiles.awatch, rust_timeout=round(BY_ITSELF_S * 1000))
    monkeypatch.setattr(watchfiles, "awatch", patient)
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
    assert time.monotonic() - began_s < BY_ITSELF_S / 10


@pytest.mark.asyncio
async def test_a_file_that_is_written_again_meanwhile_is_not_read_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty file is a good one, in which everything is as by default."""
    file = tmp_path / "penstock.toml"
    file.write_text('preset = "fcfs"\n')
    source = Source(path=file)
    taken_over: list[Config] = []
    settled = reload._settled

    async def settled_and_begun_again(path: Path) -> bytes | None:
        content = await settled(path)
        path.write_text("")
        return content

    monkeypatch.setattr(reload, "_settled", settled_and_begun_again)
    reloader = Reloader(source, source.read(), taken_over.append)
    async with task_group() as group:
        group.start_soon(reloader.watch)
        lease_s = 6
        while not taken_over:
            file.write_text(f'preset = "fcfs"\nlease_s = {lease_s}\n')
            lease_s += 1
            await sleep(0.5)
        group.cancel_scope.cancel()
    assert {config.preset for config in taken_over} == {"fcfs"}

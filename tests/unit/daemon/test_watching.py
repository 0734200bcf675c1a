"""The thread that watches a configuration file: it does not keep a daemon that ends, and takes what it has seen."""

import itertools
import os
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import watchfiles
from anyio import move_on_after, sleep

from controlplane.config import Config, Source
from controlplane.core.model.errors import ConfigError
from controlplane.daemon.process.reload import Reloader
from controlplane.eventloop import task_group

BY_ITSELF_S = 600.0  # the thread looks up; a look at whether it is over comes 20 times a second


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


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "emptied": (lambda path: path.write_text(" \n"), "it is empty"),
    "of 3 GB": (sparse, "more than 262,144 bytes"),
    "one byte too long": (lambda path: path.write_bytes(b"#" * ((1 << 18) + 1)), "more than 262,144 bytes"),
    "without end": (lambda path: path.symlink_to("/dev/zero"), "expected a regular file"),
    "a folder": (lambda path: path.mkdir(), "Is a directory"),
    "gone": (lambda path: None, "No such file"),
    "zeros": (lambda path: path.write_bytes(bytes(4096)), "not TOML"),
}


async def test_a_file_is_judged_alike_whoever_has_it_read(tmp_path: Path) -> None:
    """At the start, by a signal or an operator, and as it is watched; nothing of a wrong one is taken over."""
    file = tmp_path / "penstock.toml"
    numbers = itertools.count(6)

    def mend() -> None:
        draft.write_text(f'preset = "fcfs"\nlease_s = {next(numbers)}\n')
        draft.rename(file)

    draft = tmp_path / "draft"
    mend()
    source = Source(path=file)
    taken_over: list[Config] = []
    reloader = Reloader(source, source.read(), taken_over.append)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with task_group() as group:
        group.start_soon(reloader.watch)
        for make, reason in BAD.values():
            before = len(taken_over)
            while len(taken_over) == before:  # it watches
                mend()
                await sleep(0.3)
            make(draft)
            file.unlink()
            if os.path.lexists(draft):
                draft.rename(file)
            before = len(taken_over)
            with move_on_after(BY_ITSELF_S / 10):
                while reason not in reloader.state.refused:  # noqa: ASYNC110  by the thread that watches
                    await sleep(0.05)
            watched, by_signal = reloader.state.refused, reloader.reload("SIGHUP").refused
            with pytest.raises(ConfigError, match=reason):
                source.read()
            assert reason in watched
            assert watched == by_signal
            assert len(taken_over) == before
            if file.is_dir():
                file.rmdir()
        group.cancel_scope.cancel()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb < 100 << 10

"""An operator who may not enter the daemon's folder is told so: a service has a user of its own."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.lab.sim.profile import load_profile
from controlplane.operate.client import connect
from controlplane.transport.endpoint import read_endpoint
from controlplane.wire.decisions import read_decisions

NOBODY = 65534


@contextmanager
def kept_out_of(folder: Path) -> Iterator[None]:
    """The process may not enter ``folder``; root, who may enter everything, is somebody else meanwhile."""
    us = os.geteuid()
    folder.chmod(0)
    if us == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(us)
        folder.chmod(0o700)


def reach_daemon(folder: Path) -> None:
    with connect(None, "local", folder):
        pass


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (reach_daemon, "Permission denied. Run this as the daemon's user, or name its address with --api"),
        (lambda folder: read_endpoint("local", folder), "run this as the daemon's user, or set PENSTOCK_NATS_URL"),
        (
            lambda folder: list(read_decisions(folder / "decisions.jsonl")),
            "cannot read the decision log: Permission",
        ),
        (lambda folder: load_profile(folder / "profile.json"), "cannot read the profile: Permission denied"),
    ],
)
def test_who_may_not_look_is_told(look: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    with kept_out_of(tmp_path), pytest.raises(ConfigError, match=said):
        look(tmp_path)


@pytest.mark.parametrize("name", ["x" * 300, "a" * 5000])
def test_a_name_that_no_file_can_have_is_told(name: str, tmp_path: Path) -> None:
    for look in (
        lambda: reach_daemon(tmp_path / name),
        lambda: list(read_decisions(tmp_path / name)),
        lambda: load_profile(name),
    ):
        with pytest.raises(ConfigError, match="File name too long"):
            look()

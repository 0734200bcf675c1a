"""Penstock is switched off by a command, whatever its configuration says."""

from pathlib import Path

import pytest

from controlplane.config import Config, Source
from controlplane.daemon.process.reload import Reloader

FILE = 'preset = "penstock"\nheartbeat_s = 0.5\n[admission]\nbeta = 0.65\n[retention]\npolicy = "never"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("left", [FILE, "beta = [", "", None])
def test_it_is_off_with_sections_that_do_not_suit_and_with_a_file_that_is_wrong_by_now(
    file: Path, left: str | None
) -> None:
    source, taken_over = Source(path=file), list[Config]()
    reloader = Reloader(source, source.read(), taken_over.append)
    configured = reloader.config
    file.unlink() if left is None else file.write_text(left)
    assert reloader.set_preset("fcfs").refused == ""
    assert [each.is_stock for each in taken_over] == [True]
    assert taken_over[0].heartbeat_s == 0.5
    assert not any(name.startswith("admission") for name in reloader.resolved.origins)

    file.write_text(FILE.replace("0.65", "0.6"))
    assert reloader.reload("it was mended").refused == ""
    assert reloader.config.is_stock, "until it is switched on again"
    file.write_text(FILE)
    assert reloader.set_preset("penstock").refused == ""
    assert reloader.config == configured

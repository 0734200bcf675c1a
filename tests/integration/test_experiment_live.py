"""An experiment of a running daemon: slices change what is in force, and survive whatever the daemon does not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.daemon_process import BusClient, DaemonProcess, bus_of, queued, running

from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds

SLICE_S = 4.0
CONFIG = (
    f'preset = "penstock"\n[admission]\nwindow_initial = 50\n[experiment]\nslice_s = {SLICE_S}\nwashout_s = 1.0\n'
)
GATE, ENGINE = "test/gate/one", "test/engine/one"
POOL = ev.PoolSampled(total_blocks=1000, free_blocks=1000, block_tokens=16)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with running(tmp_path, config=CONFIG) as process:
        yield process


async def in_force(bus: BusClient, preset: str, *, stock: bool) -> dict[str, Any]:
    def looks(status: dict[str, Any]) -> bool:
        return bool(status["status"]["preset"] == preset and status["status"]["experiment"]["is_stock"] is stock)

    found: dict[str, Any] = (await bus.status_where(looks, f"{preset} in force"))["status"]
    return found


async def test_slices_take_turns_and_a_killed_daemon_goes_on_in_its_slice(daemon: DaemonProcess) -> None:
    async with bus_of(daemon) as bus:
        await bus.publish(ENGINE, 1, [POOL])
        await bus.publish(GATE, 1, queued("a", "b"))
        stock = await in_force(bus, "fcfs", stock=True)
        began_ns, ends_ns = stock["experiment"]["began_ns"], stock["experiment"]["slice_ends_ns"]
        assert ends_ns % seconds(SLICE_S) == 0
        assert stock["config"]["version"] == 1, "a slice is no configuration"
        daemon.kill()
    daemon.start()
    async with bus_of(daemon) as bus:
        after = (await bus.status_where(lambda s: s["status"]["experiment"]["began_ns"], "an experiment"))["status"]
        assert after["experiment"]["began_ns"] == began_ns, "it goes on"
        await in_force(bus, "penstock", stock=False)
        await in_force(bus, "fcfs", stock=True)
        said = msgspec.json.decode(daemon.penstock("gain", "--json").stdout)
        assert said["preset"] == "penstock"
        assert "nothing to compare yet" in daemon.penstock("status").stdout
        assert daemon.penstock("set-preset", "fcfs").returncode == 0, "its [admission] is of another preset"
    daemon.stop()


async def test_without_it_nothing_is_measured(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        async with bus_of(process) as bus:
            assert (await bus.status_where(lambda s: True, "a status"))["status"]["experiment"] is None
        assert "no experiment" in process.penstock("gain").stdout

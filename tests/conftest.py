"""Fixtures that every room's tests may use: first of all the real nats-server, never a double of it."""

import json
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from support.daemon_process import BusClient
from support.nats import NatsServer

# The same examples every time, or with HYPOTHESIS_PROFILE=search many new ones.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("repeatable", max_examples=60, stateful_step_count=40, derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=1000, stateful_step_count=60, **_COMMON)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A shell without job control starts what it puts into the background with interrupts ignored, and every process
# that a test starts would inherit that: those that are to end by an interrupt would not.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note what a set of tests took, where make asks for it."""
    if not (folder := os.environ.get("PENSTOCK_TEST_CPU")):
        return
    used, engines = os.times(), os.environ.get("PENSTOCK_TEST_ENGINES", "")
    took = {"tests": session.testscollected, "cpu_s": sum(used[:4])}
    name = re.sub(r"\W+", "-", " ".join((*session.config.args, engines))).strip("-")
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / f"{name[-100:]}.json").write_text(json.dumps(took))


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A nats-server of this test's own, empty, gone afterwards."""
    with NatsServer(tmp_path / "nats") as server:
        yield server


@pytest.fixture
async def _buses() -> AsyncIterator[None]:
    yield
    await BusClient.close_all()


@pytest.fixture(autouse=True)
def _no_bus_stays_open(request: pytest.FixtureRequest) -> None:
    """Where a test has an event loop, its clients of the bus are closed in it, however the test ends."""
    if request.node.get_closest_marker("asyncio") is not None:
        request.getfixturevalue("_buses")

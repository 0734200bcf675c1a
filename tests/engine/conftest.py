"""Fixtures of the engine tests: a real engine on this machine's CPU, with and without Penstock's plugin.

An engine takes about 20 s to start, so that one of each kind serves all tests of its version; a test names its
programs and prompts so that they are its own, and has a nats-server and a daemon of its own.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_scene import NODE, Bus, opened
from engine_server import ROOT, EngineServer, serving
from engine_versions import ENGINES, VLLM
from tiny_model import write_tiny_model
from vllm_server import MAX_HELD, VllmServer

_HOST_MEMORY = (
    "--enable-hierarchical-cache",
    *("--hicache-io-backend", "direct"),
    *("--hicache-mem-layout", "layer_first"),
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "every_engine: runs on vLLM as well as on SGLang")
    config.addinivalue_line("markers", "vllm_only: runs on vLLM only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The first test of a kind starts its engine. Which are run is the first engine's to say."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.timeout(480))
    on_vllm = ENGINES[0].startswith(VLLM)
    left_out = [item for item in ours if not _runs(item, on_vllm)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _runs(item: pytest.Item, on_vllm: bool) -> bool:
    only = item.get_closest_marker("vllm_only") is not None
    return only or item.get_closest_marker("every_engine") is not None if on_vllm else not only


@pytest.fixture(scope="session", params=ENGINES[:1])
def engine_version(request: pytest.FixtureRequest) -> str:
    """The engine's version; when it changes, the engines of the one before end."""
    version: str = request.param
    return version


@pytest.fixture(scope="session")
def engine_env(engine_version: str) -> Path:
    """The environment that ``make engine-env`` made. It is needed: without it the test fails."""
    script = ROOT / "scripts" / "engine_env.py"
    command = [sys.executable, script, "--check", "--version", engine_version]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 0, f"the engine tests need their environment: {said.stderr.strip()}: make engine-env"
    return Path(said.stdout.strip())


@pytest.fixture(scope="session")
def engine_class(engine_version: str) -> type[EngineServer]:
    """The server of this engine."""
    return VllmServer if engine_version.startswith(VLLM) else EngineServer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: one word is one token, and no weights."""
    head_dim = 32 if ENGINES[0].startswith(VLLM) else 16
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", head_dim)


@pytest.fixture(scope="session")
def stock_engine(
    engine_class: type[EngineServer],
    engine_env: Path,
    tiny_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EngineServer]:
    """The engine as it is."""
    server = engine_class(tmp_path_factory.mktemp("stock"), environment=engine_env, model=tiny_model)
    yield from serving(server)


@pytest.fixture(scope="session")
def engine_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``plugin_engine`` looks for its bus."""
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="session")
def plugin_engine(
    engine_class: type[EngineServer],
    engine_env: Path,
    tiny_model: Path,
    engine_state_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EngineServer]:
    """The engine with the plugin, which has a bus only while a test has told it of one."""
    held = {"PENSTOCK_GATE_MAX_HELD": str(MAX_HELD)} if engine_class is VllmServer else {}
    server = engine_class(
        tmp_path_factory.mktemp("plugin"),
        environment=engine_env,
        model=tiny_model,
        plugins=("penstock",),
        variables={
            "PENSTOCK_NODE": NODE,
            "PENSTOCK_STATE_DIR": str(engine_state_dir),
            "PENSTOCK_GATE_KEEP_S": "1",
            "PENSTOCK_GATE_OPEN_STEP_S": "0.2",
            **held,
        },
    )
    yield from serving(server)


@pytest.fixture(scope="module")
def host_state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where ``host_engine`` looks for its bus."""
    return tmp_path_factory.mktemp("host-state")


@pytest.fixture(scope="module", params=["write_through"])
def write_policy(request: pytest.FixtureRequest) -> str:
    """When the engine copies to the host: as soon as there is something new, or when the device is full."""
    policy: str = request.param
    return policy


@pytest.fixture(scope="module")
def host_engine(
    write_policy: str,
    engine_env: Path,
    tiny_model: Path,
    host_state_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[EngineServer]:
    """SGLang with the plugin and host memory for twice its pool: another for each file, as their daemons differ."""
    server = EngineServer(
        tmp_path_factory.mktemp("host"),
        environment=engine_env,
        model=tiny_model,
        plugins=("penstock",),
        variables={"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(host_state_dir)},
        arguments=(*_HOST_MEMORY, "--hicache-write-policy", write_policy),
    )
    yield from serving(server)


@pytest.fixture
def bus(nats_server: Any, engine_state_dir: Path, tmp_path: Path) -> Iterator[Bus]:
    """A nats-server and daemons of this test's own; the plugin hears of them when the test begins to play."""
    yield from opened(Bus(nats_server, engine_state_dir, tmp_path))

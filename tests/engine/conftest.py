"""Fixtures of the engine tests: a real engine on this machine's CPU, with and without Penstock's plugin.

An engine takes 20 to 50 s to start, so that one of each kind serves all tests of its version; a test names its
programs and prompts so that they are its own, and has a nats-server and a daemon of its own.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_scene import NODE, Bus
from engine_server import EngineServer, Launch, environment_of, serving
from engine_versions import ENGINES, KIND
from tiny_model import write_tiny_model


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "engines(*names): runs on these engines only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The first test of a kind starts its engine. Which are run is the first engine's to say."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in ours:
        if item.get_closest_marker("timeout") is None:  # a module may have said longer
            item.add_marker(pytest.mark.timeout(1200))
    left_out = [
        item for item in ours if (mark := item.get_closest_marker("engines")) and KIND.name not in mark.args
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="session", params=ENGINES[:1])
def engine_version(request: pytest.FixtureRequest) -> str:
    """The engine's version; when it changes, the engines of the one before end."""
    version: str = request.param
    return version


@pytest.fixture(scope="session")
def engine_env(engine_version: str) -> Path:
    return environment_of(engine_version)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: one word is one token, and no weights."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", KIND.head_dim)


@pytest.fixture(scope="session")
def stock_engine(
    engine_env: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineServer]:
    """The engine as it is."""
    yield from serving(
        KIND.server_class(tmp_path_factory.mktemp("stock"), environment=engine_env, model=tiny_model)
    )


@pytest.fixture(scope="session")
def launch(engine_env: Path, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Runs an engine with the plugin for as long as a fixture lives: ``yield from launch(NAME, ARGUMENT, ...)``.

    It has a bus only while a test has told it of one.
    """

    def run(
        name: str,
        *arguments: str,
        variables: dict[str, str] | None = None,
        server_class: type[EngineServer] = KIND.server_class,
        environment: Path = engine_env,
        plugins: tuple[str, ...] = (),
        **more: Any,
    ) -> Iterator[EngineServer]:
        folder = tmp_path_factory.mktemp(name)
        server = server_class(
            folder,
            environment=environment,
            model=tiny_model,
            plugins=("penstock", *plugins),
            variables={"PENSTOCK_NODE": NODE, "PENSTOCK_STATE_DIR": str(folder), **(variables or {})},
            arguments=arguments,
            **more,
        )
        return serving(server)

    return run


@pytest.fixture(scope="session")
def plugin_engine(launch: Launch) -> Iterator[EngineServer]:
    yield from launch("plugin", variables={"PENSTOCK_GATE_KEEP_S": "1", "PENSTOCK_GATE_OPEN_STEP_S": "0.2"})


@pytest.fixture
def bus(nats_server: Any, tmp_path: Path) -> Iterator[Bus]:
    """A nats-server and daemons of this test's own; engines hear of them when the test begins to play."""
    made = Bus(nats_server, tmp_path)
    try:
        yield made
    finally:
        made.close()

"""The environment with the agent frameworks, a bus, and what was heard on it."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.agent_runs import NODE, python_of
from support.heard import Heard


@pytest.fixture(scope="session")
def agent_python() -> str:
    """The interpreter with OpenHands and mini-swe-agent."""
    return python_of("openhands")


@pytest.fixture(scope="session")
def others_python() -> str:
    """The interpreter with the other frameworks."""
    return python_of("others")


@pytest.fixture
def heard(nats_server: Any) -> Iterator[Heard]:
    heard = Heard(nats_server.url, NODE)
    try:
        yield heard
    finally:
        heard.close()

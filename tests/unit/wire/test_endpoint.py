"""Finding the bus."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.transport.endpoint import (
    Endpoint,
    default_state_dir,
    endpoint_path,
    read_endpoint,
    remove_endpoint,
    resolve_url,
    write_endpoint,
)
from controlplane.transport.roles import BusRole

URLS = {"engine": "nats://n-engine:e@127.0.0.1:4222"}
ENDPOINT = Endpoint(url="nats://127.0.0.1:4222", pid=7, boot_id="b", monitoring_url="http://127.0.0.1:8222")


def test_an_endpoint_reads_back_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    path = write_endpoint("n", ENDPOINT, tmp_path / "state")
    assert path == endpoint_path("n", tmp_path / "state")
    assert read_endpoint("n", tmp_path / "state") == ENDPOINT
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert read_endpoint("other", tmp_path / "state") is None


def test_only_its_own_daemon_removes_an_endpoint(tmp_path: Path) -> None:
    write_endpoint("n", ENDPOINT, tmp_path)
    assert not remove_endpoint("n", "somebody else", tmp_path)
    assert remove_endpoint("n", "b", tmp_path)
    assert not remove_endpoint("n", "b", tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"url": 3}',
        '{"url": ""}',
        '{"url": "x", "pid": []}',
        "{",
        '{"url": "x", "urls": 3}',
        '{"url": "x", "urls": {"engine": 3}}',
    ],
)
def test_a_broken_endpoint_file_is_named(tmp_path: Path, content: str) -> None:
    endpoint_path("n", tmp_path).write_text(content)
    with pytest.raises(ConfigError, match=r"n\.endpoint\.json: no endpoint file"):
        read_endpoint("n", tmp_path)


def test_the_folder_comes_from_the_environment() -> None:
    assert default_state_dir({"PENSTOCK_STATE_DIR": "/a", "XDG_STATE_HOME": "/b"}) == Path("/a")
    assert default_state_dir({"XDG_STATE_HOME": "/b"}) == Path("/b/penstock")
    assert default_state_dir({}) == Path.home() / ".local/state/penstock"


def test_an_explicit_url_wins_then_the_environment_then_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_NATS_URL", raising=False)
    resolve = resolve_url(None, "n", tmp_path, role=BusRole.ENGINE)
    with pytest.raises(EngineUnavailable, match="Start `penstock up`, or set PENSTOCK_NATS_URL"):
        resolve()
    write_endpoint("n", ENDPOINT, tmp_path)
    assert resolve() == ENDPOINT.url
    write_endpoint("n", Endpoint(url="nats://moved:1"), tmp_path)
    assert resolve() == "nats://moved:1"
    monkeypatch.setenv("PENSTOCK_NATS_URL", "nats://environment:1")
    assert resolve_url(None, "n", tmp_path, role=BusRole.ENGINE)() == "nats://environment:1"
    assert resolve_url("nats://explicit:1", "n", tmp_path, role=BusRole.ENGINE)() == "nats://explicit:1"


def test_each_role_takes_its_own_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_NATS_URL", raising=False)
    write_endpoint("n", replace(ENDPOINT, urls=URLS), tmp_path)
    assert resolve_url(None, "n", tmp_path, role=BusRole.ENGINE)() == URLS["engine"]
    assert resolve_url(None, "n", tmp_path, role=BusRole.DAEMON)() == ENDPOINT.url
    assert read_endpoint("n", tmp_path) == replace(ENDPOINT, urls=URLS)


def test_a_bad_node_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected node"):
        resolve_url("nats://x:1", "../etc", tmp_path, role=BusRole.ENGINE)

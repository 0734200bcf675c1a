"""The options of ``penstock gate``: which server they name, and what is said of those that cannot be."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from controlplane.core.model.errors import ConfigError
from controlplane.daemon.process.instance_lock import only_holder
from controlplane.fleet.outside import GateOptions, run_gate
from controlplane.fleet.upstream import Server, recognized, upstream_of
from controlplane.transport.endpoint import URL_VARIABLE

_NO_HOST = "no host .* is known"
_NO_URL = "expected http://HOST:PORT"


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The command narrows it for itself."""
    kept = os.umask(0o022)
    yield
    os.umask(kept)


@pytest.mark.parametrize(
    ("upstream", "address"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("127.0.0.1:8000/v1/", "127.0.0.1:8000"),
        ("http://127.0.0.1", "127.0.0.1:80"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("localhost:8000", "127.0.0.1:8000"),
    ],
)
def test_a_server_is_named_by_its_url(upstream: str, address: str) -> None:
    assert upstream_of(upstream).address == address


@pytest.mark.parametrize(
    ("upstream", "listen", "more", "what"),
    [
        ("", "127.0.0.1:1", {}, _NO_URL),
        ("http://127.0.0.1:0", "127.0.0.1:1", {}, _NO_URL),
        ("http://127.0.0.1:99999", "127.0.0.1:1", {}, _NO_URL),
        ("http://127.0.0.1:8000/v1/chat", "127.0.0.1:1", {}, _NO_URL),
        ("http://127.0.0.1:8000#a", "127.0.0.1:1", {}, _NO_URL),
        ("http://[::1:8000", "127.0.0.1:1", {}, _NO_URL),
        ("https://127.0.0.1:8000", "127.0.0.1:1", {}, "without TLS"),
        ("http://a..b:8000", "127.0.0.1:1", {}, _NO_HOST),
        (f"http://{'a' * 70}.invalid:8000", "127.0.0.1:1", {}, _NO_HOST),
        ("127.0.0.1:8000", "8080", {}, "expected HOST:PORT"),
        ("127.0.0.1:8000", "a..b:8080", {}, _NO_HOST),
        ("127.0.0.1:8000", "127.0.0.1:TAKEN", {}, "choose another"),
        ("localhost:FREE", "0.0.0.0:FREE", {}, "that is --upstream itself"),
        ("127.0.0.1:FREE", "localhost:FREE", {}, "that is --upstream itself"),
        ("127.0.0.1:8000", "localhost:FREE", {"node": "a/b"}, "expected --node"),
    ],
)
def test_what_cannot_be_is_said_at_once(
    tmp_path: Path, upstream: str, listen: str, more: dict[str, object], what: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        free_port = free.getsockname()[1]
        free.close()

        def filled(text: str) -> str:
            return text.replace("TAKEN", str(taken.getsockname()[1])).replace("FREE", str(free_port))

        options = GateOptions(upstream=filled(upstream), listen=filled(listen), state_dir=str(tmp_path), **more)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=what):
            run_gate(options, [])
    assert not list(tmp_path.iterdir())


def test_two_gates_of_a_node_do_not_share_a_port(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    options = GateOptions(upstream="127.0.0.1:8000", listen=listen, state_dir=str(tmp_path))
    with (
        only_holder(tmp_path / "local" / "gate-8000" / "gate.lock", "held"),
        pytest.raises(ConfigError, match=r"a gate of node 'local' stands before port 8000 already: process \d+"),
    ):
        run_gate(options, [])


def test_no_password_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="leave USER:PASSWORD@ out") as error:
        upstream_of("http://bob:sesame@127.0.0.1:8000")
    assert "sesame" not in str(error.value)
    monkeypatch.setenv(URL_VARIABLE, "nats://bob:sesame@h ost:1")
    with pytest.raises(ConfigError, match="NATS URL") as error:
        run_gate(GateOptions(upstream="127.0.0.1:8000", state_dir=str(tmp_path)), [])
    assert "sesame" not in str(error.value)


@pytest.mark.parametrize(
    ("workers", "front_end"), [(1, ""), (4, "SGLang with several tokenizer workers")], ids=["one", "several"]
)
async def test_sglang_is_known_without_its_metrics_too(workers: int, front_end: str) -> None:
    async def info(request: web.Request) -> web.Response:
        return web.json_response({"version": "0.5.23", "tokenizer_worker_num": workers})

    app = web.Application()
    app.add_routes([web.get("/server_info", info)])
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        found = await recognized(http, upstream_of(f"127.0.0.1:{server.port}"), wholly=False)
        assert found == Server(engine="sglang", version="0.5.23", front_end=front_end)


async def test_a_server_that_leaves_a_page_unanswered_is_there() -> None:
    async def version(request: web.Request) -> web.Response:
        return web.json_response({"version": "0.1"})

    async def metrics(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    app = web.Application()
    app.add_routes([web.get("/version", version), web.get("/metrics", metrics)])
    async with TestServer(app) as server, aiohttp.ClientSession() as http:
        upstream = upstream_of(f"127.0.0.1:{server.port}")
        assert await recognized(http, upstream, wholly=True) is None
        assert await recognized(http, upstream, wholly=False) == Server(version="0.1")
        await server.close()
        assert await recognized(http, upstream, wholly=False) is None

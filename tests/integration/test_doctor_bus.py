"""``penstock doctor`` on buses that are wrong in one way each: what it finds, what it advises, and how soon."""

import http.client
import socket
import ssl
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from support.nats_scenes import LOGIN, NO_JETSTREAM_HERE, other_program, server, tls
from support.ports import free_port

from controlplane.config import Config
from controlplane.eventloop import run
from controlplane.operate.bus_check import check_bus
from controlplane.operate.doctor import no_gate
from controlplane.operate.finding import State

JETSTREAM = 'jetstream { store_dir: "STORE" }'
AT = "nats://127.0.0.1:{}"
Scene = Callable[[Path, pytest.MonkeyPatch], AbstractContextManager[int]]


def on(config: str) -> Scene:
    return lambda folder, _: server(folder, config)


def with_tls(host: str, *, trusted: bool, verify: bool = False) -> Scene:
    def scene(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AbstractContextManager[int]:
        config = tls(folder, host, verify=verify)
        if trusted:
            monkeypatch.setenv("PENSTOCK_NATS_CA", str(folder / "ca.pem"))
        return server(folder, config)

    return scene


@contextmanager
def nothing(folder: Path, _: pytest.MonkeyPatch) -> Iterator[int]:
    yield free_port()


def says(words: bytes) -> Scene:
    return lambda _, __: other_program(words)


# What is there; the URL; which finding; how it stands; what is found, what is advised.
SCENES: dict[str, tuple[Scene, str, str, State, str, str]] = {
    "well": (on(JETSTREAM), AT, "bus", State.OK, "nats-server", ""),
    "nobody": (nothing, AT, "bus", State.BAD, "nobody listens at", "start the server"),
    "no host": (nothing, "nats://bus.invalid:{}", "bus", State.BAD, "no host", "correct the host name"),
    "SSH": (says(b"SSH-2.0-x\r\n"), AT, "bus", State.BAD, "begins with b'SSH-2.0-x", "correct the port"),
    "silence": (says(b""), AT, "bus", State.BAD, "it says nothing", "correct the port"),
    "no login": (on(LOGIN), AT, "bus", State.BAD, "refuses the login", "the server runs: correct the login"),
    "wrong password": (
        on(LOGIN), "nats://ops:wrong@127.0.0.1:{}", "bus", State.BAD, "refuses the login", "`penstock bus config`"
    ),
    "unknown authority": (
        with_tls("127.0.0.1", trusted=False), AT, "bus", State.BAD, "is not trusted", "set PENSTOCK_NATS_CA"
    ),
    "other host": (
        with_tls("bus.example", trusted=True), AT, "bus", State.BAD, "for another host", "as the certificate does"
    ),
    "no certificate": (
        with_tls("127.0.0.1", trusted=True, verify=True),
        AT, "bus", State.BAD, "wants a client's certificate", "set PENSTOCK_NATS_CERTIFICATE",
    ),
    "no TLS": (on(JETSTREAM), "tls://127.0.0.1:{}", "bus", State.LOOK, "it has no TLS", "write nats://"),
    "no JetStream": (on(""), AT, "JetStream", State.BAD, "off", "-js"),
    "not this account's": (
        on(NO_JETSTREAM_HERE), "nats://ops:secret@127.0.0.1:{}",
        "JetStream", State.BAD, "not for this account", "`jetstream: enabled`",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
def test_each_has_its_own_remedy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene, url, what, state, found, advice = SCENES[name]
    with scene(tmp_path / "server", monkeypatch) as port:
        config, began_s = Config(node="n", nats_url=url.format(port)), time.monotonic()
        findings = {each.what: each for each in run(check_bus, config, tmp_path)}
        assert time.monotonic() - began_s < 30  # 3 s where nothing else has the CPU
    assert (findings[what].state, found in findings[what].found) == (state, True), findings[what]
    assert advice in findings[what].advice
    if what != "bus":
        assert findings["bus"].state is State.OK


GATES: list[tuple[Exception, str, str]] = [
    (urllib.error.URLError(ConnectionRefusedError()), "nobody listens", "start the engine"),
    (urllib.error.URLError(socket.gaierror()), "no host", "host name"),
    (TimeoutError(), "no answer within 3 s", "hangs"),
    (urllib.error.URLError(ssl.SSLError("wrong version number")), "TLS fails", "write http://"),
    (urllib.error.HTTPError("u", 404, "", http.client.HTTPMessage(), None), "no plugin", "install penstock"),
    (urllib.error.HTTPError("u", 401, "", http.client.HTTPMessage(), None), "HTTP 401", "proxy"),
    (urllib.error.HTTPError("u", 503, "", http.client.HTTPMessage(), None), "HTTP 503", "has started"),
    (http.client.BadStatusLine("SSH"), "no gate", "correct the port"),
    (ValueError("not JSON"), "no gate", "correct the port"),
]


@pytest.mark.parametrize(("error", "found", "advice"), GATES, ids=lambda each: str(each)[:24])
def test_each_gate_that_is_none_has_its_own_remedy(error: Exception, found: str, advice: str) -> None:
    told = no_gate("http://127.0.0.1:1/penstock/health", error)
    assert found in told[0]
    assert advice in told[1]

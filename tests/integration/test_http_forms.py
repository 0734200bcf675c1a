"""How clients of the world speak HTTP, to each of our servers: it accepts, or says why it does not.

``FORMS`` names each way once; a server's row says what it makes of it. The environment's proxies lead nowhere here.
"""

import asyncio
import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.commands import penstock
from support.ports import free_port
from support.whole_loop import Loop

CHAT = json.dumps({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "a b"}]}).encode()
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
# Version, more headers, what follows the path, how the body is written.
FORMS: dict[str, tuple[str, str, str, str]] = {
    "HTTP/1.1": ("1.1", "Host: {host}\r\n", "", ""),
    "HTTP/1.0": ("1.0", "", "", ""),
    "a path that ends with a slash": ("1.1", "Host: {host}\r\n", "/", ""),
    "gzip": ("1.1", "Host: {host}\r\nContent-Encoding: gzip\r\n", "", "gzip"),
    "deflate": ("1.1", "Host: {host}\r\nContent-Encoding: Deflate\r\n", "", "deflate"),
    "identity": ("1.1", "Host: {host}\r\nContent-Encoding: identity\r\n", "", ""),
    "zstd": ("1.1", "Host: {host}\r\nContent-Encoding: zstd\r\n", "", ""),
    "a broken gzip": ("1.1", "Host: {host}\r\nContent-Encoding: gzip\r\n", "", ""),
    "a cut gzip": ("1.1", "Host: {host}\r\nContent-Encoding: gzip\r\n", "", "cut"),
    "chunked": ("1.1", "Host: {host}\r\n", "", "chunked"),
    "an upgrade to h2c": ("1.1", "Host: {host}\r\n" + H2C, "", ""),
}
GET = ("HTTP/1.1", "HTTP/1.0", "a path that ends with a slash", "an upgrade to h2c")
TURN = dict.fromkeys(FORMS, "200") | {
    "zstd": "415 unsupported_encoding",
    "a broken gzip": "400 bad_encoding",
    "a cut gzip": "400 bad_encoding",
    "an upgrade to h2c": "400 body_lost",
}
PAGE = dict.fromkeys(GET, "200") | {"a path that ends with a slash": "308"}
SERVERS = {
    "the gate and the engine double": ("double", "POST", "/v1/chat/completions", TURN),
    "the gate's health": ("double", "GET", "/penstock/health", dict.fromkeys(GET, "200")),
    "the daemon's page": ("page", "GET", "/healthz", PAGE),
    "the daemon's metrics": ("page", "GET", "/metrics", PAGE),
}


@pytest.fixture(scope="module", params=["127.0.0.1", "[::1]"])
def addresses(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of the double, and of a page whose configuration names it so; both on one of this machine's addresses."""
    folder = tmp_path_factory.mktemp("loop")
    page, api = (f"{request.param}:{free_port()}" for _ in range(2))
    (folder / "penstock.toml").write_text(f'[http]\nlisten = "{page}"\n[api]\nlisten = "{api}"\n')
    loop = Loop(
        folder,
        "penstock",
        engine=("--host", request.param.strip("[]")),
        daemon=("--config", str(folder / "penstock.toml")),
    )
    try:
        loop.start()
        yield {"double": loop.url.removeprefix("http://"), "page": page, "api": api, "folder": str(folder)}
    finally:
        loop.stop()


def body_of(form: str) -> bytes:
    if form == "gzip":
        return gzip.compress(CHAT[:9]) + gzip.compress(CHAT[9:])
    if form == "chunked":
        return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (CHAT[:9], CHAT[9:], b""))
    return {"deflate": zlib.compress(CHAT), "cut": gzip.compress(CHAT)[:-9]}.get(form, CHAT)


async def asked(address: str, method: str, path: str, form: str) -> tuple[str, str]:
    """The status and the body of the answer."""
    version, headers, ending, written = FORMS[form]
    head = f"{method} {path}{ending} HTTP/{version}\r\n{headers.format(host=address)}"
    body = body_of(written) if method == "POST" else b""
    if written == "chunked":
        head += "Transfer-Encoding: chunked\r\n"
    elif body:
        head += f"Content-Length: {len(body)}\r\n"
    host = urlsplit(f"//{address}")
    reader, writer = await asyncio.open_connection(host.hostname, host.port)
    try:
        close = "" if "Connection" in head else "Connection: close\r\n"
        writer.write(f"{head}{close}\r\n".encode() + body)
        status = (await reader.readline()).decode().split()[1]
        answer_head = await reader.readuntil(b"\r\n\r\n")
        lines = answer_head.lower().split(b"\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), -1)
        return status, (await (reader.readexactly(length) if length >= 0 else reader.read())).decode()
    finally:
        writer.close()


@pytest.mark.parametrize("server", SERVERS)
async def test_every_form_is_accepted_or_refused_with_the_reason(addresses: dict[str, str], server: str) -> None:
    at, method, path, expected = SERVERS[server]
    for form, wanted in expected.items():
        status, text = await asked(addresses[at], method, path, form)
        code = json.loads(text)["error"]["code"] if " " in wanted else ""
        assert f"{status} {code}".strip() == wanted, f"{form}: {text}"


def test_no_client_of_ours_takes_a_proxy_to_this_machine(
    addresses: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = Path(addresses["folder"])
    trace = folder / "own.jsonl"
    trace.write_text(json.dumps({"program_id": "p", "turns": [{"input_tokens": 640, "output_tokens": 64}]}) + "\n")
    node = ("--node", Loop.node, "--state-dir", str(folder))
    url = f"http://{addresses['double']}"
    for command in (
        ("status", *node, "--api", addresses["api"]),
        ("status", *node, "--api", f"http://{addresses['api']}/"),
        ("replay", str(trace), "--url", f"{url}/", *node, "-a", "closed:1", "--tokens-per-word", "64"),
    ):
        found = penstock(*command)
        assert found.returncode == 0, found.stderr
    found = penstock("doctor", *node, "--engine", url)
    assert "governed, 0 turns waiting" in found.stdout, found.stdout

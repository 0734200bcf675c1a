"""The server that a gate outside stands before: where it is, and what it turns out to be."""

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from controlplane.core.model.errors import ConfigError
from controlplane.fleet.metrics_page import PoolPage, read_page
from controlplane.gate.requests import HEALTH_PATH

_OWN_PATHS = ("", "/", "/v1", "/v1/")  # of a base URL: clients name the rest
_METRICS, _PROPS = "/metrics", "/props"
_WORKERS = "tokenizer_worker_num"  # of SGLang's /server_info
_MOST_BYTES = 16 << 20
SAYING = ("/version", "/server_info")
"""Where vLLM's servers, and SGLang's, say what they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """Where the server is: ``address`` is ``IP:PORT``, as Envoy wants it."""

    address: str
    port: int

    def place(self, node: str) -> str:
        """As a plugin in that engine would call itself."""
        return f"{node}/engine-{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What the server says of itself. ``engine``: its name in the field's terms, empty for one that is not known.

    ``gate`` is the mode of a gate in the server itself, empty for none. ``front_end`` is one without a place for a
    gate, where it is such.
    """

    engine: str = ""
    version: str = ""
    front_end: str = ""
    gate: str = ""
    pool_tokens: int = 0  # as its metrics page tells; 0: it does not

    @property
    def has_gate(self) -> bool:
        """Whether turns are held there, too."""
        return self.gate not in ("", "passive", "probe")

    @property
    def title(self) -> str:
        """For people."""
        return " ".join(filter(None, (self.engine or "a server of no known kind", self.version, self.front_end)))


def upstream_of(url: str) -> Upstream:
    """The server at ``http://HOST:PORT``. Raises ``ConfigError`` for what is no such URL, or no known host."""
    if "@" in url:  # which is not shown
        raise ConfigError("--upstream: leave USER:PASSWORD@ out: the gate passes on how each client proves itself")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = 80 if parts.port is None else parts.port
    except ValueError:  # of its brackets, or of its port
        parts, port = urlsplit(""), 0
    if parts.scheme == "https":
        raise ConfigError(f"--upstream {url}: the gate speaks to its server without TLS: name its http:// port")
    more = parts.query or parts.fragment or parts.path not in _OWN_PATHS
    if parts.scheme != "http" or not parts.hostname or not port or more:
        raise ConfigError(f"--upstream {url}: expected http://HOST:PORT, where the server listens")
    return Upstream(address=ip_and_port(parts.hostname, port, option=f"--upstream {url}"), port=port)


def ip_and_port(host: str, port: int, *, option: str) -> str:
    """``IP:PORT``, as Envoy wants it. Raises ``ConfigError``, which names ``option``, for a host nobody knows."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # the latter of what cannot be a name
        raise ConfigError(f"{option}: no host {host!r} is known") from None
    ip = str(min(found, key=lambda each: each[0] != socket.AF_INET)[4][0])  # a server listens at 0.0.0.0 mostly
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def gateless_front_end(said: Mapping[str, Any]) -> str:
    """What serves HTTP where those pages say this, if it is known to have no place for a gate; else empty."""
    if "rust_frontend_version" in said:
        return "vLLM's Rust front end"
    workers = said.get(_WORKERS)
    return "SGLang with several tokenizer workers" if isinstance(workers, int) and workers > 1 else ""


async def page_at(http: aiohttp.ClientSession, address: str, path: str) -> tuple[int, bytes]:
    """A page's status, and what it says if that is 200. Raises as ``aiohttp`` does."""
    data = b""
    async with http.get(f"http://{address}{path}", allow_redirects=False) as answer:
        while answer.status == 200 and (more := await answer.content.read(_MOST_BYTES - len(data))):
            data += more
        return answer.status, data


async def recognized(http: aiohttp.ClientSession, upstream: Upstream, *, wholly: bool) -> Server | None:
    """What answers there; None while nobody does, or, ``wholly``, while it leaves a page unanswered."""
    pages: dict[str, bytes] = {}
    for path in (*SAYING, HEALTH_PATH, _METRICS, _PROPS):
        try:
            _, pages[path] = await page_at(http, upstream.address, path)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            if wholly:
                return None
    if not pages:
        return None
    said = {name: value for path in SAYING for name, value in _object(pages.get(path, b"")).items()}
    health = _object(pages.get(HEALTH_PATH, b""))
    try:
        page = read_page(pages.get(_METRICS, b"").decode("utf-8", "replace"))
    except ValueError:
        page = PoolPage(engine="")
    props = _object(pages.get(_PROPS, b""))  # llama.cpp's
    has_slots = type(props.get("total_slots")) is int
    number = props.get("build_info") if has_slots else said.get("version")
    return Server(
        engine=page.engine or ("llamacpp" if has_slots else "sglang" if _WORKERS in said else ""),
        version=number if isinstance(number, str) else "",
        front_end=gateless_front_end(said),
        gate=str(health.get("mode", "")),
        pool_tokens=page.total_tokens,
    )


def _object(data: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}

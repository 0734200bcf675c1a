"""This machine's own addresses. What goes there goes straight, whatever proxy the environment names.

``http_proxy`` and its like are set for the whole machine, and few list 127.0.0.1 in ``no_proxy``. gRPC, urllib and
requests obey them; aiohttp and nats-py do not unless they are asked to.
"""

import urllib.request
from http.client import HTTPResponse
from ipaddress import ip_address
from typing import cast
from urllib.parse import urlsplit

_UNIX = "unix:"


def is_loopback(host: str) -> bool:
    """Whether the name is that of this machine alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def is_here(address: str) -> bool:
    """Whether ``address``, a URL, HOST:PORT or ``unix:PATH``, is on this machine."""
    if address.startswith(_UNIX):
        return True
    try:
        return is_loopback(urlsplit(address if "://" in address else f"//{address}").hostname or "")
    except ValueError:
        return False


def channel_options(address: str) -> list[tuple[str, int]]:
    """What a gRPC channel to that address needs beside its own options."""
    return [("grpc.enable_http_proxy", 0)] if is_here(address) else []


def open_url(url: str, timeout_s: float) -> HTTPResponse:
    """``urllib.request.urlopen``, and what it raises."""
    handlers = [urllib.request.ProxyHandler({})] if is_here(url) else []
    opener = urllib.request.build_opener(*handlers)
    return cast(HTTPResponse, opener.open(url, timeout=timeout_s))

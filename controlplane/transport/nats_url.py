"""Read NATS URLs as the world writes them: ``nats://user:password@one:4222,two:4222``.

What is special in a user, password or token is percent-encoded there (RFC 3986); nats-py does not decode it.
A URL may name several servers. Who has a login at the first uses it at those that name none.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from controlplane.core.model.errors import ConfigError

HOW_TO_WRITE = "in a user, password or token write : / ? # @ , % as %3A %2F %3F %23 %40 %2C %25"
_SCHEMES = ("nats", "tls", "ws", "wss")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+(?:%[\w.-]+)?\]|[^\s:/?#@\[\]]+)(?::(\d{0,5}))?(/[^\s?#]*)?")


class _Server(NamedTuple):
    scheme: str
    login: str  # as it is written; empty: none
    address: str  # host, port and path

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"


def connection_of(url: str) -> dict[str, Any]:
    """The arguments of ``nats.connect`` for that URL: ``servers``, and the login decoded.

    :raises ConfigError: it is no such URL. The message has no password in it.
    """
    servers = _servers(url)
    logins = {server.login for server in servers}
    if len(logins) == 1:
        return {"servers": [server.url for server in servers], **_decoded(logins.pop())}
    return {"servers": [_with_login(server) for server in servers]}  # nats-py has one login as an argument


def redact(url: str) -> str:
    """The URL as it may be shown: without what proves oneself."""
    if "@" not in url:
        return url
    try:
        return ",".join(server.url for server in _servers(url))
    except ConfigError:
        return url.rpartition("@")[2]  # whatever is before it may be a piece of a password


def _servers(url: str) -> list[_Server]:
    pieces = _pieces(url)
    found: list[_Server] = []
    scheme = login = ""
    for number, piece in enumerate(pieces, 1):
        prefix = _SCHEME.match(piece)
        own_login, at, address = piece[prefix.end() if prefix else 0 :].rpartition("@")
        if at and found and not prefix and not login:
            raise _bad(f"the comma before server {number} may be one of a password")
        scheme = prefix[1].lower() if prefix else scheme or "nats"
        if scheme not in _SCHEMES:
            raise _bad(f"server {number} begins with none of {', '.join(f'{each}://' for each in _SCHEMES)}")
        matched = _ADDRESS.fullmatch(address)
        if matched is None or (matched[2] and not 0 < int(matched[2]) < 1 << 16):
            raise _bad(f"server {number} has no HOST or HOST:PORT at its end")
        login = own_login if number == 1 else login
        found.append(_Server(scheme, own_login if at else login, address.rstrip("/").rstrip(":")))
    return found


def _pieces(url: str) -> list[str]:
    """The URL's servers. A comma after no address, as in ``nats://user:pass,word@host``, is the password's."""
    pieces: list[str] = []
    for piece in url.strip().split(","):
        before = pieces[-1] if pieces else ""
        if before and "@" not in before and not _ADDRESS.fullmatch(_SCHEME.sub("", before, count=1).strip()):
            pieces[-1] = f"{before},{piece}"
        elif piece.strip():
            pieces.append(piece)
    if not pieces:
        raise _bad("it is empty")
    return [piece.strip() for piece in pieces]


def _decoded(login: str) -> Mapping[str, str]:
    user, colon, password = login.partition(":")
    if colon:
        return {"user": unquote(user), "password": unquote(password)}
    return {"token": unquote(user)} if user else {}


def _with_login(server: _Server) -> str:
    """The URL with its login decoded, which is how nats-py takes one that is not that of all servers."""
    plain = f"{server.scheme}://{unquote(server.login)}@{server.address}" if server.login else server.url
    try:
        parts = urlsplit(plain)
        read = [parts.username, parts.password]
    except ValueError:
        read = []
    wanted = _decoded(server.login)
    if read != [wanted.get("user", wanted.get("token")), wanted.get("password")]:
        raise ConfigError("NATS URL: with a / ? # or the like in a user or password all servers take the same one")
    return plain


def _bad(what: str) -> ConfigError:
    return ConfigError(f"NATS URL: expected nats://USER:PASSWORD@HOST:PORT[,HOST:PORT]: {what}; {HOW_TO_WRITE}")

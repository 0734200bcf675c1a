"""The roles of the bus as nats-server reads them: JSON, which its configuration format includes."""

import json
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from controlplane.core.model.errors import ConfigError
from controlplane.files import replace_file
from controlplane.transport.endpoint import URL_VARIABLE
from controlplane.transport.roles import BusRole, permissions, user_name
from controlplane.transport.subjects import check_name
from controlplane.wire.files import MOST_SECRET_BYTES, read_text

Passwords = Mapping[BusRole, str]
ROLES_FILE = "roles.conf"
_PASSWORD_BYTES = 24


def users(node: str, passwords: Passwords) -> list[dict[str, Any]]:
    """A node's users, with what each may publish and hear."""
    return [_user(node, role, passwords[role]) for role in BusRole]


def _user(node: str, role: BusRole, password: str) -> dict[str, Any]:
    allowed = permissions(node, role)
    return {
        "user": user_name(node, role),
        "password": password,
        "permissions": {
            "publish": {"allow": list(allowed.publish)},
            "subscribe": {"allow": list(allowed.subscribe)},
        },
    }


def url_as(url: str, node: str, role: BusRole, passwords: Passwords) -> str:
    """``url``, which names nobody, for ``role``."""
    scheme, _, address = url.partition("://")
    return f"{scheme}://{user_name(node, role)}:{quote(passwords[role], safe='')}@{address}"


def stored_passwords(path: Path) -> dict[BusRole, str]:
    """Those in the file; what it lacks is made up and kept there, so that a restart changes nobody's."""
    try:
        known = json.loads(read_text(path, MOST_SECRET_BYTES))
        found = {role: known[role] for role in BusRole if isinstance(known.get(role), str) and known[role]}
    except (OSError, ValueError, AttributeError):
        found = {}
    if len(found) < len(BusRole):
        found = {role: found.get(role) or _new_password() for role in BusRole}
        write_secret(path, json.dumps(found, indent=2) + "\n")
    return found


def write_roles(folder: Path, nodes: Iterable[str], url: str) -> list[Path]:
    """Files for a server that several nodes share, and for those who connect to it; returns what is there now.

    ``roles.conf`` is the server's: an account for each node, so that none touches another's stream. A file
    ``NODE.ROLE.env`` holds the URL of one user. A password that such a file has already stays as it is.

    :raises ConfigError: no URL of a server, no name for a node, or nothing can be written there.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("nats", "tls", "ws", "wss") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(f"expected a URL such as tls://bus.example:4222, without a user, got {url[:80]!r}")
    accounts = {}
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for node in nodes:
            name = check_name(node, field="node")
            files = {role: folder / f"{name}.{role}.env" for role in BusRole}
            passwords = {role: _password_in(path) or _new_password() for role, path in files.items()}
            accounts[node] = {"jetstream": "enabled", "users": users(node, passwords)}
            for role, path in files.items():
                write_secret(path, f"{URL_VARIABLE}={url_as(url, node, role, passwords)}\n")
                written.append(path)
        roles = folder / ROLES_FILE
        write_secret(roles, json.dumps({"accounts": accounts}, indent=2) + "\n")
    except OSError as error:
        raise ConfigError(f"{folder}: cannot write there: {error.strerror or error}") from None
    return [roles, *written]


def _new_password() -> str:
    return secrets.token_urlsafe(_PASSWORD_BYTES)


def _password_in(path: Path) -> str:
    try:
        written = urlsplit(read_text(path, MOST_SECRET_BYTES).strip().partition("=")[2]).password
        return unquote(written or "")
    except (OSError, ValueError):
        return ""


def write_secret(path: Path, text: str) -> bool:
    """Write a file that only its owner can read, or who could read the one before; whether it was another."""
    try:
        if read_text(path, MOST_SECRET_BYTES) == text:
            return False
    except (OSError, ValueError):
        pass
    replace_file(path, [text.encode()], like_before=True)
    return True

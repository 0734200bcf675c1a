"""How to prove oneself to the NATS server, and make it prove itself: files named by environment variables.

The daemon, the hooks in the engine and those in agents read the same ones, so that a node's secrets are set in one
place and never written into a configuration.
"""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.core.errors import ConfigError

CREDENTIALS = "PENSTOCK_NATS_CREDENTIALS"
NKEY = "PENSTOCK_NATS_NKEY"
CA = "PENSTOCK_NATS_CA"
CERTIFICATE = "PENSTOCK_NATS_CERTIFICATE"
PRIVATE_KEY = "PENSTOCK_NATS_PRIVATE_KEY"


def nats_options(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """More arguments for ``nats.connect``; none where no variable is set.

    ``PENSTOCK_NATS_CREDENTIALS``: a .creds file (JWT and seed); ``PENSTOCK_NATS_NKEY``: a seed's file; both need
    ``pip install 'penstock[nkeys]'``. ``PENSTOCK_NATS_CA``: the authority of the server's certificate, in PEM;
    ``PENSTOCK_NATS_CERTIFICATE`` and ``PENSTOCK_NATS_PRIVATE_KEY``: one's own, where the server wants one. A user
    and password, or a token, go into the URL.

    :raises ConfigError: a file that is named cannot be read, or is not what it should be.
    """
    found: dict[str, Any] = {}
    if path := _file(environment, CREDENTIALS):
        found["user_credentials"] = path
    if path := _file(environment, NKEY):
        found["nkeys_seed"] = path
    authority, chain, key = (_file(environment, name) for name in (CA, CERTIFICATE, PRIVATE_KEY))
    if bool(chain) != bool(key):
        missing = PRIVATE_KEY if chain else CERTIFICATE
        raise ConfigError(f"{missing}: a certificate and its private key go together: set both", field=missing)
    if authority or chain:
        found["tls"] = _context(authority, chain, key)
    return found


def servers(url: str) -> str | list[str]:
    """What to give ``nats.connect`` for a URL, which may name several: ``nats://user:password@one:4222,two:4222``.

    Who proves himself at the first does so at those that name nobody: the client hands nothing on to servers of a
    cluster that it hears of from another.
    """
    if "," not in url:
        return url
    first, *others = [each.strip() for each in url.split(",")]
    scheme, slashes, address = first.rpartition("://")
    user, at, _ = address.rpartition("@")
    found = [first]
    for other in others:
        its_scheme, _, its_address = other.rpartition("://")
        named = its_address if "@" in its_address else f"{user}{at}{its_address}"
        found.append(f"{its_scheme or scheme}{slashes}{named}")
    return found


def _file(environment: Mapping[str, str], name: str) -> str | None:
    path = environment.get(name)
    if not path:
        return None
    try:
        with Path(path).open("rb"):
            return path
    except OSError as error:
        raise ConfigError(f"{name}: {path}: {error.strerror}", field=name) from None


def _context(authority: str | None, chain: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authority)
        if chain:
            context.load_cert_chain(chain, key)
    except (ssl.SSLError, OSError) as error:
        raise ConfigError(f"{CA}, {CERTIFICATE} or {PRIVATE_KEY}: {error}") from None
    return context

"""How to prove oneself to the NATS server, and make it prove itself: files named by environment variables.

The daemon, the hooks in the engine and those in agents read the same ones, so that a node's secrets are set in one
place and never written into a configuration.
"""

import os
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from controlplane.core.model.errors import ConfigError
from controlplane.transport.nats_url import HOW_TO_WRITE, connection_of
from controlplane.wire.files import MOST_SECRET_BYTES, read_bytes

CREDENTIALS = "PENSTOCK_NATS_CREDENTIALS"
NKEY = "PENSTOCK_NATS_NKEY"
CA = "PENSTOCK_NATS_CA"
CERTIFICATE = "PENSTOCK_NATS_CERTIFICATE"
PRIVATE_KEY = "PENSTOCK_NATS_PRIVATE_KEY"


def nats_options(url: str, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The arguments of ``nats.connect`` that say where to connect, and as whom.

    ``PENSTOCK_NATS_CREDENTIALS``: a .creds file (JWT and seed); ``PENSTOCK_NATS_NKEY``: a seed's file; both need
    ``pip install 'penstock-agents[nkeys]'``. ``PENSTOCK_NATS_CA``: the authority of the server's certificate, as
    PEM; ``PENSTOCK_NATS_CERTIFICATE`` and ``PENSTOCK_NATS_PRIVATE_KEY``: one's own, where the server wants one. A
    user and password, or a token, go into the URL.

    :raises ConfigError: the URL is none of NATS servers, or a file that is named is not what it should be.
    """
    found = connection_of(url)
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


def refusal(errors: Iterable[Exception]) -> str:
    """Why no server was reached, of all that went wrong on the way; empty: nothing is known.

    A server that refuses a login hangs up, too, so what comes last says the least.
    """
    texts = [str(error) or type(error).__name__ for error in errors]
    for text in texts:
        if "authorization" in text.lower() or "authentication" in text.lower():
            return (
                f"{text}: it refuses the login in the URL ({HOW_TO_WRITE}), or the files of {CREDENTIALS} or {NKEY}"
            )
    return texts[-1] if texts else ""


def _file(environment: Mapping[str, str], name: str) -> str | None:
    path = environment.get(name)
    if not path:
        return None
    try:
        read_bytes(Path(path), MOST_SECRET_BYTES)
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

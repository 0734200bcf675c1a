"""Who may read what a daemon writes down: its own user."""

import stat
from pathlib import Path

import pytest
from support.daemon_process import DaemonProcess, serving

pytestmark = pytest.mark.asyncio

OTHERS = {"test.sock": 0o660}  # for agents of the daemon's group


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_what_a_daemon_writes_is_its_users_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "test").mkdir(parents=True, mode=0o755)  # as an earlier version made it
    daemon = DaemonProcess(state, "--record", str(tmp_path / "run.jsonl"))
    daemon.start()

    try:
        await (await serving(daemon)).close()
        assert mode(state / "test") == 0o700
        made = [path for path in state.rglob("*") if path.name != "daemon.log"]  # that one is this test's
        assert {"daemon.lock", "jetstream", "test.sock", "test.control.sock"} <= {path.name for path in made}
        wrong = {str(path.relative_to(state)): oct(mode(path)) for path in made if mode(path) != _wanted(path)}
        assert wrong == {}
        assert mode(tmp_path / "run.jsonl") == 0o600
    finally:
        daemon.clean_up()


def _wanted(path: Path) -> int:
    return 0o700 if path.is_dir() else OTHERS.get(path.name, 0o600)

"""Who may read what a daemon writes down: its own user."""

import stat
from contextlib import suppress
from pathlib import Path

from support.daemon_process import running, serving

OTHERS = {"test.sock": 0o660}  # for agents of the daemon's group


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def modes(state: Path) -> dict[Path, tuple[int, int]]:
    """Of each file and folder its mode and the one that is wanted, as far as it is there when it is looked at.

    A snapshot is written beside the one before and then takes its name.
    """
    found = {}
    for path in state.rglob("*"):
        if path.name != "daemon.log":  # that one is this test's
            with suppress(FileNotFoundError):
                at = path.stat().st_mode
                wanted = 0o700 if stat.S_ISDIR(at) else OTHERS.get(path.name, 0o600)
                found[path.relative_to(state)] = stat.S_IMODE(at), wanted
    return found


async def test_what_a_daemon_writes_is_its_users_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "test").mkdir(parents=True, mode=0o755)  # as an earlier version made it
    with running(tmp_path, "--record", str(tmp_path / "run.jsonl")) as daemon:
        await (await serving(daemon)).close()
        assert mode(state / "test") == 0o700
        made = modes(state)
        assert {"daemon.lock", "jetstream", "test.sock", "test.control.sock"} <= {path.name for path in made}
        assert {str(path): oct(found) for path, (found, wanted) in made.items() if found != wanted} == {}
        assert mode(tmp_path / "run.jsonl") == 0o600

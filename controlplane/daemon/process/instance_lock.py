"""One daemon a node and state directory: the second is refused before it touches anything of the first.

The lock is the operating system's and ends with the process, however that ends. One that is frozen still holds it:
two that go on side by side would each grant the same slots.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from controlplane.core.model.errors import ConfigError


@contextmanager
def instance_lock(node: str, state_dir: Path) -> Iterator[None]:
    """Be the node's only daemon. Raises ``ConfigError``, which names the process that is."""
    with only_holder(
        _lock(node, state_dir), f"node {node!r} already has a daemon", "end it, or choose another --node"
    ):
        yield


@contextmanager
def only_holder(path: Path, what: str, to_do: str = "end it") -> Iterator[None]:
    """Hold the lock ``path``. Raises ``ConfigError``, which says ``what`` is so, for one that somebody holds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch()
        file = path.open("a+")
    except OSError as error:
        raise ConfigError(
            f"state_dir: cannot write {path}: {error.strerror or error}; choose another with --state-dir",
            field="state_dir",
        ) from error
    with suppress(OSError):  # somebody else's, which was made for us
        path.parent.chmod(0o700)  # an earlier version's was open to all
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(
                f"{what}: process {file.read(64).strip() or 'unknown'} holds {path}; {to_do}"
            ) from None
        with suppress(OSError):  # a full disk: then its number stays unknown
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def holder(node: str, state_dir: Path) -> int:
    """The process that is the node's daemon on this machine, also one that is frozen; 0: none that is known."""
    with suppress(OSError, ValueError, IndexError):
        inode = _lock(node, state_dir).stat().st_ino
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, process, file, *_ = line.split()
            if kind == "FLOCK" and file.rpartition(":")[2] == str(inode):
                return max(0, int(process))
    return 0


def _lock(node: str, state_dir: Path) -> Path:
    return state_dir / node / "daemon.lock"

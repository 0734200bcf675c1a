"""A browser for the tests of the daemon's page: says which there is, or installs Debian's where it may."""

import os
import shutil
import subprocess
import sys

NEEDED = ("chromium", "chromedriver")
PACKAGES = ("chromium", "chromium-driver")


def missing() -> list[str]:
    """The programs that are not on the path."""
    return [name for name in NEEDED if shutil.which(name) is None]


def main() -> int:
    """0: there is a browser now."""
    if not missing():
        return 0
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        print(f"no {' and no '.join(missing())}: install {' '.join(PACKAGES)}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"installing {' '.join(PACKAGES)}", file=sys.stderr)  # noqa: T201
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run([apt, *words], env=environment, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            return 1
    return 1 if missing() else 0


if __name__ == "__main__":
    sys.exit(main())

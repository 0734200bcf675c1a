"""Take the pictures of the documentation: `penstock top` and the daemon's page, of a node under load.

    .venv/bin/python scripts/screenshots.py [--folder docs/images]

A daemon, an engine double and a workload on this machine for a minute; Chromium for the page (make debian-tools).
"""

import argparse
import contextlib
import io
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from debian_tools import find
from rich.console import Console
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from controlplane.control_client import ControlClient, connect
from controlplane.top import History, places, screen

ROOT = Path(__file__).resolve().parent.parent
NODE = "gpu7"
SCALE = "20"
WARM_UP_S = 45.0
WIDTH, HEIGHT = 120, 30
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
ENGINE = ("engine-double", "--pool-tokens", "120000", "--tokens-per-word", "64")
LOAD = ("replay", "synthetic:swe-bench", "-n", "400", "--arrival", "poisson:0.3", "--tokens-per-word", "64")
LOOKS_A_PICTURE = 10  # at twenty times the speed there are twenty a second


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def loaded_node(folder: Path, page: str) -> Iterator[None]:
    """A node whose page is at ``page``, with programs."""
    config = folder / "penstock.toml"
    config.write_text(f'[http]\nlisten = "{page}"\n')
    common = ("--node", NODE, "--state-dir", str(folder), "--time-scale", SCALE)
    port = str(free_port())
    commands = (
        ("up", "--config", str(config), *common),
        (*ENGINE, "--port", port, *common),
        (*LOAD, "--scale-tools", "4", "--url", f"http://127.0.0.1:{port}", *common),
    )
    running: list[subprocess.Popen[bytes]] = []
    try:
        for words in commands:
            log = (folder / f"{words[0]}.log").open("wb")
            running.append(subprocess.Popen([sys.executable, "-m", "controlplane", *words], stdout=log, stderr=log))
            time.sleep(4)
        yield
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(20)


def take_top(client: ControlClient, until_s: float) -> str:
    """What ``penstock top`` shows after a while, as SVG."""
    history = History()
    for number, status in enumerate(client.watch("WatchStatus")):
        if number % LOOKS_A_PICTURE == 0:
            history.add(status)
        if time.monotonic() > until_s:
            listed = client.call("ListPrograms", limit=places(HEIGHT))
            break
    console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO())
    console.print(screen(status, listed, history, width=WIDTH, height=HEIGHT))
    return console.export_svg(title="penstock top")


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = find("chromium") or ""
    for flag in (*FLAGS, "--window-size=1180,800", f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    driver = Chrome(options=options, service=ChromeService(find("chromedriver") or ""))
    yield driver
    driver.quit()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    images = parser.parse_args().folder
    images.mkdir(parents=True, exist_ok=True)
    page = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as name, loaded_node(Path(name), page), browser(Path(name)) as driver:
        driver.get(f"http://{page}/")
        with connect(None, NODE, Path(name)) as client:
            (images / "top.svg").write_text(take_top(client, time.monotonic() + WARM_UP_S))
        driver.save_screenshot(str(images / "page.png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

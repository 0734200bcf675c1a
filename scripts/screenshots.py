"""Take the pictures of the documentation: `penstock top` and the daemon's page, of a node under load.

    .venv/bin/python scripts/screenshots.py [--folder docs/images]

A daemon, an engine double and a workload on this machine for two minutes; Chromium for the page: make debian-tools.
"""

import argparse
import contextlib
import io
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from rich.console import Console
from support.browser import chrome
from support.ports import free_port
from support.terminals import Terminals, with_commands_of

from controlplane.operate.client import ControlClient, connect
from controlplane.operate.top import History, places, screen

ROOT = Path(__file__).resolve().parent.parent
NODE = "gpu7"
SCALE = "20"
WARM_UP_S = 90.0
WIDTH, HEIGHT = 120, 30
LOAD = "penstock replay synthetic:swe-bench -n 400 --arrival poisson:0.15 --scale-tools 4 --tokens-per-word 64"
ENGINE = "penstock engine-double --pool-tokens 120000 --tokens-per-word 64"
LOOKS_A_PICTURE = 10  # at twenty times the speed there are twenty a second


@contextlib.contextmanager
def loaded_node(folder: Path, page: str) -> Iterator[None]:
    """A node whose page is at ``page``, with programs."""
    (folder / "penstock.toml").write_text(f'[http]\nlisten = "{page}"\n')
    common, port = f"--node {NODE} --time-scale {SCALE}", free_port()
    terminals = Terminals(folder, with_commands_of(sys.executable, PENSTOCK_STATE_DIR=str(folder)))
    try:
        terminals.start(f"penstock up --config penstock.toml {common}").until_said(page)
        terminals.start(f"{ENGINE} --port {port} {common}").until_said("listens on")
        terminals.start(f"{LOAD} --url http://127.0.0.1:{port} {common}")
        yield
    finally:
        terminals.close()


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    images = parser.parse_args().folder
    images.mkdir(parents=True, exist_ok=True)
    page = f"127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory() as name, loaded_node(Path(name), page):
        driver = chrome(Path(name) / "profile", width=1280, height=1500)
        try:
            driver.get(f"http://{page}/")
            with connect(None, NODE, Path(name)) as client:
                (images / "top.svg").write_text(take_top(client, time.monotonic() + WARM_UP_S))
            driver.save_screenshot(str(images / "page.png"))
        finally:
            driver.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Take the pictures of the documentation: `penstock top` and the daemon's page, of a node under load.

    .venv/bin/python scripts/screenshots.py [--folder docs/images]

A daemon, an engine double and a workload on this machine for two minutes; Chromium for the page: make debian-tools.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.browser import chrome
from support.ports import free_port
from support.terminals import Terminals, with_commands_of

from controlplane.operate.client import connect
from controlplane.operate.top.app import Top

ROOT = Path(__file__).resolve().parent.parent
NODE = "gpu7"
SCALE = "20"
WARM_UP_S = 90.0
LOOKS_S = 3.0
SIZE = (80, 24)  # as a terminal opens
LOAD = "penstock replay synthetic:swe-bench -n 800 --arrival poisson:0.22 --scale-tools 4 --tokens-per-word 64"
ENGINE = "penstock engine-double --pool-tokens 120000 --tokens-per-word 64"


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


async def take_top(state_dir: Path) -> str:
    """What ``penstock top`` shows, as SVG."""
    app = Top(lambda: connect(None, NODE, state_dir))
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(LOOKS_S)
        return app.export_screenshot(title="penstock top")


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
            time.sleep(WARM_UP_S)
            (images / "top.svg").write_text(asyncio.run(take_top(Path(name))))
            driver.save_screenshot(str(images / "page.png"))
        finally:
            driver.quit()
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Automatic advice under load: a real daemon makes a step that all can see, and is killed within the trial."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from support.browser import chrome
from support.daemon_process import NODE, eventually
from support.ports import free_port
from support.programs import needs
from support.whole_loop import Loop

from controlplane.core.errors import EngineUnavailable
from controlplane.operate.client import connect

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(1800), needs("chromium", "chromedriver")]

TIME_SCALE = 20.0
PATIENCE_S = 600.0  # a question has little claim on the machine
AT_ONCE = 8  # programs, most of which wait; however slow the machine is, the queue does not grow
WINDOW = 3  # far too narrow: the pool holds a dozen programs
FILE = f"""
preset = "fcfs"
[http]
listen = "{{}}"
[admission]
window = {WINDOW}
[advise]
auto = true
bounds = ["admission.window=2..12"]
step_ratio = 0.5
stretch_s = 600
cooldown_s = 120
"""


class Node:
    """A whole loop whose daemon has that file, its page's address, and what the daemon says of its advice."""

    def __init__(self, folder: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        folder.mkdir(exist_ok=True)
        file = folder / "penstock.toml"
        file.write_text(FILE.format(self.address))
        self.loop = Loop(
            folder / "state",
            "fcfs",
            pool_tokens=200_000,
            time_scale=TIME_SCALE,
            daemon=("--config", str(file)),
        )

    @property
    def folder(self) -> Path:
        return self.loop.folder

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """One program comes for each that ends."""
        self.loop.start()
        command = [sys.executable, "-m", "controlplane", "replay", "synthetic:swe-bench", "--programs", "2000"]
        command += ["--arrival", f"closed:{AT_ONCE}", "--time-scale", f"{TIME_SCALE:g}", "--tokens-per-word", "64"]
        command += ["--url", self.loop.url, "--node", NODE, "--state-dir", str(self.folder)]
        agents = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            agents.terminate()
            agents.wait()
            self.loop.stop()

    def status(self) -> Any:
        try:
            with connect(None, NODE, self.folder) as client:
                return client.call("GetStatus")
        except EngineUnavailable:
            return None

    async def changed(self, *outcomes: str) -> Any:
        """The latest change of this daemon's life, once it is one of these."""

        async def look() -> Any:
            status = self.status()
            latest = status.advise.latest if status is not None and status.advise is not None else ()
            return latest[-1] if latest and latest[-1].outcome in outcomes else None

        return await eventually(look, what=" or ".join(outcomes), timeout_s=PATIENCE_S, every_s=0.2)

    def command(self, *words: str) -> str:
        where = ("--node", NODE, "--state-dir", str(self.folder))
        command = [sys.executable, "-m", "controlplane", *words, *where]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{self.address}/metrics") as page:
            lines = page.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])

    def settings(self) -> list[dict[str, Any]]:
        """Records of changed settings in the decision log."""
        lines = (self.folder / NODE / "decisions.jsonl").read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["record"] == "setting"]


async def told_on_the_page(browser: Chrome, node: Node) -> None:
    """What is tried, or was by the time that the page is there."""

    async def look() -> bool:
        latest = browser.find_element(By.ID, "advice-latest").text
        return f"admission.window {WINDOW} → 8: tried" in latest and "is predicted to change" in latest

    browser.get(f"http://{node.address}/")
    await eventually(look, what="the step on the page", every_s=0.1)
    assert "For mean completion time:" in browser.find_element(By.ID, "advice-words").text
    if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
        for shade in ("light", "dark"):
            browser.execute_script("document.documentElement.style.colorScheme = arguments[0]", shade)
            browser.execute_script("document.getElementById('advice').scrollIntoView()")
            browser.save_screenshot(str(Path(folder) / f"advice-{shade}.png"))


async def test_a_daemon_makes_a_step_by_itself_and_forgets_it_when_killed(tmp_path: Path) -> None:
    node = Node(tmp_path)
    with node.under_load():
        tried = await node.changed("tried")
        assert (tried.key, tried.before) == ("admission.window", WINDOW)
        assert tried.predicted < 0, "a time that becomes shorter"
        assert node.status().window.limit == int(tried.after) > WINDOW
        assert "automatic advice" in node.command("config", "show", "--running")
        assert node.metric('penstock_advise_steps_total{outcome="tried"}') == 1
        told = node.command("advise")
        assert "1 step made" in told
        assert tried.reason in told
        browser = chrome(tmp_path / "profile", width=1280, height=1400)
        try:
            await told_on_the_page(browser, node)
        finally:
            browser.quit()
        node.loop.daemon.kill()

        node.loop.daemon.start()
        node.loop.wait_for_daemon()

        async def back() -> bool:
            status = node.status()
            return status is not None and bool(status.window.limit == WINDOW)

        await eventually(back, what="the file's window")
        assert node.settings()[0]["outcome"] == "tried", "the log has it"

        async def listens() -> bool:
            return "listens" in node.command("advise")

        await eventually(listens, what="it begin anew", every_s=0.5)
        assert "automatic advice is off" in node.command("advise", "--stop")
        assert node.status().window.limit == WINDOW

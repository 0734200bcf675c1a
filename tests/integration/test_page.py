"""The daemon's page in a real browser: it draws what happens, and works without internet."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from support.browser import chrome
from support.daemon_process import BusClient, DaemonProcess, eventually
from support.ports import free_port
from support.programs import needs

from controlplane.core import events as ev

pytestmark = [pytest.mark.asyncio, needs("chromium", "chromedriver")]
GATE, ENGINE, TOOL = "test/gate/one", "test/engine/one", "test/tool/one"
WINDOW = 'preset = "fcfs"\n[http]\nlisten = "{}"\n[admission]\nwindow = {}\n'
TIMEOUT_S = 30.0


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    driver = chrome(tmp_path / "profile", width=1280, height=1400)
    yield driver
    driver.quit()


def wait(look: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError(f"no {what} within {TIMEOUT_S:g}s")


def text(browser: Chrome, name: str) -> str:
    return str(browser.find_element(By.ID, name).text)


def colours(browser: Chrome, name: str) -> set[str]:
    """Of the canvas' opaque points."""
    script = """
        const canvas = document.getElementById(arguments[0]);
        const points = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        const found = new Set();
        for (let i = 0; i < points.length; i += 4)
          if (points[i + 3] === 255) found.add(`${points[i]},${points[i + 1]},${points[i + 2]}`);
        return [...found];
    """
    return set(browser.execute_script(script, name))


GREEN, BLUE, YELLOW, PURPLE = "42,157,85", "36,135,201", "217,164,0", "176,76,200"


async def begin(daemon: DaemonProcess) -> None:
    """One program reasons, one acts, one is held."""
    bus = await BusClient.connect(await daemon.url())
    await bus.status()
    await bus.publish(ENGINE, 1, [ev.PoolSampled(total_blocks=1000, free_blocks=400, block_tokens=1)])
    turns = [ev.TurnQueued(program_id=name, turn_id=f"{name}.1", prompt_tokens=300) for name in ("a", "b", "c<i>")]
    await bus.publish(GATE, 1, turns)
    await bus.status_where(lambda s: s["programs"].get("b", {}).get("status") == "active", "two that run")
    submitted = [ev.TurnSubmitted(program_id=name, turn_id=f"{name}.1", projected_blocks=300) for name in "ab"]
    await bus.publish(ENGINE, 2, [*submitted, ev.TurnEnded(program_id="b", turn_id="b.1", prompt_tokens=300)])
    await bus.publish(TOOL, 1, [ev.ToolStarted(program_id="b", call_id="1", tool="pytest")])
    await bus.close()


async def test_it_draws_what_happens_and_shows_a_changed_window(tmp_path: Path, browser: Chrome) -> None:
    address, file = f"127.0.0.1:{free_port()}", tmp_path / "penstock.toml"
    file.write_text(WINDOW.format(address, 2))
    daemon = DaemonProcess(tmp_path / "state", "--config", str(file))
    daemon.start()
    try:

        async def serves() -> bool:
            return f"http://{address}/" in daemon.log

        await eventually(serves, what="a page")
        await begin(daemon)
        browser.get(f"http://{address}/")
        wait(lambda: "2 programs active, 1 waiting" in text(browser, "summary"), "summary")
        rows = wait(lambda: browser.find_elements(By.CSS_SELECTOR, "#programs tr"), "programs")
        assert [row.text.split()[0] for row in rows] == ["c<i>", "a", "b"]  # names are text, not HTML
        wait(lambda: {GREEN, BLUE, YELLOW} <= colours(browser, "timeline"), "phases in the timeline")
        wait(lambda: {GREEN, YELLOW, PURPLE} <= colours(browser, "window-plot"), "plots of the window")
        file.write_text(WINDOW.format(address, 3))
        wait(lambda: "configuration 2; 3 programs active, 0 waiting" in text(browser, "summary"), "the new window")
        wait(lambda: text(browser, "window-reason").startswith("3: "), "the new limit")
        await asyncio.sleep(3)
        if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
            browser.save_screenshot(str(Path(folder) / "page.png"))
        file.write_text("lease_s = 1e9\n")
        wait(lambda: "configuration refused: " in text(browser, "warnings"), "a refusal")
        daemon.kill()
        wait(lambda: "the daemon does not answer" in text(browser, "warnings"), "word of the daemon's end")
        said = [entry for entry in browser.get_log("browser") if "ERR_CONNECTION" not in entry["message"]]
        assert [
            entry for entry in said if entry["level"] == "SEVERE" and "ERR_INCOMPLETE" not in entry["message"]
        ] == []
    finally:
        daemon.clean_up()

"""What if, from the daemon's page: the real daemon replays its own record, for who has the page's key alone."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select
from support.browser import chrome
from support.daemon_process import NODE
from support.ports import free_port
from support.programs import needs
from support.whole_loop import Loop

PROGRAMS = 6
TIMEOUT_S = 240.0  # a replay has little claim on the machine, which may be busy


class Page:
    """The page of a daemon that recorded a few programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{free_port()}"
        file = folder / "penstock.toml"
        file.write_text(f'[http]\nlisten = "{self.address}"\n[admission]\nwindow = 1\n')
        # With memory for all: where contexts are evicted, their cost is a guess from a slow machine's turns.
        self.loop = Loop(folder, "fcfs", daemon=("--config", str(file)), rate=1.0, pool_tokens=400_000)

    def with_key(self) -> str:
        """Its address for who may command the daemon."""
        command = [sys.executable, "-m", "controlplane", "page", "--node", NODE, "--state-dir", str(self.folder)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    def ask(self, question: object, *, key: str = "", method: str = "POST") -> tuple[int, str]:
        """The status and what was said."""
        body = json.dumps(question).encode() if question is not None else None
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        request = urllib.request.Request(
            f"http://{self.address}/what-if", data=body, headers=headers, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    def told(self) -> dict[str, Any]:
        """The first that its stream tells."""
        with urllib.request.urlopen(f"http://{self.address}/live", timeout=30) as stream:
            line = next(line for line in stream if line.startswith(b"data: "))
        return dict(json.loads(line.removeprefix(b"data: ")))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    made = Page(tmp_path_factory.mktemp("page"))
    try:
        made.loop.start()
        assert len(made.loop.run(PROGRAMS).programs) == PROGRAMS
        yield made
    finally:
        made.loop.stop()


def wait(look: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"no {what} within {TIMEOUT_S:g}s")


def whole(page: Page) -> dict[str, Any]:
    """A question about all that is on disk."""
    told = page.told()
    return {"since_ns": told["what_if"]["began_ns"], "until_ns": told["status"]["now_ns"], "preset": "penstock"}


@pytest.mark.timeout(400)
def test_who_has_the_key_has_a_stretch_replayed_and_nobody_else(page: Page) -> None:
    question = whole(page)
    for key in ("", "another", "ключ"):
        status, said = page.ask(question, key=key.encode().decode("latin-1"))
        assert status == 401
        assert "`penstock page` prints" in said
    assert page.ask(None, method="DELETE")[0] == 401
    assert page.told()["what_if"]["standing"] == "", "nothing was begun"

    key = page.with_key().partition("#key=")[2]
    for wrong, said in (
        ({}, "since_ns"),
        ({**question, "file": "/etc/passwd"}, "unknown field"),
        ({**question, "preset": "nobody"}, "expected one of"),
        ({**question, "settings": ["state_dir=elsewhere"]}, "expected KEY=VALUE"),
        ({**question, "until_ns": 1}, "ends before it begins"),
    ):
        assert page.ask(wrong, key=key)[0] == 400
        assert said in page.ask(wrong, key=key)[1]
    assert page.ask({**question, "preset": "x" * 20_000}, key=key)[0] == 413

    assert page.ask({**question, "pool_tokens": "nonsense"}, key=key)[0] == 202
    wait(lambda: page.told()["what_if"]["standing"] == "failed", "refusal by the command itself")
    assert "expected a number, or a change as +20%" in page.told()["what_if"]["reason"]

    assert page.ask(question, key=key)[0] == 202
    assert page.ask(question, key=key)[0] == 409, "one at a time"
    wait(lambda: page.told()["what_if"]["standing"] == "done", "answer")
    told = page.told()["what_if"]
    assert told["answer"]["stretch"]["programs"] == PROGRAMS
    assert told["answer"]["actual"]["preset"] == "fcfs"
    assert told["answer"]["change"]["mean_jct_s"]["value"] < 0, "they waited for each other, and need not"
    assert told["shadow"] == ["[shadow]", 'preset = "penstock"', 'settings = ["admission.window="]']
    assert page.ask(question, key=key)[0] == 202
    assert page.ask(None, key=key, method="DELETE")[0] == 200
    wait(lambda: page.told()["what_if"]["standing"] == "cancelled", "end of the replay")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    driver = chrome(tmp_path / "profile", width=1280, height=1400)
    yield driver
    driver.quit()


def text(browser: Chrome, name: str) -> str:
    return str(browser.find_element(By.ID, name).text)


@needs("chromium", "chromedriver")
@pytest.mark.timeout(600)
def test_a_stretch_that_was_dragged_over_is_replayed(page: Page, browser: Chrome) -> None:
    browser.get(f"http://{page.address}/")
    wait(lambda: "`penstock page` prints" in text(browser, "what-if-how"), "word of the key")
    assert not browser.find_element(By.ID, "what-if-ask").is_enabled()

    browser.get(page.with_key())
    wait(lambda: browser.find_element(By.ID, "what-if-ask").is_enabled(), "a form")
    assert "key" not in browser.current_url
    plot, at = browser.find_element(By.ID, "pressure-plot"), browser.find_element(By.NAME, "from")
    assert not at.get_attribute("value")
    drag = ActionChains(browser).move_to_element_with_offset(plot, -100, 0).click_and_hold()
    drag.move_by_offset(150, 0).release().perform()
    wait(lambda: at.get_attribute("value"), "a stretch")
    bands = browser.find_elements(By.CSS_SELECTOR, ".chosen")
    assert any(band.is_displayed() and band.size["width"] > 100 for band in bands)
    ActionChains(browser).move_to_element(plot).click().perform()
    wait(lambda: not at.get_attribute("value"), "a choice that was taken back")

    browser.find_element(By.ID, "what-if-all").click()
    wait(lambda: at.get_attribute("value"), "all that is on disk")
    Select(browser.find_element(By.NAME, "preset")).select_by_value("penstock")
    browser.find_element(By.NAME, "settings").send_keys("admission.beta=1.5")
    browser.find_element(By.ID, "what-if-ask").click()
    wait(lambda: "beta" in text(browser, "what-if-standing"), "a refusal")
    browser.find_element(By.NAME, "settings").clear()
    browser.find_element(By.ID, "what-if-ask").click()
    wait(lambda: browser.find_element(By.ID, "what-if-cancel").is_displayed(), "a replay that can be cancelled")
    wait(lambda: browser.find_element(By.ID, "what-if-answer").is_displayed(), "an answer")
    assert text(browser, "what-if-replay") == "The replay of what was decided (fcfs)"
    assert text(browser, "what-if-question") == "What if: penstock"
    assert "mean completion time" in text(browser, "what-if-errors")
    rows = text(browser, "what-if-changes").splitlines()
    assert any(row.startswith("mean completion time") and "−" in row for row in rows), rows
    assert 'preset = "penstock"' in text(browser, "what-if-shadow")
    errors = browser.find_element(By.ID, "what-if-errors").location["y"]
    assert errors <= browser.find_element(By.ID, "what-if-changes").location["y"], "the replay's own error is first"
    if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
        browser.find_element(By.ID, "what-if").screenshot(str(Path(folder) / "what-if.png"))
        browser.execute_script("document.documentElement.style.colorScheme = 'dark'")
        browser.save_screenshot(str(Path(folder) / "what-if-dark.png"))

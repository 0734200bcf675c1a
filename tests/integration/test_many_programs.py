"""Thousands of programs on a node: listed page by page, found on the page, too many for one answer of the bus."""

import asyncio
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from support.browser import chrome
from support.daemon_process import BusClient, DaemonProcess, bus_of, eventually, queued, running
from support.ports import free_port
from support.programs import needs

from controlplane.operate.client import connect
from controlplane.transport.subjects import status_subject

GATE = "test/gate/one"
MANY, SLOTS = 6_000, 8
# Nobody runs a turn, and each keeps the slot that it got.
CONFIGURATION = (
    'preset = "fcfs"\n[http]\nlisten = "{}"\n[admission]\nwindow = {}\n'
    "[control]\nstall_s = 3600\n[control.silence]\nunused_slot_s = 3600\n"
)


def named(number: int) -> str:
    return f"repair-{number:05d}-of-a-repository-with-a-long-name"


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, str]]:
    """A daemon where many wait, and its page's address."""
    address = f"127.0.0.1:{free_port()}"

    async def come(daemon: DaemonProcess) -> None:
        async with bus_of(daemon) as bus:
            for first in range(0, MANY, 500):
                await bus.publish(GATE, first + 1, queued(*map(named, range(first, first + 500))))
            with connect(None, "test", daemon.folder) as client:
                await eventually(
                    lambda: client.call("GetStatus").pressure.queue_length == MANY - SLOTS, what=f"{MANY} programs"
                )

    with running(tmp_path_factory.mktemp("crowd"), config=CONFIGURATION.format(address, SLOTS)) as daemon:
        asyncio.run(come(daemon))
        yield daemon, f"http://{address}"


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


async def test_all_are_told_page_by_page_and_none_twice(crowd: tuple[DaemonProcess, str]) -> None:
    daemon, url = crowd
    with connect(None, "test", daemon.folder) as client:
        told = client.programs()
        assert len({row.program_id for row in told.programs}) == len(told.programs) == told.total == MANY
        waiting = [row for row in told.programs if row.queue_position]
        assert [row.queue_position for row in waiting] == list(range(1, MANY - SLOTS + 1))
        assert len(client.programs(limit=2500).programs) == 2500
        assert len(client.call("ListPrograms").programs) == 1000, "one answer holds no more"
        found = client.programs(contains="-0123")
        assert {row.program_id for row in found.programs} == {named(number) for number in range(1230, 1240)}
        assert client.programs(queued=True, contains="nothing of the kind").total == 0
    last = [row["program_id"] for row in fetched(f"{url}/programs?page={MANY // 60}")["programs"]]
    assert last[:2] == [row.program_id for row in told.programs][-60:-58]
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetched(f"{url}/programs?page=none")
    assert "expected a number from 1" in refused.value.read().decode()
    bus = await BusClient.connect(await daemon.url())
    answer = await bus.client.request(status_subject("test"), b"programs", timeout=60)
    assert "ask the control API" in json.loads(answer.data)["error"], "an answer that the bus refuses is no silence"
    await bus.close()


@needs("chromium", "chromedriver")
async def test_the_page_finds_one_of_them_and_turns_pages(crowd: tuple[DaemonProcess, str], tmp_path: Path) -> None:
    browser = chrome(tmp_path / "profile", width=1280, height=1000)
    try:
        await look_around(browser, crowd[1])
    finally:
        browser.quit()


async def look_around(browser: Chrome, url: str) -> None:
    async def listed(words: str) -> None:
        await eventually(lambda: words in browser.find_element(By.ID, "listed").text, what=words, every_s=0.05)

    def names() -> list[str]:
        script = "return [...document.querySelectorAll('#programs tr')].map((row) => row.dataset.of)"
        return list(browser.execute_script(script))

    def press(name: str) -> None:
        browser.find_element(By.ID, name).send_keys(Keys.ENTER)

    browser.get(url)
    await listed(f"60 of {MANY:,} programs: some that wait, some that have a slot, and others")
    assert len(names()) == 60
    assert not browser.find_element(By.ID, "page-back").is_enabled()
    press("page-on")
    await listed(f"{MANY:,} programs; page 1 of {MANY // 60}")
    first = names()
    press("page-on")
    await listed(f"page 2 of {MANY // 60}")
    if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
        browser.execute_script("document.getElementById('listing').scrollIntoView()")
        browser.save_screenshot(str(Path(folder) / "second-page.png"))
    assert not set(names()) & set(first)
    search = browser.find_element(By.ID, "search")
    search.send_keys("-0432")
    await listed("10 have “-0432” in their names; page 1 of 1")
    assert names() == [named(number) for number in range(4320, 4330)]
    browser.find_element(By.LINK_TEXT, named(4321)).send_keys(Keys.ENTER)

    await eventually(lambda: named(4321) in browser.find_element(By.ID, "program").text, what="its time line")
    if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
        for shade in ("light", "dark"):
            browser.execute_script("document.documentElement.style.colorScheme = arguments[0]", shade)
            browser.execute_script("document.getElementById('listing').scrollIntoView()")
            browser.save_screenshot(str(Path(folder) / f"found-{shade}.png"))
    search.clear()
    search.send_keys(" ", Keys.BACKSPACE)
    await listed(f"60 of {MANY:,} programs")
    serious = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not serious, serious

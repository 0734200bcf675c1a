"""The daemon's page in a real browser: it draws what happens, and works without internet."""

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from support.browser import chrome
from support.daemon_process import BusClient, DaemonProcess, running, says, serving, until
from support.ports import free_port
from support.programs import needs

from controlplane.core.model import events as ev

pytestmark = needs("chromium", "chromedriver")
GATE, ENGINE, TOOL = "test/gate/one", "test/engine/one", "test/tool/one"
OTHER = "test/engine-2/one"
WINDOW = 'preset = "fcfs"\n[http]\nlisten = "{}"\n[admission]\nwindow = {}\n'
SHADOW = '[shadow]\npreset = "fcfs"\nsettings = ["admission.window=7"]\nestimate_s = 0\n'


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    driver = chrome(tmp_path / "profile", width=1280, height=1400)
    yield driver
    driver.quit()


def text(browser: Chrome, name: str) -> str:
    return str(browser.find_element(By.ID, name).text)


def texts(browser: Chrome, selector: str) -> list[str]:
    """Of all such elements at one instant: the page makes its rows anew once a second."""
    script = "return [...document.querySelectorAll(arguments[0])].map((found) => found.innerText)"
    return list(browser.execute_script(script, selector))


def names(browser: Chrome) -> list[str]:
    """In the table's order."""
    return [row.split()[0] for row in texts(browser, "#programs tr")]


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


def width_of(browser: Chrome, name: str, colour: str) -> float:
    """Of what is drawn in that colour, as a part of the canvas."""
    script = """
        const canvas = document.getElementById(arguments[0]), columns = [];
        const points = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < points.length; i += 4)
          if (points.slice(i, i + 3).join() === arguments[1]) columns.push((i / 4) % canvas.width);
        return columns.reduce((most, each) => Math.max(most, each), 0) / canvas.width
          - columns.reduce((least, each) => Math.min(least, each), canvas.width) / canvas.width;
    """
    return float(browser.execute_script(script, name, colour))


def press(browser: Chrome, within: str, words: str) -> None:
    """A button."""
    script = """
        const buttons = [...document.querySelectorAll(`${arguments[0]} button`)];
        buttons.find((each) => each.textContent === arguments[1]).click();
    """
    browser.execute_script(script, within, words)


def strips(browser: Chrome) -> list[str]:
    """Whose name one sees who points at each row of the time line."""
    script = """
        const canvas = document.getElementById("timeline"), found = [];
        for (let y = 7; y < canvas.clientHeight - 18; y += 14) {
          const clientY = canvas.getBoundingClientRect().top + y;
          canvas.dispatchEvent(new MouseEvent("mousemove", { clientY }));
          found.push(canvas.title);
        }
        return found;
    """
    return list(browser.execute_script(script))


GREEN, BLUE, YELLOW, PURPLE, BROWN = "42,157,85", "36,135,201", "217,164,0", "176,76,200", "210,105,30"


@contextlib.contextmanager
def page(folder: Path) -> Iterator[tuple[DaemonProcess, str]]:
    """A daemon and its page's address."""
    address = f"127.0.0.1:{free_port()}"
    with running(folder, config=WINDOW.format(address, 2)) as daemon:
        yield daemon, address


async def begin(daemon: DaemonProcess) -> None:
    """One program reasons, one acts, one waits at the gate."""
    await says(daemon, "http://127.0.0.1:")
    bus = await serving(daemon)
    await bus.publish(ENGINE, 1, [ev.PoolSampled(total_blocks=1000, free_blocks=400, block_tokens=1)])
    turns = [ev.TurnQueued(program_id=name, turn_id=f"{name}.1", prompt_tokens=300) for name in ("a", "b", "c<i>")]
    await bus.publish(GATE, 1, turns)
    await bus.status_where(lambda s: s["programs"].get("b", {}).get("status") == "active", "two that run")
    submitted = [ev.TurnSubmitted(program_id=name, turn_id=f"{name}.1", projected_blocks=300) for name in "ab"]
    await bus.publish(ENGINE, 2, [*submitted, ev.TurnEnded(program_id="b", turn_id="b.1", prompt_tokens=300)])
    await bus.publish(TOOL, 1, [ev.ToolStarted(program_id="b", call_id="1", tool="pytest")])
    await bus.close()


async def second_engine(daemon: DaemonProcess) -> None:
    """It joins, and who acts goes on there without its context; its pool is smaller than that needs."""
    bus = await BusClient.connect(await daemon.url())
    pool = ev.PoolSampled(total_blocks=200, free_blocks=10, retained_blocks=40, block_tokens=1)
    turn = ev.TurnSubmitted(program_id="b", turn_id="b.2", projected_blocks=300)
    begun = ev.FirstToken(program_id="b", turn_id="b.2", prompt_tokens=400, prefill_ns=10**8)
    await bus.publish(OTHER, 1, [pool, turn, begun])
    await bus.close()


async def test_it_draws_what_happens_and_shows_a_changed_window(tmp_path: Path, browser: Chrome) -> None:
    file = tmp_path / "penstock.toml"
    with page(tmp_path) as (daemon, address):
        await begin(daemon)
        browser.get(f"http://{address}/")
        until(lambda: "2 programs active, 1 waiting" in text(browser, "summary"), "summary")
        until(lambda: names(browser) == ["c<i>", "a", "b"], "programs, whose names are text and not HTML")
        until(lambda: {GREEN, BLUE, YELLOW} <= colours(browser, "timeline"), "phases in the timeline")
        until(lambda: {GREEN, PURPLE} <= colours(browser, "window-plot"), "plots of the window")
        until(lambda: YELLOW in colours(browser, "waiting-plot"), "a plot of those that wait")
        assert "waiting #1" in texts(browser, "#programs tr")[0]
        for direction, order in (("ascending", ["a", "b", "c<i>"]), ("descending", ["c<i>", "b", "a"])):
            press(browser, "#program-table", "program")
            assert names(browser) == order
            assert len(texts(browser, f"#program-table th:first-child[aria-sort={direction}]")) == 1
        press(browser, "#program-table", "program")
        assert names(browser) == ["c<i>", "a", "b"]
        file.write_text(WINDOW.format(address, 3))
        until(lambda: "configuration 2; 3 programs active, 0 waiting" in text(browser, "summary"), "the new window")
        until(lambda: text(browser, "window-reason").startswith("3: "), "the new limit")
        assert not browser.find_element(By.ID, "fleet").is_displayed(), "of one engine the plots tell all"
        await second_engine(daemon)
        until(lambda: "2 engines: 2 serving; 1 moves" in text(browser, "engines-words"), "the engines")
        engines = texts(browser, "#engines tr")
        assert [row.split()[0] for row in engines] == ["test/engine", "test/engine-2"]
        assert "150% of 200 blocks, 10 free" in engines[1]
        row = next(row for row in texts(browser, "#programs tr") if row.split()[0] == "b")
        assert row.split()[-2:] == ["test/engine-2", "1"]
        until(lambda: "300 tokens computed again" in text(browser, "regret-words"), "verdicts in sum")
        assert "Leaving a context alone cost" in text(browser, "sentences")
        assert "undecided, b" in text(browser, "verdicts")
        assert "its context was missed, as its turn ran on another engine" in text(browser, "verdicts")
        assert not browser.find_element(By.ID, "shadow-words").is_displayed(), "there is none"
        file.write_text(WINDOW.format(address, 3) + SHADOW)
        until(lambda: "fcfs with admission.window=7 beside fcfs: decides" in text(browser, "shadow-words"), "it")
        until(lambda: BROWN in colours(browser, "window-plot"), "its window")
        until(lambda: "No estimate yet: it is not asked for" in text(browser, "shadow-estimate"), "no estimate")
        if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
            browser.save_screenshot(str(Path(folder) / "page.png"))
            browser.execute_script("document.documentElement.style.colorScheme = 'dark'")
            browser.save_screenshot(str(Path(folder) / "page-dark.png"))
        file.write_text("lease_s = 1e9\n")
        until(lambda: "config refused: " in text(browser, "warnings"), "a refusal")
        daemon.send_signal(signal.SIGSTOP)
        until(lambda: "nothing was heard of it for" in text(browser, "warnings"), "word of its silence")
        daemon.send_signal(signal.SIGCONT)
        until(lambda: "config refused: " in text(browser, "warnings"), "what it says, once it goes on")
        daemon.kill()
        until(lambda: "the daemon does not answer" in text(browser, "warnings"), "word of the daemon's end")
        said = [entry for entry in browser.get_log("browser") if "ERR_CONNECTION" not in entry["message"]]
        assert [
            entry for entry in said if entry["level"] == "SEVERE" and "ERR_INCOMPLETE" not in entry["message"]
        ] == []


async def test_at_opening_it_shows_what_was_before(tmp_path: Path, browser: Chrome) -> None:
    """Also of a program that has ended; and what decisions cost and saved in a sentence, where they are enough."""
    seen_s = 15
    with page(tmp_path) as (daemon, address):
        await begin(daemon)
        bus = await BusClient.connect(await daemon.url())
        waits = [f"w{number}" for number in range(24)]
        asked = [ev.TurnQueued(program_id=name, turn_id="1", prompt_tokens=30) for name in ("gone", *waits)]
        await bus.publish(GATE, 4, asked)
        await asyncio.sleep(2)
        runs = [ev.TurnSubmitted(program_id=name, turn_id="1", projected_blocks=1) for name in waits]
        await bus.publish(ENGINE, 5, runs)
        ended = ev.TurnEnded(program_id="w0", turn_id="1", prompt_tokens=4000, cached_tokens=3000, output_tokens=50)
        await bus.publish(ENGINE, 29, [ended])
        await bus.publish(GATE, 29, [ev.TurnAbandoned(program_id="gone", turn_id="1")])
        await bus.publish(TOOL, 2, [ev.ProgramEnded(program_id="gone")])
        await bus.status_where(lambda s: s["programs"].get("gone", {}).get("status", "ended") == "ended", "an end")
        await bus.close()
        async with aiohttp.ClientSession() as http:
            for _ in range(10 * seen_s):
                async with http.get(f"http://{address}/samples") as answer:
                    if len(await answer.json()) > seen_s:
                        break
                await asyncio.sleep(1)
        browser.get(f"http://{address}/")
        until(lambda: width_of(browser, "window-plot", GREEN) > 0.8 * seen_s / 60, "a plot of the time before")
        until(lambda: "gone" in strips(browser), "the strip of who is gone")
        until(lambda: "the last 60 s" in text(browser, "ranges"), "what there is")
        press(browser, "#ranges", "5 min")
        assert texts(browser, "#ranges button[aria-pressed=true]") == ["5 min"]
        tiles = text(browser, "tiles")
        assert "70%\nof 4,300 prompt tokens" in tiles
        assert "anonymous" not in tiles
        said = text(browser, "sentences")
        assert re.search(r"Holding a turn cost \d.* s of waiting.* a turn over 25 turns", said)
        assert "too few to judge" in text(browser, "regret-kinds")


async def test_what_is_told_before_all_its_scripts_are_there_is_no_error(tmp_path: Path, browser: Chrome) -> None:
    async def pass_on(request: web.Request) -> web.StreamResponse:
        if request.path.endswith(".js") and not request.path.endswith("/page.js"):
            await asyncio.sleep(2)  # the daemon tells something each quarter of a second
        response = web.StreamResponse()
        async with aiohttp.ClientSession() as http, http.get(f"{there[0]}{request.path}") as found:
            response.content_type = found.content_type
            await response.prepare(request)
            async for piece in found.content.iter_any():
                await response.write(piece)
        return response

    there: list[str] = []
    app = web.Application()
    app.router.add_get("/{path:.*}", pass_on)
    slow = TestServer(app)
    try:
        with page(tmp_path) as (daemon, address):  # it ends before its page: that would wait for the stream's end
            there.append(f"http://{address}")
            await begin(daemon)
            await slow.start_server()
            await asyncio.to_thread(browser.get, str(slow.make_url("/")))
            told = "2 programs active, 1 waiting"
            await asyncio.to_thread(until, lambda: told in text(browser, "summary"), "summary")
            assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    finally:
        await slow.close()


async def test_a_program_opened_shows_what_it_did_and_what_decisions_cost(tmp_path: Path, browser: Chrome) -> None:
    """It has an address, which the table links to, and links to the others of its tree."""
    with page(tmp_path) as (daemon, address):
        await begin(daemon)
        await second_engine(daemon)
        bus = await BusClient.connect(await daemon.url())
        child = ev.TurnQueued(program_id="b/1", turn_id="b/1.1", prompt_tokens=30, parent_id="b")
        await bus.publish(GATE, 4, [child])
        await bus.status_where(lambda s: "b/1" in s["programs"], "a sub-agent")
        await bus.close()
        browser.get(f"http://{address}/")
        until(lambda: "c<i>" in texts(browser, "#programs a"), "links in the table")
        browser.execute_script(
            "[...document.querySelectorAll('#programs a')].find((a) => a.innerText === 'b').click()"
        )
        until(lambda: "2 turns" in text(browser, "program"), "the program")
        assert browser.execute_script("return location.hash") == "#program=b"
        bars = {
            name: browser.execute_script(
                "return document.querySelectorAll(arguments[0]).length", f"svg.line .{name}"
            )
            for name in ("reasoning", "acting", "loss")
        }
        assert bars["reasoning"] >= 1
        assert bars["acting"] == 1
        assert bars["loss"] >= 1, "its context was lost as it moved"
        rows = texts(browser, "#program tr[data-decision]")
        missed = next(row for row in rows if "its turn ran on another engine" in row)
        assert "300" in missed
        if folder := os.environ.get("PENSTOCK_SCREENSHOTS"):
            browser.save_screenshot(str(Path(folder) / "program.png"))
            browser.execute_script("document.documentElement.style.colorScheme = 'dark'")
            browser.save_screenshot(str(Path(folder) / "program-dark.png"))
        assert [row.split()[0] for row in texts(browser, "#tree tbody tr")] == ["b", "b/1"]
        browser.execute_script("document.querySelector('#tree a').click()")
        until(lambda: "sub-agent of b" in text(browser, "program"), "the sub-agent")
        browser.execute_script("location.hash = '#program=' + encodeURIComponent('c<i>')")
        until(lambda: "Program c<i>" in text(browser, "program"), "a name that is text, not HTML")
        browser.execute_script("location.hash = '#program=nobody'")
        until(lambda: "nothing is kept of program 'nobody'" in text(browser, "program"), "a clear answer")
        browser.execute_script("location.hash = ''")
        until(lambda: not browser.find_element(By.ID, "program").is_displayed(), "the page without a program")
        said = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert [entry for entry in said if "404" not in entry["message"]] == []

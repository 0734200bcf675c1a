"""Names as strangers choose them, through a daemon and all that shows them: nothing is obeyed, forged or lost."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from support import strangers
from support.browser import chrome
from support.daemon_process import BusClient, DaemonProcess, eventually, listening
from support.ports import free_port
from support.programs import needs
from support.terminals import Terminal

from controlplane.core import events as ev
from controlplane.core.text import made_good

pytestmark = pytest.mark.asyncio
NAMES = list(strangers.NAMES.values())
COMMANDS = (
    *("status", "engines", "programs", "programs --ended", "queue", "tenants", "explain", "doctor", "regret"),
    *("programs --json", "status --json", "engines --json", "doctor --json", "queue --json"),
)
WAITS_S = 60.0


class Node:
    """A daemon that has heard of every such name, as program, tool, call, tenant, model, turn and reason."""

    def __init__(self, daemon: DaemonProcess, address: str) -> None:
        self.daemon, self.address = daemon, address

    async def run(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "controlplane", *arguments, "--node", "test"]
        command += ["--state-dir", str(self.daemon.folder)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=WAITS_S, check=False)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done.stdout.decode()


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    address, file = f"127.0.0.1:{free_port()}", tmp_path / "penstock.toml"
    file.write_text(f'preset = "fcfs"\n[http]\nlisten = "{address}"\n[admission]\nwindow = 9\n')
    daemon = DaemonProcess(tmp_path / "state", "--config", str(file))
    daemon.start()
    try:
        await listening(daemon)
        bus = await BusClient.connect(await daemon.url())
        pool = ev.PoolSampled(total_blocks=1000, free_blocks=400, block_tokens=1, reason="".join(NAMES))
        await bus.publish("test/engine/one", 1, [pool])
        turns = [
            ev.TurnQueued(program_id=n, turn_id=n, tenant=n, agent=n, model=n, account=n, prompt_tokens=9)
            for n in NAMES
        ]
        await bus.publish("test/gate/one", 1, turns)
        tools = [ev.ToolStarted(program_id=n, call_id=n, tool=n) for n in NAMES]
        await bus.publish("test/tool/one", 1, tools)
        wanted = {made_good(name) for name in NAMES}
        await bus.status_where(lambda s: wanted <= s["programs"].keys(), "every program")
        status = await bus.status()
        assert status["status"]["rejected"] == 0, status["status"]["last_rejection"]
        await bus.close()
        yield Node(daemon, address)
        assert not daemon.has_ended
        assert strangers.stray(daemon.log) == ""
        assert daemon.stop() == 0
    finally:
        daemon.clean_up()


async def test_no_command_prints_what_a_terminal_obeys(node: Node) -> None:
    for command in COMMANDS:
        said = await node.run(*command.split())
        assert said, command
        assert strangers.stray(said) == "", command
        if "--json" in command:
            json.loads(said)
    rows = (await node.run("programs")).splitlines()
    assert len(rows) == 1 + len(NAMES)
    for asked in ("explain", "hold", "release"):
        assert strangers.stray(await node.run(asked, made_good(NAMES[0]))) == ""


async def test_top_goes_on(node: Node) -> None:
    line = f"{sys.executable} -m controlplane top --node test --state-dir {node.daemon.folder}"
    terminal = Terminal(line, folder=node.daemon.folder, environment={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"})
    try:
        await asyncio.to_thread(terminal.until, lambda: "[/nope]" in "\n".join(terminal.screen), "programs")
        for _ in range(2):
            before = len(terminal.said)
            await asyncio.to_thread(
                terminal.until, lambda before=before: len(terminal.said) > before, "another screen"
            )
        assert "\x1b]" not in terminal.said, "no title is set"
    finally:
        terminal.close()


async def test_metrics_and_the_page_have_it_as_text(node: Node) -> None:
    async with aiohttp.ClientSession() as session, session.get(f"http://{node.address}/metrics") as answer:
        text = await answer.text()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert {sample.value for sample in families["penstock_bus_connected"].samples} == {1.0}
    assert strangers.stray(text) == ""


@needs("chromium", "chromedriver")
async def test_the_page_runs_nothing_of_it(node: Node, tmp_path: Path) -> None:
    browser = await asyncio.to_thread(chrome, tmp_path / "profile", width=1280, height=1400)
    try:
        await asyncio.to_thread(browser.get, f"http://{node.address}/")
        script = "return [...document.querySelectorAll('#programs a')].map((found) => found.textContent)"

        async def listed() -> bool:
            found = set(await asyncio.to_thread(browser.execute_script, script))
            return {made_good(name) for name in NAMES} <= found

        await eventually(listed, what="every program")
        assert "pwned" not in await asyncio.to_thread(lambda: browser.title)
        shown = "return document.getElementById('program').innerText"
        for name in ("[/nope]", strangers.NAMES["element"], strangers.NAMES["attribute"]):
            await asyncio.to_thread(
                browser.execute_script, "location.hash = '#program=' + encodeURIComponent(arguments[0])", name
            )
            await eventually(
                lambda name=name: asyncio.to_thread(lambda: name[:20] in browser.execute_script(shown)), what=name
            )
        assert "pwned" not in await asyncio.to_thread(lambda: browser.title)
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    finally:
        await asyncio.to_thread(browser.quit)

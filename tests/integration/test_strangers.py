"""Names as strangers choose them, through a daemon and all that shows them: nothing is obeyed, forged or lost."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import strangers
from support.browser import chrome
from support.daemon_process import DaemonProcess, bus_of, listening, running, until
from support.ports import free_port
from support.programs import needs

from controlplane.core.model import events as ev
from controlplane.core.model.text import sanitize

NAMES = list(strangers.NAMES.values())
COMMANDS = (
    *("status", "engines", "programs", "programs --ended", "queue", "tenants", "explain", "doctor", "regret"),
    *("programs --json", "status --json", "engines --json", "doctor --json", "queue --json"),
)


class Node:
    """A daemon that has heard of every such name, as program, tool, call, tenant, model, turn and reason."""

    def __init__(self, daemon: DaemonProcess, address: str) -> None:
        self.daemon, self.address = daemon, address

    async def tell(self) -> None:
        await listening(self.daemon)
        pool = ev.PoolSampled(total_blocks=1000, free_blocks=400, block_tokens=1, reason="".join(NAMES))
        turns = [
            ev.TurnQueued(program_id=n, turn_id=n, tenant=n, agent=n, model=n, account=n, prompt_tokens=9)
            for n in NAMES
        ]
        tools = [ev.ToolStarted(program_id=n, call_id=n, tool=n) for n in NAMES]
        wanted = {sanitize(name) for name in NAMES}
        async with bus_of(self.daemon) as bus:
            await bus.publish("test/engine/one", 1, [pool])
            await bus.publish("test/gate/one", 1, turns)
            await bus.publish("test/tool/one", 1, tools)
            status = await bus.status_where(lambda s: wanted <= s["programs"].keys(), "every program")
        assert status["status"]["rejected"] == 0, status["status"]["last_rejection"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    address = f"127.0.0.1:{free_port()}"
    config = f'preset = "fcfs"\n[http]\nlisten = "{address}"\n[admission]\nwindow = 9\n'
    with running(tmp_path_factory.mktemp("strangers"), config=config) as daemon:
        node = Node(daemon, address)
        asyncio.run(node.tell())
        yield node
        assert not daemon.has_ended
        assert strangers.stray(daemon.log) == ""
        assert daemon.stop() == 0


def test_no_command_prints_what_a_terminal_obeys(node: Node) -> None:
    for command in (*COMMANDS, *(f"{asked} {sanitize(NAMES[0])}" for asked in ("explain", "hold", "release"))):
        said = node.daemon.penstock(*command.split(" ")).stdout
        assert strangers.stray(said) == "", command
        assert said or command.startswith(("explain", "hold", "release")), command
        if "--json" in command:
            json.loads(said)
    rows = node.daemon.penstock("programs").stdout.splitlines()
    assert len(rows) == 1 + len(NAMES)


@needs("chromium", "chromedriver")
def test_the_page_runs_nothing_of_it(node: Node, tmp_path: Path) -> None:
    browser = chrome(tmp_path / "profile", width=1280, height=1400)
    try:
        browser.get(f"http://{node.address}/")
        script = "return [...document.querySelectorAll('#programs a')].map((found) => found.textContent)"
        wanted = {sanitize(name) for name in NAMES}
        until(lambda: wanted <= set(browser.execute_script(script)), "every program")
        assert "pwned" not in browser.title
        shown = "return document.getElementById('program').innerText"
        for name in ("[/nope]", strangers.NAMES["element"], strangers.NAMES["attribute"]):
            browser.execute_script("location.hash = '#program=' + encodeURIComponent(arguments[0])", name)
            until(lambda name=name: name[:20] in browser.execute_script(shown), name)
        assert "pwned" not in browser.title
        assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
    finally:
        browser.quit()

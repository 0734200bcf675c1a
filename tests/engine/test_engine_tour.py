"""What a stranger does after the README, on a real engine: ``docs/how-to/attach-to-*.md``, without a GPU."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_versions import KIND
from support.documents import ROOT, blocks
from support.ports import free_port
from support.terminals import Terminals, with_commands_of

PAGES = ROOT / "docs" / "how-to"
PROGRAMS = 3


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[Terminals]:
    environment = with_commands_of(sys.executable, PENSTOCK_STATE_DIR=str(tmp_path / "state"))
    made = Terminals(tmp_path, environment)
    yield made
    made.close()


@pytest.mark.timeout(1200)
def test_up_engine_doctor_top_a_knob_explain(engine_env: Path, terminals: Terminals) -> None:
    page = PAGES / f"attach-to-{KIND.name}.md"
    url = f"http://127.0.0.1:{free_port()}"
    (block,) = [block for block in blocks(page) if "make engine" in block.text]
    up, engine, replay = (re.sub(r"\s+# .*", "", line) for line in block.commands)

    terminals.run("penstock config template > penstock.toml")
    terminals.start(f"{up} --config penstock.toml").until_said(r"\bup\b")
    served = terminals.start(f"{engine} -C {ROOT} ENGINE_ARGS='--port {url.rpartition(':')[2]}'")
    served.until_said("ready at", 240)

    found = terminals.run(f"penstock doctor --config penstock.toml --engine {url}")
    assert re.search(r"ok\s+plugin", found), found

    # Of each option the last one holds.
    fewer = f"-n {PROGRAMS} --arrival poisson:1 --scale-tokens 0.02 --scale-tools 0.05"
    load = terminals.start(f"{replay.replace('http://127.0.0.1:30000', url)} {fewer}")
    top = terminals.start("penstock top")
    top.until(lambda: "configuration 1" in top.screen[0], "head")
    top.until(lambda: any(re.search(r"active +reasoning", line) for line in top.screen), "program in the engine")

    terminals.run("sed -i 's/^#window_max = .*/window_max = 1/' penstock.toml")  # below where the window begins
    top.until(lambda: any("config refused" in line for line in top.screen), "refusal")
    terminals.run("sed -i 's/^#window_initial = .*/window_initial = 1/' penstock.toml")
    top.until(lambda: "configuration 2" in top.screen[0], "new configuration")
    top.until(lambda: bool(re.search(r"window\s.* 1\s", top.screen[1])), "window of one")
    status = json.loads(terminals.run("penstock status --json"))
    assert status["window"]["limit"] == 1
    assert top.interrupt() == 0

    assert load.wait(300) == 0, load.said[-2000:]
    names = terminals.run("penstock explain").split()
    assert len(names) == PROGRAMS
    told = terminals.run(f"penstock explain {names[-1]}")
    assert "admit" in told.lower()
    assert re.search(r"of [\d,]+ prompt tokens were cached", told), told
    served.interrupt()  # of what make's status tells nothing: an interrupt ends it
    terminals.interrupt()

"""A fleet as its operators see it: two daemons of which one leads, engines on two nodes, a turn through Envoy."""

import json
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controlplane.core.model.errors import EngineUnavailable
from controlplane.lab.fleet.processes import Kind
from controlplane.lab.fleet.site import Site, SiteOptions, running_site
from controlplane.operate.client import connect

TIMEOUT_S = 240.0
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    options = SiteOptions(engines=2, daemons=2, envoys=1)
    with running_site(options, tmp_path_factory.mktemp("site")) as found:
        yield found


def wait(look: Callable[[], Any], what: str) -> Any:
    until_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until_s:
        if found := look():
            return found
        time.sleep(0.1)
    raise AssertionError(f"no {what} within {TIMEOUT_S:g} s")


def ask(url: str, program: str) -> None:
    """One turn of the program."""
    body = {"model": "double", "max_tokens": 4, "messages": [{"role": "user", "content": "word " * 50}]}
    headers = {"content-type": "application/json", "x-session-id": program, "traceparent": TRACE}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        assert reply.status == 200


def clients(site: Site) -> dict[str, Path]:
    """The state folder of each fleet daemon, by its name: its control API's socket is there."""
    return {daemon.name: site.folder / daemon.name for daemon in site.of(Kind.DAEMON)}


def looks(site: Site, method: str) -> dict[str, Any]:
    """What each daemon answers, by its name; nothing while one of them does not yet."""
    found = {}
    try:
        for name, folder in clients(site).items():
            with connect(None, "fleet", folder) as client:
                found[name] = client.call(method)
    except EngineUnavailable:
        return {}
    return found


def told(folder: Path, *words: str) -> str:
    command = [sys.executable, "-m", "controlplane", *words, "--state-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def exposed(folder: Path) -> dict[str, dict[str, float]]:
    """By metric: the values by their labels' values."""
    listen = tomllib.loads((folder / "penstock.toml").read_text())["http"]["listen"]
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=TIMEOUT_S) as reply:
        text = reply.read().decode()
    return {
        family.name: {",".join(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(text)
    }


def test_engines_of_two_nodes_who_leads_and_where_a_program_is(site: Site) -> None:
    wait(lambda: led(site), "preferred daemon that leads and a standby")
    wait(lambda: pools_known(site), "engines whose pools both know: nobody is placed on others")
    wait(site.is_asked, "daemon that Envoy asks: until then turns go around it")
    ask(site.urls[0], "agent")

    def placed() -> dict[str, Any]:
        """Both know the program: the standby follows."""
        found = looks(site, "ListPrograms")
        return found if all(any(p.replica for p in listed.programs) for listed in found.values()) else {}

    where = {listed.programs[0].replica for listed in wait(placed, "a program that both daemons know").values()}
    assert len(where) == 1
    (place,) = where
    statuses = wait(lambda: led(site), "preferred daemon that leads and a standby")
    assert {status.engines.serving for status in statuses.values()} == {2}
    addresses = {f"{engine.name}/engine": engine.address for engine in site.engines}
    wait(lambda: all_heard(site), "engines that nobody calls silent")
    for listed in looks(site, "ListEngines").values():
        assert {engine.place: engine.address for engine in listed.engines} == addresses
    (leader,) = (folder for name, folder in clients(site).items() if not statuses[name].stands_by)
    (standby,) = (folder for name, folder in clients(site).items() if statuses[name].stands_by)
    assert "leads, by lease" in told(leader, "status", "--node", "fleet")
    assert "stands by: another daemon leads" in told(standby, "status", "--node", "fleet")
    assert place in told(leader, "engines", "--fleet")
    logs = [folder / "fleet" / "decisions.jsonl" for folder in (leader, standby)]  # whoever led then has it
    story = told(leader, "explain", "agent", *[f"--log={log}" for log in logs if log.exists()])
    assert f"place on {place}: new" in story
    assert "turns: " in story
    by_daemon = [exposed(leader), exposed(standby)]
    assert [metrics["penstock_leading"]["fleet"] for metrics in by_daemon] == [1, 0]
    up = dict.fromkeys(addresses, 1)
    both = (leader, standby)
    wait(lambda: all(exposed(each)["penstock_engine_up"] == up for each in both), "engines that both hear")


def all_heard(site: Site) -> bool:
    """A busy machine's engine may be late by more than an engine may be silent."""
    found = looks(site, "ListEngines")
    return len(found) > 1 and not any(engine.silent for listed in found.values() for engine in listed.engines)


def pools_known(site: Site) -> bool:
    found = looks(site, "ListEngines")
    pools = [[engine.kv_total_blocks for engine in listed.engines] for listed in found.values()]
    return bool(pools) and all(len(each) == len(site.engines) and all(each) for each in pools)


def led(site: Site) -> dict[str, Any]:
    """The daemons' statuses, once the preferred one leads: another hands over to it after a while."""
    found = looks(site, "GetStatus")
    return found if [status.stands_by for status in found.values()] == [False, True] else {}

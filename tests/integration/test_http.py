"""The daemon's page, its live data and its metrics, as a browser and Prometheus ask for them."""

import asyncio
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.collector import collector
from support.daemon_process import DaemonProcess, bus_of, eventually, queued, running
from support.ports import free_port

from controlplane.core.model import events as ev

NAME = {"program_id": "p"}
STORY: list[ev.Event] = [
    ev.TurnSubmitted(**NAME, turn_id="1", projected_blocks=10),
    ev.FirstToken(**NAME, turn_id="1", prompt_tokens=100, cached_tokens=40),
    ev.TurnEnded(**NAME, turn_id="1", prompt_tokens=100, cached_tokens=40, output_tokens=5),
]
CLIENT_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


async def story(daemon: DaemonProcess, trace: str = "") -> None:
    """A program's turn and tool; ``trace``: its gate says so of its client's span."""
    async with bus_of(daemon) as bus:
        if trace:
            asked = ev.TurnQueued(**NAME, turn_id="1", prompt_tokens=9, trace=trace)
            await bus.publish("test/gate/one", 1, [asked])
        await bus.publish("test/engine/one", 1, [ev.PoolSampled(total_blocks=1000, free_blocks=900), *STORY])
        await bus.publish("test/tool/one", 1, [ev.ToolStarted(**NAME, call_id="1", tool="bash")])
        await bus.status_where(lambda s: s["programs"].get("p", {}).get("open_tools") == 1, "a tool that runs")
        ended = [ev.ToolEnded(**NAME, call_id="1", tool="bash", duration_ns=5), ev.ProgramEnded(**NAME)]
        await bus.publish("test/tool/one", 2, ended)
        await bus.status_where(lambda s: s["programs"].get("p", {}).get("status") == "ended", "an end")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DaemonProcess, str]]:
    """A daemon that a program has run through, and its page."""
    address = f"127.0.0.1:{free_port()}"
    with running(tmp_path_factory.mktemp("page"), config=f'[http]\nlisten = "{address}"\n') as daemon:

        def is_there() -> bool:
            with suppress(urllib.error.URLError):  # the bus has yet to say something
                return get(f"http://{address}/healthz") == "ok\n"
            return False

        async def begin() -> None:
            await eventually(is_there, what="a page", every_s=0.1)
            await story(daemon)
            async with bus_of(daemon) as bus:
                await bus.publish("test/gate/one", 1, queued("stays"))
                await bus.status_where(lambda s: "stays" in s["programs"], "a program that stays")

        asyncio.run(begin())
        yield daemon, f"http://{address}"


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def test_prometheus_reads_what_happened(page: tuple[DaemonProcess, str]) -> None:
    _, url = page
    families = {family.name: family for family in text_string_to_metric_families(get(f"{url}/metrics"))}
    tokens = {s.labels["kind"]: s.value for s in families["penstock_tokens"].samples if s.name.endswith("_total")}
    assert tokens == {"prompt": 100, "cached": 40, "output": 5}
    assert [s.value for s in families["penstock_bus_connected"].samples] == [1]
    assert "process_resident_memory_bytes" in families


def test_the_page_is_served_whole_and_live(page: tuple[DaemonProcess, str]) -> None:
    _, url = page
    text = get(f"{url}/")
    assert "<title>Penstock</title>" in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    assert "https://" not in text
    for part in re.findall(r"/page/([\w.]+)", text):
        with urllib.request.urlopen(f"{url}/page/{part}", timeout=60) as reply:
            assert reply.read()
            assert reply.headers["Cache-Control"] == "no-cache", "an upgrade must reach browsers"
    with urllib.request.urlopen(f"{url}/live", timeout=60) as stream:
        line = next(line for line in stream if line.startswith(b"data: "))
    look = json.loads(line.removeprefix(b"data: "))
    assert look["status"]["node"] == "test"
    assert [program["program_id"] for program in look["listing"]["programs"]] == ["stays"]
    (strip,) = [each for each in json.loads(get(f"{url}/strips")) if each["program_id"] == "stays"]
    assert [kind for kind, *_ in strip["stretches"]] == ["held"]


def test_a_programs_time_line_is_told_once_until_something_happens(page: tuple[DaemonProcess, str]) -> None:
    _, url = page
    with urllib.request.urlopen(f"{url}/program?id=p", timeout=60) as answer:
        told, mark = json.loads(answer.read()), answer.headers["ETag"]
    assert [turn["turn_id"] for turn in told["turns"]] == ["1"]
    assert [tool["tool"] for tool in told["tools"]] == ["bash"]
    assert told["ended_ns"]
    for asked, status in ((f"{url}/program?id=p", 304), (f"{url}/program?id=q", 404), (f"{url}/program", 404)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(asked, headers={"If-None-Match": mark}), timeout=60)
        assert refused.value.code == status
        if status == 404:
            assert json.loads(refused.value.read())["error"]


@pytest.mark.parametrize(("host", "status"), [("localhost", 200), ("[::1]:80", 200), ("rebound.example:80", 421)])
def test_a_page_of_this_machine_answers_to_its_names_alone(
    page: tuple[DaemonProcess, str], host: str, status: int
) -> None:
    """Else a web site could have its visitor's browser read the programs' ids for it (DNS rebinding)."""
    _, url = page
    request = urllib.request.Request(f"{url}/metrics", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.status == status
    except urllib.error.HTTPError as refused:
        assert refused.code == status


def test_an_address_in_use_is_refused_and_the_default_gives_way(
    page: tuple[DaemonProcess, str], tmp_path: Path
) -> None:
    taken = page[1].removeprefix("http://")
    with running(tmp_path, config=f'[http]\nlisten = "{taken}"\n') as second:
        assert second.wait() == 1
    assert f"$.http.listen: cannot listen at {taken}" in second.log


async def test_metrics_and_traces_go_over_otlp(tmp_path: Path) -> None:
    with collector() as told:
        config = f'[http]\nlisten = "off"\n[telemetry]\notlp_endpoint = "{told.url}"\n'
        with running(tmp_path, config=config) as daemon:
            await story(daemon, f"00-{CLIENT_TRACE}-00f067aa0ba902b7-01")
            assert daemon.stop() == 0  # what is left is sent
    assert "Traceback" not in daemon.log
    spans = told.spans()
    assert {"program", "turn", "tool bash"} <= {span.name for span in spans}
    assert {span.trace_id for span in spans} == {CLIENT_TRACE}, "they join their client's"
    assert {"penstock.window.limit", "penstock.engine.up"} <= set(told.metrics())

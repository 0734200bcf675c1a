"""One trace through Envoy, the gates of fleet and node, the engine and a tool: the one that the client began."""

import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.collector import Collector, Told, collector
from support.daemon_process import DaemonProcess

from controlplane.emit.tool_reporter import ToolReporter
from controlplane.lab.fleet.processes import Kind
from controlplane.lab.fleet.site import Site, SiteOptions, running_site

TIMEOUT_S = 240.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPANS = ("00f067aa0ba902b7", "00f067aa0ba902b8")  # the client's, one for each of its requests
ENVOY = "penstock-envoy"
NODE = "node-1"
SCALE = 20.0


@pytest.fixture
def told() -> Iterator[Collector]:
    with collector() as found:
        yield found


def wait(look: Callable[[], object], what: str) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not look():
        assert time.monotonic() < until_s, f"no {what} within {TIMEOUT_S:g} s"
        time.sleep(0.05)


def ask(site: Site, span: str) -> None:
    """One turn of a program, which its client traces."""
    body = {"model": "double", "max_tokens": 4, "messages": [{"role": "user", "content": "word " * 50}]}
    headers = {"content-type": "application/json", "x-session-id": "agent", "traceparent": f"00-{TRACE}-{span}-01"}
    request = urllib.request.Request(f"{site.urls[0]}/v1/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:
        assert reply.status == 200


def is_governed(site: Site) -> bool:
    """Whether the engine's own gate has heard its node's daemon."""
    with urllib.request.urlopen(f"http://{site.engines[0].address}/penstock/health", timeout=TIMEOUT_S) as reply:
        return bool(json.load(reply)["mode"] == "governed")


def test_a_clients_trace_goes_through_envoy_gates_engine_and_tools(tmp_path: Path, told: Collector) -> None:
    options = SiteOptions(engines=1, daemons=1, envoys=1, time_scale=SCALE, otlp_endpoint=told.url)
    (tmp_path / "site").mkdir()
    config = tmp_path / "node.toml"
    config.write_text(f'time_scale = {SCALE}\n[http]\nlisten = "off"\n[telemetry]\notlp_endpoint = "{told.url}"\n')
    with running_site(options, tmp_path / "site") as site:
        daemon = DaemonProcess(tmp_path / NODE, "--nats", site.nats_url, "--config", str(config), node=NODE)
        daemon.start()
        tools = ToolReporter(url=site.nats_url, node=NODE)
        try:
            wait(site.is_asked, "daemon that Envoy asks: until then turns go around it")
            wait(lambda: is_governed(site), "daemon of the node")
            ask(site, SPANS[0])
            tools.tool_started("agent", "call-1", "bash")
            tools.tool_ended("agent", "call-1")
            ask(site, SPANS[1])
            wait(lambda: len(of(told, ENVOY)) >= 4, "span of Envoy's for each request and each attempt")
            tools.close()
            assert daemon.stop() == 0
            for process in site.of(Kind.DAEMON):
                process.stop()  # spans that are open are sent
        finally:
            daemon.clean_up()
    spans = told.spans()
    assert {span.trace_id for span in spans} == {TRACE}
    taken = [one(span for span in of(told, ENVOY) if span.parent_id == client) for client in SPANS]
    attempts = [one(span for span in of(told, ENVOY) if span.parent_id == above.span_id).span_id for above in taken]
    for instance in ("fleet", NODE):
        mine = [span for span in of(told, "penstock") if span.instance == instance]
        turns = [span for span in mine if span.name == "turn"]
        assert sorted(turn.parent_id for turn in turns) == sorted(attempts)
        assert one(span for span in mine if span.name == "program").parent_id == attempts[0]
    program = one(span for span in spans if (span.name, span.instance) == ("program", NODE))
    assert one(span for span in spans if span.name == "tool bash").parent_id == program.span_id


def of(told: Collector, service: str) -> list[Told]:
    return [span for span in told.spans() if span.service == service]


def one(spans: Iterator[Told]) -> Told:
    (found,) = spans
    return found

"""Endpoints, asked how many agents they serve."""

import asyncio
import json
import threading

import pytest
from endpoint_double import EndpointDouble, serving
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.model.errors import ConfigError, EngineUnavailable
from controlplane.lab.capacity.endpoint import endpoints
from controlplane.lab.experiment import Workload
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.workload.arrivals import Closed
from controlplane.lab.workload.synthetic import synthesize

SMALL = ["--scale-tokens", "0.001", "--scale-outputs", "0.01", "--scale-tools", "0", "--shared-prefix", "1"]


def test_endpoints_are_asked_with_the_same_agents_and_one_that_is_gone_takes_no_answer_with_it() -> None:
    endpoint, ready, stop = EndpointDouble(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with serving(endpoint):
            ready.set()
            await asyncio.to_thread(stop.wait, 60)

    server = threading.Thread(target=asyncio.run, args=(serve(),))
    server.start()
    assert ready.wait(60)
    urls = ["--url", f"one={endpoint.url}", "--url", f"two={endpoint.url}/v1", "--url", "gone=http://127.0.0.1:9"]
    ran = CliRunner().invoke(
        app, ["capacity", "synthetic:bfcl-v4", *urls, *SMALL, "--seed", "1", "--most", "2", "--json"]
    )
    stop.set()
    server.join()
    assert ran.exit_code == 1, ran.output
    one, two = json.loads(ran.stdout[ran.stdout.index("{\n") :])["systems"]
    assert (one["system"], two["system"]) == ("one", "two")
    assert (one["agents"], one["is_at_least"]) == (2, True)
    (tried,) = one["tried"]
    assert tried["turns"] > 0
    assert tried["cache_hit_ratio"] == pytest.approx(0.5, abs=0.1)
    assert two["tried"][0]["turns"] > 0


def test_few_agents_may_all_be_too_large_where_more_are_not() -> None:
    asked = ["synthetic:agentperf-like", "--max-context", "20000", "--seed", "3", "--url", "http://127.0.0.1:9"]
    ran = CliRunner().invoke(app, ["capacity", *asked])
    assert isinstance(ran.exception, EngineUnavailable), "somebody is asked"


def test_an_option_that_would_do_nothing_and_a_name_twice_are_refused() -> None:
    for name, options in {"profile": ["--url", "http://127.0.0.1:9"], "time-scale": []}.items():
        ran = CliRunner().invoke(app, ["capacity", *options, f"--{name}", "3"])
        assert ran.exit_code == 2
        assert f"--{name}" in ran.output
    trace = synthesize("bfcl-v4", programs=1)
    asked = ReplayOptions(trace=trace, workload=Workload(trace=""), url="http://", arrival=Closed(1))
    found = endpoints(["http://10.0.0.1:1/v1?a=b", "stock=http://10.0.0.1:2"], asked, [1])
    assert [system.name for system in found] == ["http://10.0.0.1:1/v1", "stock"]
    with pytest.raises(ConfigError, match="named twice"):
        endpoints(["a=http://10.0.0.1:1", "a=http://10.0.0.1:2"], asked, [1])

"""A profile of the real engine: measured over HTTP, fitted, and read back by the simulator."""

import json
from pathlib import Path

import pytest
from engine_server import POOL_TOKENS, EngineServer
from engine_versions import on
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.model.errors import EngineUnavailable
from controlplane.lab.calibrate.measure import Plan, measure
from controlplane.lab.calibrate.profile import fit, to_profile

SMALL = Plan(
    prefill=(100, 200, 400, 600),
    cached=((300, 200),),
    batches=(1, 2),
    contexts=(100, 300),
    chats=(20, 40),
    repetitions=1,
)


@on("sglang")
def test_the_engine_says_what_it_is_and_how_long_it_takes(stock_engine: EngineServer) -> None:
    told: list[str] = []
    measured = measure(stock_engine.url, SMALL, told.append)
    assert measured.engine.pool_tokens == POOL_TOKENS
    assert len(told) == 1 + 5 + 4 + 2
    assert (len(measured.prefill), len(measured.decode), len(measured.chats)) == (5, 4, 2)
    assert all(one.seconds > 0 for one in (*measured.prefill, *measured.decode, *measured.chats))
    assert 20 <= measured.chats[0].tokens < measured.chats[1].tokens
    assert measured.engine.results_late, "its steps block, and it overlaps them"
    profile = to_profile(measured, fit(measured), "tiny")
    assert profile.kv_pool_tokens == POOL_TOKENS
    assert profile.source.startswith(f"SGLang {measured.engine.version}")


@on("sglang")
def test_the_command_writes_a_profile_that_simulates(stock_engine: EngineServer, tmp_path: Path) -> None:
    out = tmp_path / "tiny.json"
    ran = CliRunner().invoke(app, ["calibrate", stock_engine.url, "-o", str(out), "--repetitions", "1"])
    assert out.exists(), (ran.output, ran.exception)
    assert json.loads(out.read_text())["kind"] == "fitted"
    simulated = CliRunner().invoke(
        app,
        ["simulate", "synthetic:swe-like", "-n", "2", "--profile", str(out), "--scale-tokens", "0.01", "--json"],
    )
    assert simulated.exit_code == 0, simulated.output


def test_nobody_there_is_told() -> None:
    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:9"):
        measure("http://127.0.0.1:9", SMALL, print)

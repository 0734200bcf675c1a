"""The benchmark of real agents in whole runs, with two of them: its tools do the tasks, and its limit ends them."""

import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from support.agent_runs import ROOT

sys.path.append(str(ROOT / "bench"))

from ab.results import append, lines_of
from real.one_run import BARE, Scenario, play
from real.results import COMPLETED, TIMED_OUT, Row, report
from real.tasks import Load

SMALL = Scenario(
    load=Load(openhands=1, mini=1, rate=9.0, modules=(1, 1), reply_tokens=16, builds=1.0, build_cpu_s=(0.1, 0.1))
)


@pytest.mark.slow
@pytest.mark.parametrize(("system", "limit_s", "outcome"), [("penstock", 600.0, COMPLETED), (BARE, 1.0, TIMED_OUT)])
def test_a_run_is_measured_and_kept(
    agent_python: str, tmp_path: Path, system: str, limit_s: float, outcome: str
) -> None:
    scenario = replace(SMALL, limit_s=limit_s)
    (tmp_path / "run").mkdir()
    row = play(scenario, system, 1, agent_python, tmp_path / "run", goes_first=False)
    assert {agent.outcome for agent in row.agents} == {outcome}, (tmp_path / "run" / "crew.log").read_text()
    append(tmp_path / "rows.jsonl", row)
    assert list(lines_of(tmp_path / "rows.jsonl", Row)) == [row]
    assert f"| 1, {system} | {row.count(COMPLETED)} | {row.count(TIMED_OUT)} | 0 |" in report([row])
    if outcome == COMPLETED:
        assert row.hit_rate > 0.5, "a prompt continues the one before"
        assert 0 < row.mean_s <= row.p95_s < limit_s
    left = [
        process for process in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(process.info["cmdline"])
    ]
    assert left == []

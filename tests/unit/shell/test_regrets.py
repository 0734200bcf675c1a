"""Verdicts in a daemon: in its log, in explain and in ``penstock regret``, as metrics and for the page."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.core_driver import Driver, fixed
from support.disks import PromptDisk
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core import events as ev
from controlplane.core.commands import Retain
from controlplane.core.control import ControlRules
from controlplane.core.errors import ConfigError
from controlplane.core.regret import Cause, Outcome, Sums, Verdict
from controlplane.core.types import seconds
from controlplane.operate.explain import lines, story
from controlplane.operate.regret import BY, read_regret, rows
from controlplane.operate.verdicts import sentence
from controlplane.shell.decision_log import DecisionLog
from controlplane.shell.regret_metrics import REGRET_STATES, measure_regret
from controlplane.shell.regrets import Regrets
from controlplane.wire.decisions import VerdictRecord, read_decisions
from controlplane.wire.log import Header, LogWriter


class Judged:
    """A controller of one slot with its log and its regrets, as the daemon has them."""

    def __init__(self, folder: Path) -> None:
        self.driver = Driver(fixed(1), ControlRules(stall_s=60))
        self.path = folder / "local" / "decisions.jsonl"
        self.log = DecisionLog(self.path, 1_000_000, lambda: self.driver.controller, PromptDisk())
        self.regrets = Regrets()
        self.regrets.heard.append(self.log.verdict)
        self.regrets.lead((), self.driver.now_ns)

    def send(self, event: ev.Event) -> None:
        self.driver.send(event)
        for recorder in (self.log, self.regrets):
            recorder.event(event, self.driver.now_ns)

    def engine(self, kind: type[ev.Event], turn: int = 1, **values: object) -> None:
        ids = {} if kind is ev.PoolSampled else {"program_id": "a", "turn_id": f"a.{turn}"}
        self.send(self.driver.engine(kind, **ids, **values))

    def ask(self, turn: int) -> None:
        self.send(self.driver.gate(ev.TurnQueued, program_id="a", turn_id=f"a.{turn}", tenant="acme"))

    def tick(self, after_s: float = 0.0) -> None:
        for command in self.driver.tick(after_s):
            self.told(command)

    def told(self, command: object) -> None:
        for recorder in (self.log, self.regrets):
            recorder.command(command, self.driver.now_ns)  # type: ignore[arg-type]

    def run(self) -> None:
        """A turn, a pin that is too short, and another turn that has to compute its context again."""
        self.engine(ev.PoolSampled, total_blocks=10_000, free_blocks=0, evictable_blocks=10_000)
        self.ask(1)
        self.tick(2.0)
        self.engine(ev.TurnSubmitted, projected_blocks=1000)
        self.engine(ev.FirstToken, prompt_tokens=1000, prefill_ns=seconds(1))
        self.engine(ev.TurnEnded, prompt_tokens=1000, output_tokens=10, tool="bash")
        self.told(Retain(command_id=1000, program_id="a", ttl_ns=seconds(1), reason="bash"))
        self.driver.wait(5)
        self.engine(ev.TurnSubmitted, turn=2, projected_blocks=1500)
        self.engine(ev.FirstToken, turn=2, prompt_tokens=1500, cached_tokens=10, prefill_ns=seconds(1))


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Judged]:
    made = Judged(tmp_path)
    made.run()
    yield made
    made.log.close()


def test_a_decision_is_told_with_its_verdict(judged: Judged) -> None:
    told = story(read_decisions(judged.path), "a")
    assert [each.decision.kind for each in told] == ["admit", "retain"]
    assert [verdict.verdict.kind for verdict in told[0].verdicts] == ["hold", "admit"]
    (record,) = told[1].verdicts
    assert (record.verdict.cause, record.verdict.again_tokens) == (Cause.TTL_SHORT, 1000)
    text = "\n".join(lines(told))
    assert "    verdict on the hold: about -2.00s: after 2.0s its turn ran; gained nothing; cost" in text
    assert "its context was missed, as it came back after its pin had ended" in text
    assert "1,000 tokens computed again and 1,010 token-seconds of memory" in text


def test_what_nobody_decided_is_told_behind_the_decision_before_it(judged: Judged) -> None:
    judged.engine(ev.TurnEnded, turn=2, prompt_tokens=1500)
    judged.engine(ev.TurnSubmitted, turn=3, projected_blocks=1500)
    judged.engine(ev.FirstToken, turn=3, prompt_tokens=1600, prefill_ns=seconds(1))
    text = "\n".join(lines(story(read_decisions(judged.path), "a")))
    assert "    afterwards, by nobody: -" in text
    assert "others took its room" in text


def test_a_log_from_before_there_were_verdicts_is_read_as_ever(judged: Judged) -> None:
    judged.log.close()
    old = [line for line in judged.path.read_text().splitlines() if json.loads(line)["record"] != "verdict"]
    judged.path.write_text("\n".join(old) + "\n")
    assert [each.verdicts for each in story(read_decisions(judged.path), "a")] == [[], []]
    regret = read_regret([judged.path])
    assert (regret.judged, regret.without_verdict) == ([], 2)


def test_a_verdict_with_fields_of_a_later_version_is_read(judged: Judged) -> None:
    judged.log.close()
    judged.path.write_text(
        judged.path.read_text().replace('"kind":"retain","program', '"new":1,"kind":"retain","program')
    )
    kinds = [each.verdict.kind for each in read_decisions(judged.path) if isinstance(each, VerdictRecord)]
    assert kinds == ["hold", "admit", "retain"]


@pytest.mark.parametrize("by", sorted(BY))
def test_they_are_summed_up_by_what_one_asks_for(judged: Judged, by: str) -> None:
    regret = read_regret([judged.path])
    found = rows(regret.judged, by)
    assert sum(row.total.count for row in found) == len(regret.judged) == 3
    assert sum(row.total.again_tokens for row in found) == regret.total.again_tokens == 1000
    names = {row.name for row in found}
    expected = {
        "kind": {"hold", "admit", "retain"},
        "policy": {"admission fixed, packing fcfs", "retention never"},
        "tool": {"(none)", "bash"},
        "class": {"(none)", "acme, any agent, first prompt from 724 tokens"},
        "tenant": {"acme"},
        "cause": {"(none)", "ttl_short"},
        "outcome": {"ran", "miss"},
        "program": {"a"},
    }
    assert names == expected[by]


def test_the_command_prints_a_table_json_and_a_picture(judged: Judged, tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["regret", "--state-dir", str(tmp_path), *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    table = run()
    assert "computed again" in table
    assert "Contexts that were found without any decision are not in a decision log" in table
    told = json.loads(run("--json", "--by", "cause", "--plot", str(tmp_path / "regret.svg")))
    assert [row["name"] for row in told["rows"]] == ["(none)", "ttl_short"]
    assert told["total"]["again_tokens"] == 1000
    assert "<svg" in (tmp_path / "regret.svg").read_text()
    run("--plot", str(tmp_path / "regret.png"))
    assert (tmp_path / "regret.png").read_bytes().startswith(b"\x89PNG")
    refused = CliRunner().invoke(app, ["regret", "--state-dir", str(tmp_path), "--by", "colour"])
    assert isinstance(refused.exception, ConfigError)
    assert "expected kind, policy" in str(refused.exception)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("something else\n")
    with pytest.raises(ConfigError, match="neither a decision log nor a run"):
        read_regret([tmp_path / "notes.txt"])
    with pytest.raises(ConfigError, match="no decision log"):
        read_regret([tmp_path / "nothing.jsonl"])


def test_a_recorded_run_gives_the_same_verdicts_with_what_is_no_line_live(tmp_path: Path) -> None:
    judged = Judged(tmp_path)
    with LogWriter(tmp_path / "run.jsonl", Header(node="n", preset="mars")) as log:
        judged.log, live = log, judged.log  # type: ignore[assignment]
        judged.run()
    live.close()
    regret = read_regret([tmp_path / "run.jsonl"])
    assert regret.is_whole
    assert [each.verdict.kind for each in regret.judged] == ["hold", "admit", "retain"]
    assert {row.name for row in rows(regret.judged, "policy")} == {
        "admission aimd, packing pressure_aware",
        "retention opportunistic",
    }


def test_hindsight_needs_a_recorded_run(judged: Judged, tmp_path: Path) -> None:
    with LogWriter(tmp_path / "run.jsonl", Header(node="n", preset="mars")) as log:
        other = Judged(tmp_path / "other")
        other.log, live = log, other.log  # type: ignore[assignment]
        other.run()
        live.close()
    result = CliRunner().invoke(
        app, ["regret", "--hindsight", str(tmp_path / "run.jsonl"), str(tmp_path / "run.jsonl")]
    )
    assert "Hindsight: 4,980 tokens were computed, 2,000 of them again" in result.output
    assert "have computed 0 again: regret 1.67" in result.output
    told = CliRunner().invoke(app, ["regret", "--json", "--hindsight", str(tmp_path / "run.jsonl")])
    assert json.loads(told.stdout)["hindsight"]["least_tokens"] == 0
    with pytest.raises(ConfigError, match="hindsight needs every turn"):
        read_regret([judged.path], hindsight=True)


def test_what_a_daemon_did_not_see_to_its_end_is_unknown(judged: Judged) -> None:
    judged.engine(ev.TurnEnded, turn=2, prompt_tokens=1500)
    judged.told(Retain(command_id=1001, program_id="a", ttl_ns=seconds(60), reason="bash"))
    judged.regrets.rest(judged.driver.now_ns)
    last = list(read_decisions(judged.path))[-1]
    assert isinstance(last, VerdictRecord)
    assert (last.number, last.verdict.outcome, last.verdict.gain_s) == (1001, Outcome.UNKNOWN, 0.0)
    judged.engine(ev.TurnSubmitted, turn=3, projected_blocks=1500)
    before = judged.regrets.sums.all.count
    judged.engine(ev.FirstToken, turn=3, prompt_tokens=1600, prefill_ns=seconds(1))
    assert judged.regrets.sums.all.count == before, "it does not lead"
    program = judged.driver.program("a")
    program.retained_until_ns = judged.driver.now_ns + seconds(60)
    judged.regrets.lead([program], judged.driver.now_ns)
    judged.engine(ev.FirstToken, turn=4, prompt_tokens=1700, prefill_ns=seconds(1))
    (pin,) = [each for each in judged.regrets.view().latest if each.number == 0 and each.kind == "retain"]
    assert (pin.again_tokens, pin.cause) == (1500, Cause.PRESSURE)


def test_the_page_is_told_kinds_and_the_latest_first(judged: Judged) -> None:
    view = judged.regrets.view()
    assert [each.kind for each in view.latest] == ["retain", "admit", "hold"]
    assert {row.kind: row.again_tokens for row in view.kinds} == {"retain": 1000, "admit": 0, "hold": 0}
    assert view.regret_ratio >= 1.0
    assert view.again_tokens == 1000


def test_sums_are_metrics_with_labels_that_are_few() -> None:
    sums = Sums(pins_lost=2)
    told = {"program_id": "p", "opened_ns": 0, "closed_ns": 1, "outcome": Outcome.MISS, "cause": Cause.PRESSURE}
    sums.add(Verdict(kind="retain", again_tokens=7, cost_s=2.0, paid_s=2.0, best_s=1.0, **told))  # type: ignore[arg-type]
    reader = InMemoryMetricReader()
    measure_regret(MeterProvider(metric_readers=[reader]).get_meter("penstock"), lambda: sums)
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {
        m.name: m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics
    }
    values = {
        name: [(dict(p.attributes), p.value) for p in metric.data.data_points] for name, metric in metrics.items()
    }
    assert set(values) == {state.name for state in REGRET_STATES} | {"penstock.regret.pins_lost"}
    assert values["penstock.verdicts"] == [({"kind": "retain", "outcome": "miss", "cause": "pressure"}, 1)]
    assert values["penstock.regret.again_tokens"] == [({"kind": "retain", "cause": "pressure"}, 7)]
    assert values["penstock.regret.paid"] == [({}, 2.0)]
    assert values["penstock.regret.pins_lost"] == [({}, 2)]


def test_a_verdict_in_words_says_both_sides() -> None:
    told = {"program_id": "p", "opened_ns": 0, "closed_ns": seconds(3)}
    hit = Verdict(
        kind="retain", outcome=Outcome.HIT, hit_tokens=900, held_token_s=2700.0, cost_s=0.3, gain_s=1.2, **told
    )
    assert sentence(hit) == (
        "+0.90s: after 3.0s its context was there; gained 900 tokens found (1.20s); "
        "cost 2,700 token-seconds of memory (0.30s)"
    )

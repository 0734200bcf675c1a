"""Verdicts in a daemon: in its log, in explain and in ``penstock regret``, as metrics and for the page."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.journalled import Journalled
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import seconds
from controlplane.core.regret import CLIENT, Cause, Outcome, Sums, Verdict
from controlplane.daemon.observe.instruments import REGRET, make
from controlplane.daemon.observe.recomputing import Recomputing
from controlplane.operate.explain import lines, sentence, story
from controlplane.operate.regret import BY, read_regret, rows
from controlplane.wire.decisions import VerdictRecord, read_decisions
from controlplane.wire.log import Header, LogWriter


@pytest.fixture
def judged(tmp_path: Path) -> Iterator[Journalled]:
    made = Journalled(path=tmp_path / "local" / "decisions.jsonl")
    made.pin_too_short()
    yield made
    made.log.close()


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The same as ``judged``, as a run that was recorded."""
    node, path = Journalled(), tmp_path / "run.jsonl"
    with LogWriter(path, Header(node="n", preset="mars")) as log:
        node.recorders = [log]
        node.pin_too_short()
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["regret", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_decision_is_told_with_its_verdict(judged: Journalled) -> None:
    told = story(read_decisions(judged.path), "a")
    assert [each.decision.kind for each in told] == ["admit", "retain"]
    assert [verdict.verdict.kind for verdict in told[0].verdicts] == ["hold", "admit"]
    (record,) = told[1].verdicts
    assert (record.verdict.cause, record.verdict.again_tokens) == (Cause.TTL_SHORT, 1000)
    text = "\n".join(lines(told))
    assert "    verdict on the hold: about -2.00s: after 2.0s its turn ran; gained nothing; cost" in text
    assert "its context was missed, as it came back after its pin had ended" in text
    assert "1,000 tokens computed again and 1,010 token-seconds of memory" in text


def test_what_nobody_decided_is_told_behind_the_decision_before_it(judged: Journalled) -> None:
    judged.turn("a", 3, tokens=1600)
    text = "\n".join(lines(story(read_decisions(judged.path), "a")))
    assert "    afterwards, without a decision: -" in text
    assert "others took its room" in text


def test_a_log_of_an_earlier_version_is_read_and_one_of_a_later(judged: Journalled) -> None:
    judged.log.close()
    text = judged.path.read_text()
    old = [line for line in text.splitlines() if json.loads(line)["record"] != "verdict"]
    judged.path.write_text("\n".join(old) + "\n")
    assert [each.verdicts for each in story(read_decisions(judged.path), "a")] == [[], []]
    regret = read_regret([judged.path])
    assert (regret.judged, regret.without_verdict) == ([], 2)
    judged.path.write_text(text.replace('"kind":"retain","program', '"new":1,"kind":"retain","program'))
    kinds = [each.verdict.kind for each in read_decisions(judged.path) if isinstance(each, VerdictRecord)]
    assert kinds == ["hold", "admit", "retain"]


@pytest.mark.parametrize("by", sorted(BY))
def test_they_are_summed_up_by_what_one_asks_for(judged: Journalled, by: str) -> None:
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


def test_the_command_prints_a_table_and_json(judged: Journalled, tmp_path: Path) -> None:
    table = run("--state-dir", tmp_path)
    assert "\nHolding a turn: too few to judge (1).\n" in table
    assert "computed again" in table
    assert "Contexts that were found without any decision are not in a decision log" in table
    told = json.loads(run("--state-dir", tmp_path, "--json", "--by", "cause"))
    assert [row["name"] for row in told["rows"]] == ["(none)", "ttl_short"]
    assert told["total"]["again_tokens"] == 1000
    refused = CliRunner().invoke(app, ["regret", "--state-dir", str(tmp_path), "--by", "colour"])
    assert isinstance(refused.exception, ConfigError)
    assert "expected kind, policy" in str(refused.exception)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("something else\n")
    with pytest.raises(ConfigError, match="neither a decision log nor a run"):
        read_regret([tmp_path / "notes.txt"])
    with pytest.raises(ConfigError, match="no decision log"):
        read_regret([tmp_path / "nothing.jsonl"])


def test_a_recorded_run_gives_the_same_verdicts_with_what_is_no_line_live(recorded: Path) -> None:
    regret = read_regret([recorded])
    assert regret.is_whole
    assert [each.verdict.kind for each in regret.judged] == ["hold", "admit", "retain"]
    assert {row.name for row in rows(regret.judged, "policy")} == {
        "admission aimd, packing pressure_aware",
        "retention opportunistic",
    }


def test_hindsight_needs_a_recorded_run(judged: Journalled, recorded: Path) -> None:
    other = recorded.with_name("other.jsonl")
    other.write_bytes(recorded.read_bytes())
    output = run("--hindsight", recorded, other, recorded)  # one that is named twice is read once
    assert "Hindsight: 4,980 tokens were computed, 2,000 of them again" in output
    assert "have computed 0 again: regret 1.67" in output
    assert json.loads(run("--json", "--hindsight", recorded))["hindsight"]["least_tokens"] == 0
    with pytest.raises(ConfigError, match="hindsight needs every turn"):
        read_regret([judged.path], hindsight=True)


def test_what_a_daemon_did_not_see_to_its_end_is_unknown(judged: Journalled) -> None:
    judged.retain("a", 1001, 60)
    judged.regrets.rest(judged.driver.now_ns)
    last = list(read_decisions(judged.path))[-1]
    assert isinstance(last, VerdictRecord)
    assert (last.number, last.verdict.outcome, last.verdict.gain_s) == (1001, Outcome.UNKNOWN, 0.0)
    before = judged.regrets.sums.all.count
    judged.turn("a", 3, tokens=1600)
    assert judged.regrets.sums.all.count == before, "it does not lead"
    program = judged.driver.program("a")
    program.retained_until_ns = judged.driver.now_ns + seconds(60)
    judged.regrets.lead([program], judged.driver.now_ns)
    judged.turn("a", 4, tokens=1700)
    latest = [each.verdict for each in judged.regrets.view().latest]
    (pin,) = [each for each in latest if each.number == 0 and each.kind == "retain"]
    assert (pin.again_tokens, pin.cause) == (1610, Cause.PRESSURE)


def test_the_page_is_told_kinds_and_the_latest_first(judged: Journalled) -> None:
    view = judged.regrets.view()
    assert [each.verdict.kind for each in view.latest] == ["retain", "admit", "hold"]
    assert view.latest[0].happened.startswith("its context was missed")
    assert [each.text for each in view.sentences] == [
        "Holding a turn: too few to judge (1)",
        "Pinning a context: too few to judge (1)",
    ]
    assert {row.kind: row.again_tokens for row in view.kinds} == {"retain": 1000, "admit": 0, "hold": 0}
    assert view.regret_ratio >= 1.0
    assert view.again_tokens == 1000


def test_sums_are_metrics_with_labels_that_are_few() -> None:
    sums = Sums(pins_lost=2)
    told = {"program_id": "p", "opened_ns": 0, "closed_ns": 1, "outcome": Outcome.MISS, "cause": Cause.PRESSURE}
    sums.add(Verdict(kind="retain", again_tokens=7, cost_s=2.0, paid_s=2.0, best_s=1.0, **told))  # type: ignore[arg-type]
    reader = InMemoryMetricReader()
    make(MeterProvider(metric_readers=[reader]).get_meter("penstock"), REGRET, lambda _: sums)
    data = reader.get_metrics_data()
    assert data is not None
    metrics = {
        m.name: m for resource in data.resource_metrics for scope in resource.scope_metrics for m in scope.metrics
    }
    values = {
        name: [(dict(p.attributes), p.value) for p in metric.data.data_points] for name, metric in metrics.items()
    }
    assert set(values) == {each.name for each in REGRET}
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


def test_a_client_that_has_much_computed_again_is_named() -> None:
    """By the last half hour: one that has stopped to is named no more."""
    sums, recomputing = Sums(), Recomputing()
    miss = Verdict(
        kind=CLIENT,
        program_id="p",
        opened_ns=0,
        closed_ns=1,
        outcome=Outcome.MISS,
        cause=Cause.VOLATILE,
        again_tokens=41_000,
        client="claude-cli 2.1.197",
    )
    found = []
    for minute in range(70):
        sums.client(miss.client).computed_tokens += 100_000
        if minute < 20:
            sums.add(miss)
        found.append(recomputing.look(sums, seconds(60 * minute + 1)))
        assert recomputing.look(sums, seconds(60 * minute + 2)) is None, "once a minute"
    why = "41% of prefill is computed again, as its system prompt has a part that changes by itself"
    assert found[10] == f"claude-cli 2.1.197: {why}"
    assert found[-1] == ""

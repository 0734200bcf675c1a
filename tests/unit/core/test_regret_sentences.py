"""What decisions cost and gained, in sentences."""

from typing import Any

import pytest

from controlplane.core.regret import Cause, Sums, Verdict, amount, net, sentences
from controlplane.core.regret.verdict import Outcome


def add(sums: Sums, count: int, kind: str, outcome: Outcome = Outcome.RAN, **sides: Any) -> None:
    for _ in range(count):
        sums.add(Verdict(kind=kind, program_id="p", opened_ns=0, closed_ns=1, outcome=outcome, **sides))


def test_waiting_is_told_with_what_it_spared_others() -> None:
    """A sum of waits alone looks like a loss of days wherever a queue is long."""
    sums = Sums()
    add(sums, 900, "hold", wait_s=4.0, cost_s=4.0, gain_s=6.0)
    add(sums, 300, "pause", Outcome.MISS, wait_s=0.4, cost_s=0.8)
    add(sums, 1200, "admit", gain_s=0.6)
    (said,) = sentences(sums)
    assert said.text == (
        "Holding a turn cost 3.1 s of waiting and 0.1 s of recomputing, and saved others 0.6 s of waiting and "
        "4.5 s of recomputing and memory: +1.9 s a turn over 1,200 turns"
    )
    assert said.net_s == pytest.approx(1.9)


def test_few_are_not_judged_and_what_is_unknown_does_not_count() -> None:
    sums = Sums()
    add(sums, 3, "retain", Outcome.HIT, cost_s=100.0)
    add(sums, 40, "retain", Outcome.UNKNOWN)
    assert [each.text for each in sentences(sums)] == ["Pinning a context: too few to judge (3)"]
    add(sums, 17, "retain", Outcome.MISS)
    (said,) = sentences(sums)
    assert said.text == (
        "Pinning a context cost 15.0 s of memory and recomputing, and saved nothing: -15.0 s a pin over 20 pins"
    )


def test_what_nobody_decided_is_a_sum() -> None:
    sums = Sums()
    add(sums, 1, "nobody", Outcome.HIT)
    assert sentences(sums) == []
    add(sums, 1, "nobody", Outcome.MISS, again_tokens=4000, cost_s=90.0)
    assert [each.text for each in sentences(sums)] == [
        "Leaving 2 contexts alone cost 1.5 min of recomputing in all: 4,000 tokens"
    ]


def test_clients_that_change_their_prompts_are_named_with_their_share() -> None:
    sums = Sums()
    for name, computed in (("claude-cli 2.1.197", 10_000), ("codex 0.171", 100_000), ("aider 1", 100)):
        sums.client(name).computed_tokens += computed
    sides = {"cause": Cause.COMPACTED, "again_tokens": 4100, "cost_s": 4.1}
    add(sums, 1, "client", Outcome.MISS, client="claude-cli 2.1.197", **sides)
    add(sums, 1, "client", Outcome.MISS, client="codex 0.171", **sides)
    assert [each.text for each in sentences(sums)] == [
        "Clients that changed the prompt of 2 turns cost 8.2 s of recomputing in all: 8,200 tokens, "
        "claude-cli 2.1.197 41% of its prefill and codex 0.171 4% of its prefill"
    ]


@pytest.mark.parametrize(
    ("value_s", "told"),
    [(0.0, "0.00 s"), (3.14, "3.1 s"), (90, "1.5 min"), (3000, "50 min"), (4_227_582, "1,174 h")],
)
def test_units_fit(value_s: float, told: str) -> None:
    assert amount(value_s) == told
    assert net(-value_s or -1.0).startswith("-")

"""What is kept of a node's last hour."""

from types import SimpleNamespace as Told
from typing import Any

from controlplane.daemon.observe.journal import History, Turn
from controlplane.daemon.observe.samples import Samples


def told(now_s: int, active: int, refused: int = 0) -> Any:
    pressure = Told(
        programs_active=active, queue_length=1, kv_use_ratio=0.5, cpu_use_ratio=0.1, cpu_stall_ratio=0.0
    )
    refusals = [Told(turns=refused)] if refused else []
    return Told(now_ns=now_s * 10**9, window=Told(limit=8), pressure=pressure, refusals=refusals)


def ended(samples: Samples, program_id: str, *, is_known: bool = False) -> None:
    turn = Turn(turn_id="t", prompt_tokens=100, cached_tokens=60, output_tokens=10)
    samples.turn_ended(History(program_id=program_id, began_ns=0), turn, 0, is_known=is_known)


def test_a_sample_has_what_came_in_it_and_not_what_came_before_the_daemon() -> None:
    now = [told(100, 2, refused=5)]
    samples = Samples(lambda: now[0])
    samples.take(1000)
    ended(samples, "a")
    ended(samples, "a", is_known=True)  # word of it came twice
    ended(samples, "anonymous-1")
    now[0] = told(120, 4, refused=8)  # a clock that runs 20 times faster
    samples.take(2000)
    first, second = samples.since()
    assert (first.turns, first.refused, first.span_s) == (0, 0, 0.0)
    assert (second.turns, second.anonymous_turns, second.refused, second.span_s) == (2, 1, 3, 20.0)
    assert (second.prompt_tokens, second.cached_tokens, second.output_tokens) == (200, 120, 20)
    assert (second.limit, second.active) == (8, 4)
    assert (samples.named.turns, samples.named.computed_tokens) == ([1, 1], [40, 40])


def test_an_hour_is_kept_the_last_five_minutes_by_seconds_and_nothing_is_told_twice() -> None:
    now = [told(1, 0)]
    samples = Samples(lambda: now[0])
    for second in range(2 * 3600):
        now[0] = told(second + 1, second % 10)
        ended(samples, "a")
        samples.take(second * 1000)
    found = samples.since()
    ends = [each.at_ms for each in found]
    assert ends == sorted(set(ends))
    assert {round(each.span_s) for each in found[-300:]} == {1}
    assert {round(each.span_s) for each in found[:-300]} == {10}
    assert {each.active for each in found[:-300]} == {4.5}
    assert 3590 <= sum(each.turns for each in found) <= 3610
    assert len(samples.since(ends[-1])) == 0
    assert len(samples.since(ends[-3])) == 2

"""What turns would take alone, of the time that they take, is learned from the turns that end."""

import pytest

from controlplane.core.events import TurnEnded
from controlplane.core.sharing import Prefilled, Sharing


def add(seen: Sharing, output_tokens: int, decode_ns: int, took_ns: int, alone_ns: int, *, alone: bool) -> None:
    prefilled = Prefilled(took_ns=took_ns, alone_ns=alone_ns, alone=alone)
    ended = TurnEnded(program_id="a", turn_id="a.1", output_tokens=output_tokens, service_ns=took_ns + decode_ns)
    seen.add(prefilled, ended, alone=alone)


def test_nothing_is_known_before_a_turn_has_ended() -> None:
    assert Sharing().alone_ratio == 1.0


def test_one_turn_alone_takes_what_it_takes_alone() -> None:
    seen = Sharing()
    add(seen, 101, 1000, 200, 200, alone=True)
    assert (seen.token_ns, seen.alone_ratio) == (10.0, 1.0)


def test_turns_that_share_the_engine_take_longer_and_do_not_pass_for_usual() -> None:
    """Four times as long for 300 turns: the least that was seen stays what a token takes alone."""
    seen = Sharing()
    add(seen, 101, 1000, 200, 200, alone=False)
    for _ in range(300):
        add(seen, 101, 4000, 800, 200, alone=False)
    assert (seen.token_ns, seen.alone_ratio) == (10.0, pytest.approx(0.25, abs=0.001))


def test_only_turns_that_were_alone_raise_what_a_token_takes_alone() -> None:
    """As after a change to a slower engine."""
    seen = Sharing()
    add(seen, 101, 1000, 0, 0, alone=True)
    add(seen, 101, 2000, 0, 0, alone=True)
    assert seen.token_ns == pytest.approx(10.2)
    for _ in range(300):
        add(seen, 101, 2000, 0, 0, alone=True)
    assert (seen.token_ns, seen.alone_ratio) == (pytest.approx(20.0, rel=0.01), pytest.approx(1.0, abs=0.01))


def test_a_prefill_that_was_faster_than_expected_is_no_more_than_alone() -> None:
    seen = Sharing()
    add(seen, 101, 1000, 100, 200, alone=True)
    assert seen.alone_ratio == 1.0


@pytest.mark.parametrize(("output_tokens", "decode_ns"), [(15, 150), (101, 0), (101, -5)])
def test_short_replies_and_turns_that_were_not_timed_teach_nothing(output_tokens: int, decode_ns: int) -> None:
    seen = Sharing()
    add(seen, output_tokens, decode_ns, 100, 100, alone=True)
    assert seen == Sharing()

"""A short day: every program ends with all its turns, whatever befell them, and what it has is nobody else's."""

from pathlib import Path

from . import day


def test_everybody_ends_with_all_turns_and_keeps_what_is_its(tmp_path: Path) -> None:
    (played,) = day.play(tmp_path, 1, seed=1, days=[False], time_scale=30)
    assert not played.given_away
    assert [each for kind in played.kinds.values() for each in kind.failures] == []
    assert set(played.mishaps) == {(name, what) for name in day.CLIENTS for what in day.MISHAPS.values()}
    assert {name: played.kinds[name].ended for name in day.CLIENTS} == dict.fromkeys(day.CLIENTS, 1)

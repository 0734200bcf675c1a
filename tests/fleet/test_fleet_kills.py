"""A few of the faults that ``make soak WHAT=fleet`` makes two hundred of."""

from pathlib import Path

from .soak import faults


def test_no_program_is_lost_and_no_turn_is_run_twice(tmp_path: Path) -> None:
    result = faults(7, 3, tmp_path, agents=4, patience=0.1)
    assert result.is_good, "\n".join(result.lines())
    assert result.seen.counts["requests answered"] > 20

"""How long a switchback takes to see a change, as the page on measuring has it."""

from pathlib import Path

import switchback

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "measuring.md"


def test_the_page_has_what_the_command_prints() -> None:
    text = PAGE.read_text()
    for sd in switchback.SPREADS:
        assert f"| {' | '.join(switchback.power(sd))} |" in text

"""What ``penstock up`` tells on a terminal can be typed."""

from pathlib import Path

import pytest

from controlplane.config import Config
from controlplane.daemon.process.first_steps import first_steps, greet
from controlplane.transport.endpoint import default_state_dir


def test_the_next_commands_name_the_node_and_the_folder_where_they_are_not_the_usual_ones() -> None:
    page, files, next_ = first_steps(Config(node="gpu7"), Path("/srv/my state"), "http://127.0.0.1:9467/")
    assert "http://127.0.0.1:9467/" in page
    assert "/srv/my state/gpu7/decisions.jsonl" in files
    assert "`penstock top --node gpu7 --state-dir '/srv/my state'`" in next_
    page, _, next_ = first_steps(Config(), default_state_dir({}), "")
    assert "[http] listen" in page
    assert "`penstock top`" in next_


def test_a_log_that_is_no_terminal_gets_none_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    greet(Config(), Path("state"), "")
    assert capsys.readouterr().err == ""

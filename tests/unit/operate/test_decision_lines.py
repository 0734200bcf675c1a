"""``penstock decisions`` on a terminal: like decisions of a moment share a line, and none is lost or late."""

import queue
import re
import threading
import time
from collections.abc import Iterator

import pytest

from controlplane.core.model.commands import Admit, Place
from controlplane.operate.decisions import grouped
from controlplane.operate.tables import show_config
from controlplane.wire.control import Fields


def admit(program: str, reason: str = "there is room") -> Fields:
    return Fields(missed=0, at_ns=1, command=Admit(command_id=1, program_id=program, reason=reason))


def without_times(lines: Iterator[str]) -> list[str]:
    return [re.sub(r"^\d\d:\d\d:\d\d  ", "", line) for line in lines]


def test_like_decisions_share_a_line() -> None:
    place = Fields(missed=0, at_ns=1, command=Place(command_id=1, program_id="p", replica="n/e", reason="empty"))
    asked = [admit("a"), admit("b"), place, admit("c", "overdue"), admit("d"), admit("a"), admit("e")]
    assert without_times(grouped(asked, within_s=1.0)) == [
        "admit x 4: a, b, d …: there is room",
        "place p on n/e  empty",
        "admit c  overdue",
    ]


def test_without_a_terminal_each_has_a_line() -> None:
    assert without_times(grouped([admit("a"), admit("b")], within_s=0.0)) == [
        "admit a  there is room",
        "admit b  there is room",
    ]


def test_a_line_comes_though_nothing_follows_and_an_error_comes_after_the_lines() -> None:
    ended, heard = threading.Event(), queue.SimpleQueue[str]()

    def decisions() -> Iterator[Fields]:
        yield admit("a")
        ended.wait(30)
        raise OSError("gone")

    lines = grouped(decisions(), within_s=0.1)
    began_s = time.monotonic()
    heard.put(next(lines))
    assert "admit a" in heard.get(timeout=1)
    assert time.monotonic() - began_s < 20
    ended.set()
    with pytest.raises(OSError, match="gone"):
        next(lines)


def test_a_preset_that_was_set_says_how_to_go_back(capsys: pytest.CaptureFixture[str]) -> None:
    state = Fields(version=2, file="", refused="", refusals=0, until_restart=[])
    show_config(state, json=False, preset="fcfs", before="penstock")
    said = capsys.readouterr().out
    assert "preset fcfs is in force, as configuration 2; it was penstock" in said
    assert "`penstock set-preset penstock`" in said
    show_config(state, json=False, preset="fcfs", before="fcfs")
    assert "Back" not in capsys.readouterr().out

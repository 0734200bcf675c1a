"""What automatic advice changes lies over what operators say, and gives way to them."""

from pathlib import Path
from typing import Any

import pytest

from controlplane.config import Config, Source
from controlplane.shell.reload import Reloader

FILE = """
preset = "mars"
[admission]
kv_high = 0.8
[advise]
auto = true
bounds = ["admission.kv_high=0.7..0.95", "admission.beta=0.5..0.9"]
"""
KEY = "admission.kv_high"


class Node:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "penstock.toml"
        self.file.write_text(FILE)
        source = Source(path=self.file)
        self.taken: list[Config] = []
        self.reloader = Reloader(source, source.read(), self.taken.append)

    def edit(self, before: str, after: str) -> None:
        self.file.write_text(self.file.read_text().replace(before, after))
        self.reloader.reload("a test")

    @property
    def kv_high(self) -> float:
        policy: Any = self.reloader.config.policies.admission
        return float(policy.kv_high)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path)
    made.reloader.tune(KEY, 0.85, "a step")
    return made


def test_a_step_is_in_force_at_once_and_is_no_order(node: Node) -> None:
    assert node.kv_high == 0.85
    assert node.taken[-1] is node.reloader.config
    assert node.reloader.orders == 0
    assert node.reloader.resolved.origins[KEY] == "automatic advice"
    assert node.file.read_text() == FILE, "an operator's file is never written"


def test_a_reload_that_changes_nothing_of_it_keeps_it(node: Node) -> None:
    node.edit("preset", "# a comment\npreset")
    assert (node.kv_high, node.reloader.orders) == (0.85, 0)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("kv_high = 0.8\n", "kv_high = 0.9\n", 0.9),
        ("auto = true", "auto = false", 0.8),
        ("0.7..0.95", "0.7..0.82", 0.8),
        ('"admission.kv_high=0.7..0.95", ', "", 0.8),
        ('preset = "mars"', 'preset = "penstock"', 0.8),
    ],
)
def test_an_operators_change_of_what_lies_below_it_ends_it(
    node: Node, before: str, after: str, expected: float
) -> None:
    node.edit(before, after)
    assert node.kv_high == expected
    assert node.reloader.orders == 1
    assert not node.reloader.source.tuned


def test_another_change_is_an_order_and_keeps_it(node: Node) -> None:
    node.edit("kv_high = 0.8\n", "kv_high = 0.8\nalpha = 2.0\n")
    assert (node.kv_high, node.reloader.orders) == (0.85, 1)


def test_a_step_is_taken_back_while_the_file_is_wrong(node: Node) -> None:
    node.edit("kv_high = 0.8\n", "kv_high = 80\n")
    assert node.reloader.state.refused
    node.reloader.tune(KEY, 0.8, "taken back")
    assert (node.kv_high, dict(node.reloader.source.tuned)) == (0.8, {})


def test_a_second_step_over_the_first_goes_back_to_what_the_file_says(node: Node) -> None:
    node.reloader.tune(KEY, 0.9, "another step")
    assert node.reloader.untuned(KEY) == 0.8
    node.reloader.tune(KEY, 0.85, "taken back")
    assert node.kv_high == 0.85
    node.reloader.tune(KEY, 0.8, "taken back")
    assert (node.kv_high, KEY in node.reloader.source.tuned) == (0.8, False)
    assert node.reloader.resolved.origins[KEY] == f"{node.file}:4"


def test_the_command_stops_it_and_lets_it_go_on(node: Node) -> None:
    node.reloader.set("advise.auto", False)
    assert (node.kv_high, node.reloader.config.advise.auto) == (0.8, False)
    node.reloader.set("advise.auto", None)
    assert node.reloader.config.advise.auto


def test_a_restart_knows_nothing_of_it(node: Node) -> None:
    assert Source(path=node.file).read().config.policies.admission.kv_high == 0.8  # type: ignore[attr-defined]


def test_a_value_that_a_policy_does_not_take_is_refused(node: Node) -> None:
    assert node.reloader.tune("admission.beta", 1.5, "a step").refused
    assert node.reloader.config.policies.admission.beta != 1.5  # type: ignore[attr-defined]

"""Automatic advice in a simulated node: it leads out of a bad setting, is stopped, interrupted and misled."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.tuned_node import TunedNode

from controlplane.core.presets import PRESETS
from controlplane.core.tuning import Answer
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.workload.arrivals import parse_arrival

KEY = "admission.window"
FILE = """
preset = "fcfs"
[admission]
window = {window}
[advise]
auto = true
bounds = ["admission.window=4..24"]
step_ratio = 0.2
stretch_s = 200
cooldown_s = 300
"""


def load(programs: int) -> Experiment:
    return Experiment(
        workload=Workload(trace="synthetic:swe-bench", programs=programs),
        arrival=parse_arrival("poisson:0.24"),
        preset=PRESETS["fcfs"],
        hardware=Hardware(pool_tokens=60_000),
    )


def gains(value: float) -> Callable[[Answer], Answer]:
    """Whoever asks what a step would bring hears that this one halves the mean completion time."""

    def told(answer: Answer) -> Answer:
        wanted = tuple(
            replace(each, change=-0.5, low=-0.6, high=-0.4, is_advised=True) if each.value == value else each
            for each in answer.forecasts
        )
        return replace(answer, forecasts=wanted)

    return told


def steps(node: TunedNode) -> list[tuple[str, float, float]]:
    return [(each.outcome, each.before, each.after) for each in node.changes]


def test_it_leads_out_of_a_window_that_is_too_narrow(tmp_path: Path) -> None:
    node = TunedNode(tmp_path, FILE.format(window=6), repeat=1)
    node.run(load(120))
    assert steps(node)[:2] == [("tried", 6, 10), ("kept", 6, 10)]
    assert node.changes[1].is_measured
    assert node.reloader.source.tuned[KEY] >= 10
    status = node.auto.status(0)
    assert status is not None
    assert status.in_force == (f"{KEY} = {node.reloader.source.tuned[KEY]!r}",)
    assert node.file.read_text() == FILE.format(window=6)


def test_a_step_for_the_worse_is_taken_back_and_not_repeated_soon(tmp_path: Path) -> None:
    node = TunedNode(tmp_path, FILE.format(window=12), repeat=1, believes=gains(8))
    node.run(load(120))
    assert steps(node) == [("tried", 12, 8), ("taken back", 12, 8)]
    assert not node.reloader.source.tuned


@pytest.mark.parametrize("stop", ["command", "file", "silence"])
def test_it_ends_at_once_or_waits(tmp_path: Path, stop: str) -> None:
    def happens(node: TunedNode) -> None:
        if stop == "command":
            node.reloader.set("advise.auto", False)
        elif stop == "file":
            node.file.write_text(FILE.format(window=6).replace("auto = true", "auto = false"))
            node.reloader.reload("a test")
        else:
            node.why_not = "the bus is away"

    node = TunedNode(tmp_path, FILE.format(window=6), repeat=1, at=[(250, happens)])
    node.run(load(70))
    assert steps(node) == [("tried", 6, 10)]
    tuned = dict(node.reloader.source.tuned)
    assert tuned == ({KEY: 10} if stop == "silence" else {}), "nothing is done while nothing is heard"

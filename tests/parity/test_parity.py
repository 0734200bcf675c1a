"""The daemon in virtual time and the simulator decide alike, and a recorded run replays to the same commands."""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest

from controlplane.core.model.commands import Command, Place
from controlplane.core.model.events import Event
from controlplane.core.policies.presets import PRESETS
from controlplane.core.regret import RegretLedger, Verdict
from controlplane.core.scheduling.controller import Controller
from controlplane.daemon.observe.log_replay import judge_log, replay_log
from controlplane.daemon.pipeline import DecisionPipeline
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.synthetic import synthesize
from controlplane.wire.codec import encode_events
from controlplane.wire.log import Header, LogWriter

Decision = tuple[int, Command]


class Memory:
    """A recorder that keeps a run in lists."""

    def __init__(self) -> None:
        self.events: list[tuple[int, Event]] = []
        self.decisions: list[Decision] = []
        self.ticks: list[int] = []

    def event(self, event: Event, now_ns: int) -> None:
        self.events.append((now_ns, event))

    def tick(self, now_ns: int) -> None:
        self.ticks.append(now_ns)

    def command(self, command: Command, now_ns: int) -> None:
        self.decisions.append((now_ns, command))


def simulated(preset: str, seed: int, recorder: object, replicas: int = 1) -> RunResult:
    """A run that saturates: a small pool, so that the window, the queue and the pins all move."""
    pool_tokens = 60_000 // replicas
    asked = Experiment(
        workload=Workload(trace="drawn", cpus=4),
        trace=synthesize("swe-bench", programs=25, seed=seed),
        arrival=Poisson(0.5),
        hardware=Hardware(pool_tokens=pool_tokens, replicas=replicas, link_gb_per_s=0.0),  # a daemon has no link
        preset=PRESETS[preset],
        seed=seed,
    )
    return simulate(asked, recorder=recorder)  # type: ignore[arg-type]


def daemon_in_virtual_time(
    preset: str, events: list[tuple[int, Event]], end_ns: int, pipeline: DecisionPipeline | None = None
) -> Iterator[Decision]:
    """Bytes in, commands out, at the times at which a daemon whose bus has no delay would see them."""
    pipeline = pipeline or DecisionPipeline(Controller(PRESETS[preset]))
    for now_ns, batch in groupby(events, key=lambda pair: pair[0]):
        if now_ns > end_ns:
            break  # the simulator stopped with the last program's end
        while pipeline.controller.next_deadline_ns() < now_ns:
            due_ns = pipeline.controller.next_deadline_ns()
            yield from ((due_ns, command) for command in pipeline.decide(due_ns))
        for _, event in batch:
            pipeline.feed(encode_events(event.publisher, event.sequence, [(event.at_ns, event)]), now_ns)
        yield from ((now_ns, command) for command in pipeline.decide(now_ns))
    while pipeline.controller.next_deadline_ns() <= end_ns:
        due_ns = pipeline.controller.next_deadline_ns()
        yield from ((due_ns, command) for command in pipeline.decide(due_ns))
    assert pipeline.rejected == 0


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_daemon_in_virtual_time_decides_as_the_simulator(preset: str) -> None:
    memory = Memory()
    simulated(preset, 1, memory)
    decided = list(daemon_in_virtual_time(preset, memory.events, memory.ticks[-1]))
    assert len(memory.decisions) > 25
    assert decided == memory.decisions


@pytest.mark.parametrize("preset", ["mars", "thunderagent"])
def test_it_does_so_over_several_engines(preset: str) -> None:
    memory = Memory()
    simulated(preset, 1, memory, replicas=3)
    assert len({event.publisher for _, event in memory.events}) == 3 + 2
    decided = list(daemon_in_virtual_time(preset, memory.events, memory.ticks[-1]))
    assert decided == memory.decisions
    assert {command.replica for _, command in decided if isinstance(command, Place)} == {
        f"sim/engine-{number}" for number in (1, 2, 3)
    }


@pytest.mark.parametrize(
    ("preset", "name"), [*((preset, "run.jsonl") for preset in sorted(PRESETS)), ("mars", "run.jsonl.gz")]
)
def test_a_recorded_log_replays_to_the_same_commands(preset: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with LogWriter(path, Header(node="sim", preset=preset)) as log:
        simulated(preset, 4, log)
    report = replay_log(path)
    assert report.differences == []
    assert report.commands > 25


def test_a_tampered_log_is_found_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with LogWriter(path, Header(node="sim", preset="mars")) as log:
        simulated("mars", 4, log)
    lines = path.read_text().splitlines()
    first_admit = next(i for i, line in enumerate(lines) if '"admit"' in line)
    path.write_text("\n".join(lines[:first_admit] + lines[first_admit + 1 :]) + "\n")
    report = replay_log(path)
    assert report.differing > 0
    assert "admit" in report.differences[0].lower()


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = Memory(), Memory()
    assert simulated("mars", 5, first).summary == simulated("mars", 5, second).summary
    assert first.decisions == second.decisions


class Judging:
    """A recorder of events and verdicts: the log that it fills, and a ledger beside it."""

    def __init__(self, log: LogWriter) -> None:
        self.log = log
        self.verdicts: list[Verdict] = []
        self.book = RegretLedger(self.verdicts.append)
        self.decisions: list[Decision] = []

    def event(self, event: Event, now_ns: int) -> None:
        self.log.event(event, now_ns)
        self.book.event(event, now_ns)

    def tick(self, now_ns: int) -> None:
        self.log.tick(now_ns)
        self.book.tick(now_ns)

    def command(self, command: Command, now_ns: int) -> None:
        self.log.command(command, now_ns)
        self.book.command(command, now_ns)
        self.decisions.append((now_ns, command))

    def config(self, text: str, now_ns: int) -> None: ...


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_verdicts_change_nothing_and_are_the_same_live_simulated_and_replayed(preset: str, tmp_path: Path) -> None:
    plain = Memory()
    simulated(preset, 4, plain)
    path = tmp_path / "run.jsonl"
    with LogWriter(path, Header(node="sim", preset=preset)) as log:
        judging = Judging(log)
        simulated(preset, 4, judging)
    assert judging.decisions == plain.decisions
    fell = list(judging.verdicts)
    assert len(fell) > 25
    replayed = [verdict for verdict, _ in judge_log(path)]
    assert replayed[: len(fell)] == fell
    assert {verdict.outcome for verdict in replayed[len(fell) :]} <= {"unknown", "replaced"}
    live: list[Verdict] = []
    pipeline = DecisionPipeline(Controller(PRESETS[preset]))
    pipeline.recorders.append(RegretLedger(live.append))
    decided = list(daemon_in_virtual_time(preset, plain.events, plain.ticks[-1], pipeline))
    pipeline.record()
    assert decided == plain.decisions
    assert live == fell

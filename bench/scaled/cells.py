"""A whole fleet in the simulator, under one controller or split into cells (``fleet_scale.py --simulate``).

A program goes to the cell that a hash of its name says, for good. Cells share nothing, so each is a run of its
own, in a process of this machine or on Ray. Programs are the same however the fleet is split, and arrive at the
same rate.
"""

import random
import resource
import time
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from controlplane.core.control import ControlRules
from controlplane.core.controller import Controller
from controlplane.core.events import Event
from controlplane.core.policies import Choice
from controlplane.core.presets import Preset, preset
from controlplane.core.rendezvous import weights_of
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.simulate import simulate
from controlplane.lab.sweep.executors import Executor
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.trace import ProgramTrace, Trace
from controlplane.lab.workload.trace_lines import Turn

OPEN = 1e6  # programs: a window that holds nobody, so that rooms and forecast alone decide
FIRST_TOKENS, REPLY_TOKENS, RESULT_TOKENS, TOOL_S = 1500, 100, 300, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What is simulated: ``programs`` on each of the engines, which all arrive within about ``arrive_s``."""

    replicas: int
    programs: int
    turns: int
    arrive_s: float
    pool_tokens: int
    preset: str
    routing: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A part of the fleet: its engines, and which of all programs are its own."""

    fleet: Fleet
    number: int
    replicas: int
    mine: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a cell's run told. Times of ticks and events are CPU time in ns."""

    programs: int
    turns: int
    events: int
    events_ns: int
    ticks_ns: Any  # an array: of each tick between two intervals' ends
    interval_ticks_ns: Any
    cpu_s: float
    wall_s: float
    resident_mb: float
    virtual_s: float
    jct_s: Any
    hits: float
    loads: float  # the peak of its demand, in pools
    most_waiting: int
    moves: int
    moved: float  # share of its programs that changed their engine
    failed: int


class Timed(Controller):
    """A controller that times itself."""

    def __init__(self, preset: Preset, rules: ControlRules) -> None:
        super().__init__(preset, rules)
        self.events, self.events_ns = 0, 0
        self.ticks_ns, self.interval_ticks_ns = array("q"), array("q")

    def receive(self, event: Event, now_ns: int) -> None:
        began_ns = time.thread_time_ns()
        super().receive(event, now_ns)
        self.events_ns += time.thread_time_ns() - began_ns
        self.events += 1

    def tick(self, now_ns: int) -> Any:
        times = self.interval_ticks_ns if now_ns >= self.state.interval_ends_ns else self.ticks_ns
        began_ns = time.thread_time_ns()
        commands = super().tick(now_ns)
        times.append(time.thread_time_ns() - began_ns)
        return commands


def name_of(index: int) -> str:
    return f"program-{index:06}"


def draw(fleet: Fleet, index: int) -> ProgramTrace:
    """A program: first prompts of lognormal length, as agents' are, and tools that take long beside its turns."""
    rng = random.Random(fleet.seed * 1_000_003 + index)
    prompt = min(16_000, max(16, round(rng.lognormvariate(np.log(FIRST_TOKENS) - 0.32, 0.8))))
    turns = []
    for number in range(fleet.turns):
        reply = max(1, round(rng.expovariate(1 / REPLY_TOKENS)))
        tool_ms = round(rng.expovariate(1 / TOOL_S) * 1e3, 3)
        is_last = number == fleet.turns - 1
        turns.append(
            Turn(input_tokens=prompt, output_tokens=reply)
            if is_last
            else Turn(input_tokens=prompt, output_tokens=reply, tool="bash", tool_ms=tool_ms)
        )
        prompt += reply + round(rng.expovariate(1 / RESULT_TOKENS))
    return ProgramTrace(program_id=name_of(index), source="fleet", turns=tuple(turns))


def split(fleet: Fleet, cells: int) -> list[Cell]:
    """The fleet in so many cells of equally many engines."""
    names = [f"cell-{number}" for number in range(cells)]
    mine: dict[str, list[int]] = {name: [] for name in names}
    for index in range(fleet.replicas * fleet.programs):
        mine[max(names, key=weights_of(name_of(index))) if cells > 1 else names[0]].append(index)
    return [
        Cell(fleet=fleet, number=number, replicas=fleet.replicas // cells, mine=mine[name])
        for number, name in enumerate(names)
    ]


def run(cell: Cell) -> Found:
    """Simulate it, in this process."""
    fleet, made = cell.fleet, list[Timed]()
    chosen: Any = preset(fleet.preset)
    if hasattr(chosen.admission, "window_max"):
        wide = replace(chosen.admission, window_initial=OPEN, window_max=OPEN)
        chosen = replace(chosen, admission=wide)
    programs = tuple(draw(fleet, index) for index in cell.mine)
    asked = Experiment(
        workload=Workload(trace="fleet", shared_prefix=0),
        trace=Trace(programs=programs, rejected=[], name="fleet"),
        hardware=Hardware(
            pool_tokens=fleet.pool_tokens, replicas=cell.replicas, link_gb_per_s=0.0, routing=fleet.routing
        ),
        arrival=Poisson(len(programs) / fleet.arrive_s),
        preset=chosen,
        seed=fleet.seed * 1000 + cell.number,
    )

    def timed(preset: Preset, rules: ControlRules) -> Controller:
        made.append(Timed(preset, rules))
        return made[0]

    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    result = simulate(asked, controller=timed)
    cpu_s, wall_s = time.process_time() - began_cpu_s, time.perf_counter() - began_s
    moves = sum(
        1 for each in result.turns if each.routed and each.routed.choice in (Choice.MIGRATE, Choice.REPREFILL)
    )
    return Found(
        programs=len(programs),
        turns=len(result.turns),
        events=made[0].events,
        events_ns=made[0].events_ns,
        ticks_ns=np.array(made[0].ticks_ns),
        interval_ticks_ns=np.array(made[0].interval_ticks_ns),
        cpu_s=cpu_s,
        wall_s=wall_s,
        resident_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        virtual_s=result.summary.makespan_s,
        jct_s=np.array([each.completion_ns for each in result.programs]) / 1e9,
        hits=result.summary.cache_hit_ratio,
        loads=max(result.series.kv_use_ratio),
        most_waiting=max(result.series.queue),
        moves=moves,
        moved=result.summary.programs_moved_ratio,
        failed=sum(each.failed for each in result.programs),
    )


def run_all(cells: Sequence[Cell], where: Executor) -> Iterator[Found]:
    """Each cell's, as they end, as many at once as there are slots."""
    left, in_hand = list(reversed(cells)), set[Future[Any]]()
    task: Any = run
    while left or in_hand:
        while left and len(in_hand) < where.slots:
            cell: Any = left.pop()
            in_hand.add(where.submit(task, cell))
        done, in_hand = wait(in_hand, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


def summed(replicas: int, found: Sequence[Found], wall_s: float) -> dict[str, float]:
    """The fleet's figures. Those of cells are the least and the most."""
    ticks_ms, interval_ms, jct_s = (
        np.concatenate([getattr(each, name) for each in found]) * scale
        for name, scale in (("ticks_ns", 1e-6), ("interval_ticks_ns", 1e-6), ("jct_s", 1.0))
    )
    events, cpu_s = sum(each.events for each in found), sum(each.cpu_s for each in found)
    means = [float(each.jct_s.mean()) for each in found]
    turns = sum(each.turns for each in found)
    return {
        "engines": replicas,
        "cells": len(found),
        "programs": sum(each.programs for each in found),
        "turns": turns,
        "events": events,
        "failed": sum(each.failed for each in found),
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "events_per_cpu_s": events / cpu_s,
        "us_per_turn": cpu_s / turns * 1e6,
        "resident_mb": max(each.resident_mb for each in found),
        "event_us": sum(each.events_ns for each in found) / events / 1e3,
        "tick_p50_ms": float(np.percentile(ticks_ms, 50)),
        "tick_p99_ms": float(np.percentile(ticks_ms, 99)),
        "interval_p50_ms": float(np.percentile(interval_ms, 50)),
        "interval_p99_ms": float(np.percentile(interval_ms, 99)),
        "virtual_s": max(each.virtual_s for each in found),
        "controller_cpus": max(
            (each.events_ns + int(each.ticks_ns.sum()) + int(each.interval_ticks_ns.sum())) / 1e9 / each.virtual_s
            for each in found
        ),
        "jct_mean_s": float(jct_s.mean()),
        "jct_p95_s": float(np.percentile(jct_s, 95)),
        "hits": fmean(each.hits for each in found),
        "moves_per_turn": sum(each.moves for each in found) / turns,
        "moved_programs": fmean(each.moved for each in found),
        "most_waiting": sum(each.most_waiting for each in found),
        "least_programs": min(each.programs for each in found),
        "most_programs": max(each.programs for each in found),
        "least_load": min(each.loads for each in found),
        "most_load": max(each.loads for each in found),
        "least_jct_s": min(means),
        "most_jct_s": max(means),
    }

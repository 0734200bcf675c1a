"""Several engines in one world: where turns go, KV that is sent, commands, and what a run tells of it.

The toy engine prefills a token in 1 us behind an overhead of 10 us a step, and decodes a step in 1 us.
"""

from dataclasses import replace
from typing import Any

import pytest
from engine_operations import TOY
from worlds import TWO_TURNS, ControllerDouble, spec, trace_of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import Program, Replica, seconds
from controlplane.core.policies.placement.session import Session as SessionAware
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.protocols import Choice, NextTurn, Placed
from controlplane.core.scheduling.controller import Controller
from controlplane.lab.experiment import Hardware
from controlplane.lab.sim.call import Call
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.fleet import Fleet, Router, Site
from controlplane.lab.sim.ideal_time import ideal_time_ns
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.turn_events import Publisher
from controlplane.lab.sim.world import World
from controlplane.lab.simulate import placement_named, simulate
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.trace import ProgramTrace, Turn

ONE, TWO = "sim/engine-1", "sim/engine-2"
ROUTINGS = ("single", "round_robin", "least_loaded", "session")
STAY, MIGRATE, REPREFILL = Choice.STAY, Choice.MIGRATE, Choice.REPREFILL


class RouterDouble:
    """Sends calls where the script says, one after another."""

    def __init__(self, *script: tuple[str, Choice]) -> None:
        self._script = iter(script)

    def route(self, call: Call) -> Placed:
        name, choice = next(self._script)
        return Placed(replica=name, choice=choice, costs_ns={choice: 7})


class Pair:
    """Two toy engines in one world."""

    def __init__(
        self,
        router: Any,
        *programs: ProgramTrace,
        control: Any = None,
        pool_blocks: int = 1000,
        link_tokens_per_s: float = 0.0,
        shared_prefix_tokens: int = 0,
        **options: Any,
    ) -> None:
        publishers = [Publisher(f"{name}/1") for name in (ONE, TWO)]
        self.engines = [EngineModel(TOY, pool_blocks=pool_blocks, publisher=each) for each in publishers]
        sites = [Site(engine, each) for engine, each in zip(self.engines, publishers, strict=True)]
        self.control = control or ControllerDouble()
        self.world = World(
            Kernel(),
            Fleet(sites, router, link_tokens_per_s=link_tokens_per_s),
            self.control,
            [Session(program, shared_prefix_tokens=shared_prefix_tokens) for program in programs],
            **({"arrivals_ns": [0] * len(programs), "control_delay_ns": 0} | options),
        )

    def run(self) -> "Pair":
        self.world.run()
        return self

    def cached(self) -> list[int]:
        return [turn.cached_tokens for turn in self.world.turns]

    def held(self, program_id: str = "p") -> list[int]:
        """Blocks of its context on each engine."""
        nodes = [engine.cache.find(program_id) for engine in self.engines]
        return [node.blocks if node else 0 for node in nodes]


def growing(*prompts: int, output: int = 1, gap_ms: float = 1.0) -> ProgramTrace:
    turns = [Turn(input_tokens=prompt, output_tokens=output, tool="bash", tool_ms=gap_ms) for prompt in prompts]
    turns[-1] = replace(turns[-1], tool="", tool_ms=None)
    return trace_of(*turns)


# Where the KV is


def test_imbalance_is_of_what_turns_and_pins_hold_and_not_of_what_waits_to_be_evicted() -> None:
    publishers = [Publisher(f"{name}/1") for name in (ONE, TWO)]
    sites = [Site(EngineModel(TOY, pool_blocks=100, publisher=each), each) for each in publishers]
    one, two = (site.engine.cache for site in sites)
    assert Fleet(sites).kv_imbalance_ratio == 0
    one.free_blocks, two.free_blocks, two.evictable_blocks = 40, 10, 80
    assert Fleet(sites).kv_imbalance_ratio == pytest.approx(0.6 - 0.1)


@pytest.mark.parametrize(
    ("names", "prompts", "output", "cached"),
    [
        ((TWO, TWO), (100, 200), 1, [0, 96]),  # stays
        ((ONE, TWO), (100, 200), 1, [0, 0]),
        ((ONE, TWO, ONE), (100, 200, 300), 1, [0, 0, 96]),  # the third finds what the first left
        ((ONE, TWO, ONE), (100, 50, 300), 1, [0, 0, 0]),  # the second forgets all but its own 50 tokens
        ((ONE, TWO, ONE), (100, 120, 300), 60, [0, 0, 96]),  # it leaves the reply out: 100 of 160 hold
    ],
)
def test_a_context_is_found_where_it_was_left_as_far_as_the_history_still_has_it(
    names: tuple[str, ...], prompts: tuple[int, ...], output: int, cached: list[int]
) -> None:
    route = [(name, REPREFILL if place else Choice.NEW) for place, name in enumerate(names)]
    pair = Pair(RouterDouble(*route), growing(*prompts, output=output)).run()
    assert pair.cached() == cached
    assert pair.world.turns[0].routed is not None


# KV that is sent


def test_sending_takes_the_links_time_and_then_the_turn_finds_its_context() -> None:
    """96 tokens at 1 a microsecond."""
    pair = Pair(RouterDouble((ONE, Choice.NEW), (TWO, MIGRATE)), trace_of(*TWO_TURNS), link_tokens_per_s=1e6).run()
    first, second = pair.world.turns
    assert second.admitted_ns == second.queued_ns, "it is not held: it is on its way"
    assert second.cached_tokens == 96
    assert second.ended_ns - second.queued_ns == 96_000 + (10 + 200 - 96) * 1000
    assert pair.held() == [0, 200 // 16], "freed where it was"
    assert pair.engines[0].cache.free_blocks == 1000
    assert (second.routed.choice, second.routed.cost_ns, second.routed.moved_tokens) == ("migrate", 7, 96)
    assert first.routed.moved_tokens == 0


def test_a_shared_prefix_is_sent_once() -> None:
    """Both share 64 tokens. The first sends 96 tokens in all, the second only the 32 that are its own."""
    route = [(ONE, Choice.NEW), (TWO, MIGRATE), (ONE, Choice.NEW), (TWO, MIGRATE)]
    pair = Pair(
        RouterDouble(*route),
        trace_of(*TWO_TURNS, name="a"),
        trace_of(*TWO_TURNS, name="b"),
        link_tokens_per_s=1e6,
        shared_prefix_tokens=64,
        arrivals_ns=[0, seconds(1)],
    ).run()
    found = [(turn.routed.moved_tokens, turn.cached_tokens) for turn in pair.world.turns if turn.routed]
    assert found == [(0, 0), (96, 96), (0, 64), (32, 96)]


@pytest.mark.parametrize(("link_tokens_per_s", "prompts"), [(0.0, (100, 200)), (1e6, (100, 50))])
def test_what_cannot_be_sent_or_is_not_wanted_is_computed_anew_at_once(
    link_tokens_per_s: float, prompts: tuple[int, int]
) -> None:
    """No link; a history that was rewritten."""
    pair = Pair(
        RouterDouble((ONE, Choice.NEW), (TWO, MIGRATE)), growing(*prompts), link_tokens_per_s=link_tokens_per_s
    ).run()
    second = pair.world.turns[1]
    assert second.cached_tokens == 0
    assert second.first_token_ns - second.queued_ns == (10 + prompts[1]) * 1000
    assert second.routed.moved_tokens == 0


def test_a_copy_that_lies_there_already_need_not_be_sent() -> None:
    """Of 12 blocks of the second turn's context the other engine has the 6 of the first turn's."""
    route = ((ONE, Choice.NEW), (TWO, REPREFILL), (ONE, MIGRATE))
    pair = Pair(RouterDouble(*route), growing(100, 200, 300), link_tokens_per_s=1e6).run()
    third = pair.world.turns[2]
    assert (third.routed.moved_tokens, third.cached_tokens) == (96, 192)
    assert pair.held() == [300 // 16, 0]


def test_what_is_evicted_while_it_is_sent_does_not_arrive() -> None:
    """It is pinned meanwhile; but a call that cannot begin otherwise ends a pin, and takes its one piece."""
    route = ((ONE, Choice.NEW), (TWO, MIGRATE), (ONE, Choice.NEW))
    pair = Pair(
        RouterDouble(*route),
        growing(100, 200, gap_ms=0.1),
        trace_of(Turn(input_tokens=600, output_tokens=1), name="other"),
        pool_blocks=40,
        link_tokens_per_s=1e5,
        arrivals_ns=[0, 300_000],
    ).run()
    found = {(turn.program_id, turn.index): turn for turn in pair.world.turns}
    assert found["p", 1].cached_tokens == 0
    assert found["p", 1].first_token_ns - found["p", 1].queued_ns == 960_000 + (10 + 200) * 1000


# Commands


def test_commands_reach_the_engine_that_the_program_is_on_and_each_speaks_in_its_own_name() -> None:
    control = ControllerDouble(
        ToolStarted=[cmd.Retain(program_id="p", ttl_ns=seconds(1)), cmd.Demote(program_id="p", command_id=2)]
    )
    pair = Pair(RouterDouble((TWO, Choice.NEW), (TWO, STAY), (ONE, STAY)), growing(100, 200, 300), control=control)
    parked: list[tuple[int, bool]] = []
    for number, engine in enumerate(pair.engines):

        def spy(program_id: str, is_parked: bool = True, now_ns: Any = None, number: int = number) -> None:
            parked.append((number, is_parked))

        engine.park = spy  # type: ignore[method-assign]
    pair.run()
    assert {event.publisher for _, event in control.of(ev.CommandRejected)} == {f"{TWO}/1"}
    assert parked == [(0, False), (1, True), (0, False)], "admitted; then nobody waits for the copy left behind"
    assert [event.publisher for _, event in control.of(ev.PoolSampled)] == [f"{ONE}/1", f"{TWO}/1"]
    sequences: dict[str, list[int]] = {}
    for _, event in control.events:
        sequences.setdefault(event.publisher, []).append(event.sequence)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in sequences.values())


def test_a_pin_does_not_outlast_its_programs_leaving() -> None:
    control = ControllerDouble(ToolStarted=[cmd.Retain(program_id="p", ttl_ns=seconds(9))])
    pair = Pair(RouterDouble((ONE, Choice.NEW), (TWO, REPREFILL)), trace_of(*TWO_TURNS), control=control).run()
    assert pair.engines[0].cache.pins() == {}
    assert pair.held() == [110 // 16, 200 // 16]


# The router


def routed(policy: Any, *programs: ProgramTrace, **options: Any) -> Pair:
    router = Router(policy)
    control = Controller(replace(PRESETS["fcfs"], placement=router))
    return Pair(router, *programs, control=control, **options).run()


def test_programs_that_come_together_get_an_engine_each_and_take_their_ideal_time() -> None:
    """Closed form: two programs on two engines are as fast as each alone, two on one are not."""
    programs = synthesize("swe-bench", programs=2, seed=3).programs
    apart = routed(SessionAware(), *programs, pool_blocks=10_000)
    ideal = [ideal_time_ns(program, EngineModel(TOY, pool_blocks=10_000)) for program in programs]
    took = {record.program_id: record.completion_ns for record in apart.world.programs}
    assert [took[program.program_id] for program in programs] == ideal
    assert {turn.routed.choice for turn in apart.world.turns if turn.routed} == {"new", "stay"}
    together = routed(placement_named("single", PRESETS["fcfs"]), *programs, pool_blocks=10_000)
    assert max(record.completion_ns for record in together.world.programs) > max(ideal)


def test_where_nothing_was_said_since_the_last_turn_it_stays() -> None:
    """The record of it may be forgotten, or its next turn comes in the instant in which the last one ended."""
    router, call = Router(SessionAware()), Call(turn_id="t", program_id="p", prompt_tokens=9, output_tokens=1)
    turn = NextTurn(program=Program(program_id="p"), blocks=1)
    router.place(
        router.initial(),
        turn,
        [Replica(name=ONE, total_blocks=10)],
        Controller(PRESETS["fcfs"]).ledger.estimates,
        0,
    )
    assert [(placed.replica, placed.choice) for placed in (router.route(call), router.route(call))] == [
        (ONE, Choice.NEW),
        (ONE, Choice.STAY),
    ]


# Whole runs


def test_a_run_says_how_many_engines_it_had_and_one_engine_is_not_routed() -> None:
    two, one = simulate(spec(replicas=2, programs=2)), simulate(spec(routing="round_robin"))
    assert (two.facts["engines"], two.facts["routing"], two.facts["link"]) == ("2", "session", "50 GB/s")
    assert {turn.routed.replica for turn in two.turns if turn.routed} == {ONE, TWO}
    assert one == simulate(spec())
    assert "engines" not in one.facts


def test_overfull_engines_send_contexts_to_one_with_room_and_a_link_that_was_configured_is_believed() -> None:
    """A policy that takes the link for endless sends at once; the transfers take what they take."""
    hopeful = replace(PRESETS["fcfs"], placement=SessionAware(link_tokens_per_s=1e12))
    moved = {}
    for gb_per_s, preset in ((1000.0, None), (0.0, None), (1e-6, None), (1e-6, hopeful)):
        engines = {"profile": replace(TOY, kv_bytes_per_token=1000), "pool_tokens": 25_000, "replicas": 2}
        asked = spec("fcfs", **engines, link_gb_per_s=gb_per_s)
        summary = simulate(replace(asked, preset=preset or asked.preset)).summary
        assert (summary.routed_moved_tokens > 0) == (summary.routed_migrate > 0)
        moved[gb_per_s, preset is hopeful] = summary.routed_migrate > 0
    assert list(moved.values()) == [True, False, False, True]


def test_unknown_routings_and_impossible_fleets_are_refused() -> None:
    with pytest.raises(
        ConfigError, match="routing: no placement policy 'x'; there are: single, round_robin, "
    ) as e:
        simulate(spec(routing="x"))
    assert e.value.field == "routing"
    with pytest.raises(ConfigError, match="replicas"):
        Hardware(replicas=0)
    with pytest.raises(ConfigError, match="link_gb_per_s"):
        Hardware(link_gb_per_s=-1.0)

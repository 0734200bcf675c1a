"""Several engines in one world: where turns go, KV that is sent, commands, and what a run tells of it.

The toy engine prefills a token in 1 us behind an overhead of 10 us a step, and decodes a step in 1 us.
"""

from dataclasses import replace
from typing import Any

import pytest
from engine_operations import TOY
from test_world import TWO_TURNS, ControllerDouble, spec, trace_of

from controlplane.core import commands as cmd
from controlplane.core import events as ev
from controlplane.core.controller import Controller
from controlplane.core.errors import ConfigError
from controlplane.core.placement.session import Session as SessionAware
from controlplane.core.policies import Choice, NextTurn, Placed
from controlplane.core.presets import PRESETS
from controlplane.core.types import Program, Replica, seconds
from controlplane.lab.experiment import Hardware
from controlplane.lab.sim.call import Call
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.fleet import Fleet, Router, Site
from controlplane.lab.sim.kernel import Kernel
from controlplane.lab.sim.publisher import Publisher
from controlplane.lab.sim.session import Session
from controlplane.lab.sim.solo import solo_ns
from controlplane.lab.sim.world import World
from controlplane.lab.simulate import placement_named, run_of, simulate
from controlplane.lab.workload.arrivals import Closed
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


def test_a_context_is_found_on_the_engine_that_has_it_and_not_on_the_other() -> None:
    stays = Pair(RouterDouble((TWO, Choice.NEW), (TWO, STAY)), trace_of(*TWO_TURNS)).run()
    leaves = Pair(RouterDouble((ONE, Choice.NEW), (TWO, REPREFILL)), trace_of(*TWO_TURNS)).run()
    assert (stays.cached(), leaves.cached()) == ([0, 96], [0, 0])
    assert leaves.world.turns[1].ended_ns - stays.world.turns[1].ended_ns == 96_000


def test_a_copy_that_was_left_behind_ages_and_is_found_again() -> None:
    """The third turn finds what the first left: 100 tokens in whole blocks, not the 200 of the second."""
    pair = Pair(
        RouterDouble((ONE, Choice.NEW), (TWO, REPREFILL), (ONE, REPREFILL)), growing(100, 200, 300, gap_ms=1.0)
    ).run()
    assert pair.cached() == [0, 0, 96]
    assert pair.held() == [300 // 16, 200 // 16]


def test_a_copy_of_a_history_that_was_rewritten_is_not_found() -> None:
    """The second turn forgets all but its own 50 tokens, and then the third cannot reuse the first's 100."""
    route = ((ONE, Choice.NEW), (TWO, REPREFILL), (ONE, REPREFILL))
    assert Pair(RouterDouble(*route), growing(100, 50, 300)).run().cached() == [0, 0, 0]


def test_of_a_copy_only_what_the_history_still_has_is_found() -> None:
    """The second turn leaves the reply of 60 tokens out: 100 of the 160 hold, in whole blocks 96."""
    route = ((ONE, Choice.NEW), (TWO, REPREFILL), (ONE, REPREFILL))
    assert Pair(RouterDouble(*route), growing(100, 120, 300, output=60)).run().cached() == [0, 0, 96]


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
    assert second.routed is not None
    assert (second.routed.choice, second.routed.cost_ns, second.routed.moved_tokens) == ("migrate", 7, 96)
    assert first.routed is not None
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
    assert second.routed is not None
    assert second.routed.moved_tokens == 0


def test_a_copy_that_lies_there_already_need_not_be_sent() -> None:
    """Of 12 blocks of the second turn's context the other engine has the 6 of the first turn's."""
    route = ((ONE, Choice.NEW), (TWO, REPREFILL), (ONE, MIGRATE))
    pair = Pair(RouterDouble(*route), growing(100, 200, 300), link_tokens_per_s=1e6).run()
    third = pair.world.turns[2]
    assert third.routed is not None
    assert (third.routed.moved_tokens, third.cached_tokens) == (96, 192)
    assert pair.held() == [300 // 16, 0]


def test_what_finds_no_room_where_it_is_sent_is_computed_anew() -> None:
    """A long turn of another program leaves 5 of 40 blocks there: most of the context finds room."""
    hog = trace_of(Turn(input_tokens=560, output_tokens=1), name="hog")
    route = ((ONE, Choice.NEW), (TWO, Choice.NEW), (TWO, MIGRATE))
    pair = Pair(
        RouterDouble(*route),
        growing(100, 112, gap_ms=0.2),
        hog,
        pool_blocks=40,
        link_tokens_per_s=1e9,
        arrivals_ns=[0, 1],
    ).run()
    moved = next(turn for turn in pair.world.turns if (turn.program_id, turn.index) == ("p", 1))
    assert moved.routed is not None
    assert (moved.routed.moved_tokens, moved.cached_tokens) == (96, 80)


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


def test_commands_reach_the_engine_that_the_program_is_on() -> None:
    class Scripted(ControllerDouble):
        def receive(self, event: ev.Event, now_ns: int) -> None:
            super().receive(event, now_ns)
            if isinstance(event, ev.ToolStarted):
                name = event.program_id
                self._due += [
                    cmd.Retain(program_id=name, ttl_ns=seconds(1), command_id=1),
                    cmd.Demote(program_id=name, command_id=2),
                ]

    control = Scripted()
    pair = Pair(
        RouterDouble((ONE, Choice.NEW), (TWO, Choice.NEW), (TWO, STAY), (ONE, STAY)),
        trace_of(*TWO_TURNS, name="one"),
        trace_of(TWO_TURNS[0], Turn(input_tokens=300, output_tokens=1), name="two"),
        control=control,
    )
    retained: list[tuple[str, int]] = []
    for number, engine in enumerate(pair.engines):
        pins = engine.retain

        def spy(program_id: str, until_ns: int, now_ns: int, number: int = number, pins: Any = pins) -> bool:
            retained.append((program_id, number))
            return bool(pins(program_id, until_ns, now_ns))

        engine.retain = spy  # type: ignore[method-assign]
    pair.world.run()
    assert sorted(retained) == [("one", 0), ("two", 1)]
    refused = {(event.program_id, event.publisher) for _, event in control.of(ev.CommandRejected)}
    assert refused == {("one", f"{ONE}/1"), ("two", f"{TWO}/1")}


def test_nobody_waits_for_a_copy_that_was_left_behind() -> None:
    """And somebody does again for that of the engine it comes back to."""
    parked: list[tuple[int, bool]] = []
    pair = Pair(RouterDouble((ONE, Choice.NEW), (TWO, REPREFILL), (TWO, STAY)), growing(100, 200, 300))
    for number, engine in enumerate(pair.engines):

        def spy(program_id: str, is_parked: bool = True, now_ns: Any = None, number: int = number) -> None:
            parked.append((number, is_parked))

        engine.park = spy  # type: ignore[method-assign]
    pair.run()
    assert parked == [(0, False), (0, True), (1, False)], "admitted, then moved"


def test_a_pin_does_not_outlast_its_programs_leaving() -> None:
    control = ControllerDouble(ToolStarted=[cmd.Retain(program_id="p", ttl_ns=seconds(9))])
    pair = Pair(RouterDouble((ONE, Choice.NEW), (TWO, REPREFILL)), trace_of(*TWO_TURNS), control=control).run()
    assert pair.engines[0].cache.pins() == {}
    assert pair.held() == [110 // 16, 200 // 16]


def test_every_engine_is_sampled_under_its_own_name() -> None:
    control = ControllerDouble()
    Pair(RouterDouble((TWO, Choice.NEW)), trace_of(TWO_TURNS[1]), control=control).run()
    assert [event.publisher for _, event in control.of(ev.PoolSampled)] == [f"{ONE}/1", f"{TWO}/1"]
    sequences: dict[str, list[int]] = {}
    for _, event in control.events:
        sequences.setdefault(event.publisher, []).append(event.sequence)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in sequences.values())


# The router


def routed(policy: Any, *programs: ProgramTrace, **options: Any) -> Pair:
    router = Router(policy)
    control = Controller(replace(PRESETS["fcfs"], placement=router))
    return Pair(router, *programs, control=control, **options).run()


def test_programs_that_come_together_get_an_engine_each_and_take_their_ideal_time() -> None:
    """Closed form: two programs on two engines are as fast as each alone, two on one are not."""
    programs = synthesize("swe-bench", programs=2, seed=3).programs
    apart = routed(SessionAware(), *programs, pool_blocks=10_000)
    ideal = [solo_ns(program, EngineModel(TOY, pool_blocks=10_000)) for program in programs]
    took = {record.program_id: record.completion_ns for record in apart.world.programs}
    assert [took[program.program_id] for program in programs] == ideal
    assert {turn.routed.choice for turn in apart.world.turns if turn.routed} == {"new", "stay"}
    together = routed(placement_named("single", PRESETS["fcfs"]), *programs, pool_blocks=10_000)
    assert max(record.completion_ns for record in together.world.programs) > max(ideal)


def test_round_robin_misses_where_session_hits() -> None:
    program = growing(*range(1000, 9000, 1000))
    hits = {name: sum(routed(placement_named(name, PRESETS["fcfs"]), program).cached()) for name in ROUTINGS[1:]}
    assert hits["session"] == sum(prompt // 16 * 16 for prompt in range(1000, 8000, 1000))
    assert hits["round_robin"] == sum(prompt // 16 * 16 for prompt in range(1000, 7000, 1000))
    assert hits["least_loaded"] <= hits["session"]


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


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_preset_ends_every_program_with_every_routing_and_reproduces(preset: str, routing: str) -> None:
    chosen = spec(preset, pool_tokens=25_000, replicas=2, routing=routing)
    result = simulate(chosen)
    assert result == simulate(chosen)
    summary = result.summary
    assert (summary.programs_ended, summary.turns_ended) == (12, run_of(chosen).trace.turns)
    assert summary.routed_new == 12
    turns = summary.routed_new + summary.routed_stay + summary.routed_migrate + summary.routed_reprefill
    assert turns == summary.turns_ended
    assert sum((summary.pool_decode_ratio, summary.pool_prefill_ratio, summary.pool_recompute_ratio)) < 1
    assert (summary.routed_busiest_ratio == 1) == (routing == "single")


def test_one_engine_is_not_routed() -> None:
    one = simulate(spec(routing="round_robin"))
    assert one == simulate(spec())
    assert not one.summary.is_routed
    assert all(turn.routed is None for turn in one.turns)
    assert "engines" not in one.facts


def test_a_run_says_how_many_engines_it_had_and_how_turns_were_routed() -> None:
    two = simulate(spec(replicas=2, programs=2))
    assert (two.facts["engines"], two.facts["routing"], two.facts["link"]) == ("2", "session", "50 GB/s")
    assert {turn.routed.replica for turn in two.turns if turn.routed} == {ONE, TWO}


def test_ten_engines_have_names_that_sort() -> None:
    ten = simulate(spec(replicas=10, arrival=Closed(10)))
    names = {turn.routed.replica for turn in ten.turns if turn.routed}
    assert {"sim/engine-01", "sim/engine-10"} <= names


def test_overfull_engines_send_contexts_to_one_with_room() -> None:
    engines = {"profile": replace(TOY, kv_bytes_per_token=1000), "pool_tokens": 25_000, "replicas": 2}
    moved = simulate(spec("fcfs", **engines, link_gb_per_s=1000.0)).summary
    assert moved.routed_migrate > 0
    assert moved.routed_moved_tokens > 0
    kept = simulate(spec("fcfs", **engines, link_gb_per_s=0.0)).summary
    assert (kept.routed_migrate, kept.routed_moved_tokens) == (0, 0)


def test_a_link_that_was_configured_is_believed() -> None:
    """A policy that takes the link for endless sends at once; the transfers take what they take."""
    slow = {"profile": replace(TOY, kv_bytes_per_token=1000), "pool_tokens": 25_000, "replicas": 2}
    slow["link_gb_per_s"] = 1e-6
    hopeful = replace(PRESETS["fcfs"], placement=SessionAware(link_tokens_per_s=1e12))
    assert simulate(spec("fcfs", **slow)).summary.routed_migrate == 0
    assert simulate(replace(spec("fcfs", **slow), preset=hopeful)).summary.routed_migrate > 0


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

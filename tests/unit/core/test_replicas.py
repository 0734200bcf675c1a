"""One controller over several engines: whose memory counts, where programs are, restarts and ends."""

from typing import Any

import pytest
from support.core_driver import Driver, Publisher, fixed, of, recounted, sums

from controlplane.core.estimators.idleness import Decay
from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Tier, seconds
from controlplane.core.policies.presets import preset
from controlplane.core.scheduling.demand import engine_demand, engines, replicas

S = seconds(1)


class Pair(Driver):
    """Two engines of 1,000 blocks before one controller."""

    def __init__(self, name: str = "", **sample: Any) -> None:
        super().__init__(preset(name) if name else fixed(0))
        self.engines = [Publisher("node/engine-1/x"), Publisher("node/engine-2/x")]
        for number in (1, 2):
            self.sample(number, **sample)

    def sample(self, number: int, total: int = 1000, **fields: Any) -> None:
        fields = {"free_blocks": total, "block_tokens": 1} | fields
        self.send(self.engines[number - 1](ev.PoolSampled, total_blocks=total, **fields))

    def on(self, number: int) -> "Pair":
        """Turns run there from now on."""
        self.engine = self.engines[number - 1]
        return self

    def restart(self, number: int) -> None:
        self.engines[number - 1] = Publisher(f"node/engine-{number}/y")

    def loads(self) -> list[tuple[str, int, int, int]]:
        return [(each.name, each.demand_blocks, each.turns, each.turn_blocks) for each in replicas(self.ledger)]


def test_a_turn_is_placed_beside_what_lenders_hold_and_not_on_top_of_it() -> None:
    """Their room is others' to be let into; as long as another engine has room, nothing need be evicted."""
    d = Pair("mars")
    d.on(1).run_turn("a", prompt=400)
    d.on(2).submit("b", blocks=100)
    d.tick(1)
    assert d.program("a").lends
    assert [each.demand_blocks for each in replicas(d.ledger)] == [0, 100]
    assert [each.demand_blocks for each in engines(d.ledger).values()] == [400, 100]
    assert sums(d.ledger) == sums(recounted(d.ledger))
    d.on(1).submit("a", "a.2", blocks=420)
    assert [each.demand_blocks for each in engines(d.ledger).values()] == [420, 100]
    assert not d.ledger.programs.charges.placed_lent_blocks.total()


def total(d: Driver) -> int:
    d.tick()
    return d.controller.pressure.kv_total_blocks


def test_the_pool_is_what_all_engines_have_together() -> None:
    d = Pair(free_blocks=400, evictable_blocks=300, retained_blocks=200, host_total_blocks=50, host_used_blocks=5)
    d.sample(2, total=3000, free_blocks=1)
    d.tick()
    found = d.controller.pressure
    assert (found.kv_total_blocks, found.kv_free_blocks) == (4000, 401)
    assert (found.kv_evictable_blocks, found.kv_retained_blocks) == (300, 200)
    assert (found.host_total_blocks, found.host_used_blocks) == (50, 5)
    assert [each.name for each in found.replicas] == ["node/engine-1", "node/engine-2"]
    assert [(each.host_total_blocks, each.host_used_blocks) for each in found.replicas] == [(50, 5), (0, 0)]


def test_one_engine_has_no_parts() -> None:
    d = Driver()
    d.pool(total=70)
    assert total(d) == 70
    assert d.controller.pressure.replicas == ()
    assert d.ledger.engines.pool is d.ledger.engines.pools["node/engine"]
    d.submit("a", blocks=30)
    assert [(each.demand_blocks, each.turns, each.turn_blocks) for each in replicas(d.ledger)] == [(30, 1, 30)]


def test_parts_fade_as_the_whole_does() -> None:
    """Two ticks in its tool a program of 400 blocks weighs 100."""
    d = Pair("thunderagent")
    d.on(1).submit("a", blocks=400)
    d.finish("a", prompt=400)
    d.start_tool("a")
    d.on(2).submit("b", blocks=300)
    d.wait(2)
    assert [each.demand_blocks for each in engine_demand(d.ledger, Decay(base=2.0, tick_ns=S), d.now_ns)] == [
        100,
        300,
    ]
    assert [each.demand_blocks for each in engine_demand(d.ledger, None, d.now_ns)] == [400, 300]


# Restarts and ends


def test_a_restarted_gate_is_its_own_engines() -> None:
    d = Pair()
    d.gate = Publisher("node/gate-2/x")
    d.ask("c")
    for number, name in ((1, "a"), (2, "b")):
        d.on(number).run_turn(name)
    d.now_ns += seconds(6)
    d.gate = Publisher("node/gate-2/y")
    d.ask("d")
    assert (d.program("a").kv_tier, d.program("b").kv_tier) == (Tier.HBM, Tier.NONE)


def test_an_engine_that_ended_drops_out_of_the_sum_and_its_programs_have_no_kv() -> None:
    d = Pair()
    d.on(1).run_turn("a")
    d.on(2).run_turn("b")
    asked = []
    for _ in range(12):
        d.wait(10)
        d.sample(1)
        asked += [c.publisher for c in of(cmd.StateRequest, d.tick())]
    assert asked == ["node/engine-2/x"] * 3
    assert total(d) == 1000
    assert d.controller.pressure.replicas == ()
    assert (d.program("a").kv_tier, d.program("b").kv_tier) == (Tier.HBM, Tier.NONE)
    d.sample(2, total=400)
    assert total(d) == 1400, "it speaks again"


def test_the_last_engine_stays_in_the_sum_however_silent() -> None:
    d = Pair()
    for number, name in ((1, "a"), (2, "b")):
        d.on(number).submit(name)
    for _ in range(30):
        d.tick(10)
    assert d.ledger.turns.running == {}
    assert d.ledger.publishers.sequences == {}
    assert total(d) == 1000


def test_a_lost_gate_takes_no_memory_along() -> None:
    d = Pair()
    d.ask("a")
    d.controller.preset = fixed(1)
    for _ in range(12):
        d.wait(10)
        d.sample(1)
        d.sample(2)
        d.tick()
    assert total(d) == 2000


def test_the_first_engine_says_how_large_a_block_is() -> None:
    d = Pair()
    d.sample(2, block_tokens=16)
    assert d.ledger.estimates.block_tokens == 1
    d.on(1).submit("a", blocks=33)
    d.sample(1, block_tokens=16)
    assert d.ledger.estimates.block_tokens == 16
    assert d.loads()[0] == ("node/engine-1", 3, 1, 3)
    assert sums(d.ledger) == sums(recounted(d.ledger))


def test_engines_with_blocks_of_their_own_size_are_compared_in_those_of_the_first() -> None:
    """A vLLM with blocks of 16 tokens beside an SGLang with pages of one token has not a sixteenth of its room."""
    d = Pair()
    d.sample(2, total=1000, free_blocks=250, block_tokens=16)
    assert [(each.total_blocks, each.free_blocks) for each in replicas(d.ledger)] == [(1000, 1000), (16000, 4000)]
    assert total(d) == 17_000
    d.on(2).submit("a", blocks=10)
    assert d.loads()[1] == ("node/engine-2", 160, 1, 160)
    d.send(d.engine(ev.PublisherState, open_turns=(ev.OpenTurn(program_id="b", turn_id="b.1", blocks=5),)))
    assert d.ledger.turns.running["b.1"].blocks == 80
    d.sample(1, total=1000, block_tokens=8)
    assert [each.total_blocks for each in replicas(d.ledger)] == [1000, 2000]
    assert d.loads()[1] == ("node/engine-2", 30, 1, 10), "of a, whose turn the state does not list, and of b"
    d.sample(1, total=1000, block_tokens=16)
    assert d.ledger.turns.block_tokens == {}
    d.submit("c", blocks=7)
    assert d.ledger.turns.running["c.1"].blocks == 7
    assert sums(d.ledger) == sums(recounted(d.ledger))


# Commands


@pytest.mark.parametrize(("number", "believed"), [(1, True), (2, False)])
def test_only_the_engine_of_a_program_can_refuse_to_hold_it(number: int, believed: bool) -> None:
    """Every engine hears every command."""
    d = Pair()
    d.on(2).run_turn("a")
    d.program("a").retained_until_ns = d.now_ns + 5
    d.ledger.engines.expect_move(7, Tier.HOST)
    d.send(d.engines[number - 1](ev.CommandRejected, command_id=7, program_id="a"))
    assert (7 in d.ledger.engines.moving) is believed
    d.send(d.engines[number - 1](ev.CommandRejected, command_id=8, program_id="a"))
    assert (d.program("a").retained_until_ns > 0) is believed
    assert d.counts.commands_rejected == 2


@pytest.mark.parametrize(("number", "believed"), [(1, True), (2, False)])
def test_a_pin_that_its_engine_gave_up_is_none_any_more(number: int, believed: bool) -> None:
    d = Pair()
    d.on(2).run_turn("a")
    d.program("a").retained_until_ns = d.now_ns + 5
    d.send(d.engines[number - 1](ev.PinReclaimed, program_id="a"))
    assert (d.program("a").retained_until_ns > 0) is believed
    d.send(d.engines[number - 1](ev.PinReclaimed, program_id="unknown"))


# Decisions


def test_thunderagent_pauses_on_the_engine_that_thrashes_and_admits_where_there_is_room() -> None:
    """1,000 blocks each. The first engine's programs ask for 1,100; the second's leave 700."""
    d = Pair("thunderagent")
    for name, blocks in (("a", 600), ("b", 500)):
        d.on(1).submit(name, blocks=blocks)
    d.on(2).submit("c", blocks=300)
    d.ask("large", tokens=701)
    commands = d.tick()
    assert [c.program_id for c in of(cmd.Pause, commands)] == ["b"]
    assert of(cmd.Admit, commands) == []
    d.ask("small", tokens=650)
    d.ask("smaller", tokens=340)
    assert d.admitted(5) == ["smaller"], "to the second engine, and 650 fit neither any more"


def test_one_queue_fills_every_engine() -> None:
    d = Pair("thunderagent")
    d.on(1).submit("a", blocks=400)
    d.on(2).submit("b", blocks=400)
    for name in ("c", "d", "e"):
        d.ask(name, tokens=500)
    assert d.admitted() == ["c", "d"]


def test_a_controller_decides_alike_whether_its_engine_has_a_name() -> None:
    """One engine is one engine: ``node/engine-7`` and ``node/engine`` give the same commands."""

    def decided(name: str) -> list[cmd.Command]:
        d = Driver(preset("thunderagent"))
        d.engine = Publisher(name)
        d.pool()
        for program in ("a", "b"):
            d.submit(program, blocks=600)
        d.ask("c")
        return [*d.tick(), *d.tick(5)]

    assert decided("node/engine-7/x") == decided("node/engine/x") != []

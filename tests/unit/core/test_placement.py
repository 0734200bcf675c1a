"""Placement policies, worked by hand: each choice, and the costs that it was weighed by.

A prefill takes 2 ns a token here, and a turn runs for 1,000 ns; engines have 100 blocks unless said.
"""

import pytest
from made_facts import MadeFacts

from controlplane.core.errors import ConfigError
from controlplane.core.placement.cost import is_resident, loss_ns, wait_ns
from controlplane.core.placement.hashing import Hash
from controlplane.core.placement.least_loaded import LeastLoaded
from controlplane.core.placement.prefix import Prefix
from controlplane.core.placement.round_robin import RoundRobin
from controlplane.core.placement.session import Session
from controlplane.core.placement.single import Single
from controlplane.core.policies import STATELESS, Choice, NextTurn, Placed
from controlplane.core.types import Program, Replica, Tier

FACTS = MadeFacts(prefill_ns_per_token=2, turn_service_ns=1000)
NEW, STAY, MIGRATE, REPREFILL = Choice


def turn(replica: str = "a", blocks: int = 10, tokens: int = 50, held: bool = True, **changes: object) -> NextTurn:
    """Of a program that kept its slot, with 8 blocks of context on ``replica``; its gate holds the turn."""
    fields: dict[str, object] = {"replica": replica, "kv_blocks": 8, "kv_tier": Tier.HBM, "warm": True} | changes
    program = Program(program_id="p", **fields)  # type: ignore[arg-type]
    return NextTurn(program=program, blocks=blocks, reusable_tokens=tokens, held=held)


def arriving() -> NextTurn:
    return NextTurn(program=Program(program_id="p"), blocks=10)


def engine(name: str, demand: int = 0, turns: int = 0, used: int = 0, **more: int) -> Replica:
    """``used``: by the turns that it holds."""
    sizes = {"total_blocks": 100} | more
    return Replica(name=name, demand_blocks=demand, turns=turns, turn_blocks=used, **sizes)


# What it costs


def test_a_turn_that_fits_does_not_wait() -> None:
    assert wait_ns(turn(), engine("a", used=90), FACTS, 0) == 0


def test_a_turn_waits_for_what_lacks_at_the_rate_at_which_turns_give_blocks_back() -> None:
    """25 of the 100 blocks that are given back in 1,000 ns."""
    assert wait_ns(turn(), engine("a", used=115), FACTS, 0) == 250
    assert wait_ns(turn(), engine("a", used=115), MadeFacts(), 0) == 0, "no turn has ended yet"


def test_what_is_retained_for_others_is_no_room() -> None:
    """50 blocks are room, 10 more are wanted than that: a fifth of 1,000 ns."""
    assert wait_ns(turn(), engine("a", used=50, retained_blocks=50), FACTS, 0) == 200
    own = turn(retained_until_ns=7)
    assert wait_ns(own, engine("a", used=50, retained_blocks=50), FACTS, 6) == 1000 * 2 // 58
    assert wait_ns(own, engine("a", used=50, retained_blocks=50), FACTS, 7) == 200, "its pin has ended"
    assert wait_ns(own, engine("b", used=50, retained_blocks=50), FACTS, 6) == 200, "its pin is elsewhere"
    assert wait_ns(turn(), engine("a", used=0, retained_blocks=100), FACTS, 0) == 10_000, "nothing is room"


def test_of_contexts_that_ask_for_too_much_the_share_that_is_too_much_is_lost() -> None:
    """A fifth of 100 ns of prefill. Elsewhere its own demand comes on top: 10 of 110."""
    assert loss_ns(turn(), engine("a", demand=125), FACTS) == 20
    assert loss_ns(turn(), engine("a", demand=100), FACTS) == 0
    assert loss_ns(turn(), engine("b", demand=100), FACTS) == 9
    assert loss_ns(turn(kv_blocks=25), engine("b", demand=100), FACTS) == 20


@pytest.mark.parametrize(
    ("tier", "warm", "resident"),
    [
        (Tier.HBM, True, True),
        (Tier.HBM, False, False),
        (Tier.HOST, False, True),
        (Tier.NONE, True, False),
    ],
)
def test_a_context_is_where_it_was_unless_its_slot_was_lost_or_it_was_dropped(
    tier: Tier, warm: bool, resident: bool
) -> None:
    assert is_resident(turn(kv_tier=tier, warm=warm)) is resident


# Policies that weigh nothing


def test_single_takes_the_first() -> None:
    placed = Single().place(Single().initial(), turn("b"), [engine("a"), engine("b")], FACTS, 0)[1]
    assert placed == Placed(replica="a", choice=REPREFILL, costs_ns={REPREFILL: 100})


def test_round_robin_takes_one_after_another_whoever_asks() -> None:
    policy, engines = RoundRobin(), [engine("a"), engine("b"), engine("c")]
    state, found = policy.initial(), []
    for asks in (arriving(), turn("a"), turn("b"), turn("a")):
        state, placed = policy.place(state, asks, engines, FACTS, 0)
        found.append((placed.replica, placed.choice, placed.cost_ns))
    assert found == [("a", NEW, 0), ("b", REPREFILL, 100), ("c", REPREFILL, 100), ("a", STAY, 0)]
    assert policy.place(state, turn("a"), [engine("b"), engine("c")], FACTS, 0)[1].replica == "b", "a has gone"


def test_least_loaded_takes_the_fewest_turns_then_the_most_free_then_the_first_name() -> None:
    def chosen(*engines: Replica) -> str:
        return LeastLoaded().place(STATELESS, turn("a"), engines, FACTS, 0)[1].replica

    assert chosen(engine("a", turns=2), engine("b", turns=1)) == "b"
    assert chosen(engine("a", turns=1, free_blocks=5), engine("b", turns=1, free_blocks=6)) == "b"
    assert chosen(engine("a", turns=1, free_blocks=6), engine("b", turns=1, free_blocks=6)) == "a"


def test_staying_by_chance_costs_the_wait_and_a_context_that_is_gone() -> None:
    crowded = [engine("a", used=115)]
    stayed = LeastLoaded().place(LeastLoaded().initial(), turn(), crowded, FACTS, 0)[1]
    assert (stayed.choice, stayed.costs_ns) == (STAY, {STAY: 250})
    gone = LeastLoaded().place(STATELESS, turn(kv_tier=Tier.NONE), crowded, FACTS, 0)[1]
    assert gone.costs_ns == {STAY: 350}


def test_a_hash_asks_nothing_and_moves_only_whom_an_engine_that_comes_or_goes_takes_or_leaves() -> None:
    names = [f"engine-{number}" for number in range(5)]

    def homes(engines: list[str]) -> dict[str, str]:
        asks = {f"p{n}": NextTurn(program=Program(program_id=f"p{n}"), blocks=1) for n in range(500)}
        found = [engine(name, demand=1000, turns=99) for name in engines]
        return {name: Hash().place(STATELESS, each, found, FACTS, 0)[1].replica for name, each in asks.items()}

    before, after = homes(names), homes(names[:4])
    assert all(60 < list(before.values()).count(name) < 140 for name in names)
    moved = {name for name in before if before[name] != after[name]}
    assert moved == {name for name, home in before.items() if home == "engine-4"}
    assert homes(names) == before


def test_prefix_affinity_goes_where_the_prompt_was_seen_evicted_or_not() -> None:
    """50 tokens of a prompt of 10 blocks of one token."""

    def chosen(asks: NextTurn, *engines: Replica, facts: MadeFacts = FACTS) -> str:
        return Prefix().place(STATELESS, asks, engines, facts, 0)[1].replica

    crowded = (engine("a", demand=900, turns=60, used=900), engine("b"))
    assert chosen(turn(kv_tier=Tier.NONE, warm=False), *crowded) == "a"
    assert chosen(turn(tokens=2), *crowded) == "b", "too little of it: the one with the smallest record"
    assert chosen(turn("gone"), *crowded) == chosen(arriving(), *crowded) == "b"
    assert chosen(turn(), engine("a", turns=65), engine("b")) == "b", "turns have piled up"
    assert chosen(turn(), engine("a", turns=65), engine("b", turns=60)) == "a", (
        "more, but not so many times as many"
    )
    shared = MadeFacts(prefill_ns_per_token=2)
    shared.shared_tokens.add(5)
    assert chosen(arriving(), engine("a"), engine("b", demand=9), engine("c", demand=5), facts=shared) == "b"
    assert chosen(arriving(), engine("a"), engine("b"), facts=shared) == "a", "nobody has seen anything yet"


@pytest.mark.parametrize("wrong", [{"match": 1.5}, {"pile_turns": -1}, {"pile_ratio": 0.5}])
def test_prefix_refuses_what_makes_no_sense(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Prefix(**wrong)  # type: ignore[arg-type]


# The session-aware router


def session(
    asks: NextTurn, *engines: Replica, link_tokens_per_s: float = 0.0
) -> tuple[str, Choice, dict[Choice, int]]:
    policy = Session(link_tokens_per_s=link_tokens_per_s, turns_ahead=1.0)
    _, placed = policy.place(policy.initial(), asks, engines, FACTS, 0)
    return placed.replica, placed.choice, dict(placed.costs_ns)


def test_a_program_stays_where_its_last_turn_ran_while_that_has_capacity() -> None:
    assert session(turn("b"), engine("a"), engine("b", demand=100, turns=9, used=90)) == ("b", STAY, {STAY: 0})


def test_a_new_program_goes_where_its_peers_leave_the_most_room() -> None:
    assert session(arriving(), engine("a", 60), engine("b", 40), engine("c", 50)) == ("b", NEW, {NEW: 0})
    large = engine("c", 140, total_blocks=300)
    assert session(arriving(), engine("a", 60), engine("b", 40), large)[0] == "c", "room, not emptiness"
    assert session(arriving(), engine("a", 60, turns=2), engine("b", 60, turns=1))[0] == "b"
    assert session(arriving(), engine("a", 60), engine("b", 60))[0] == "a"


def test_it_waits_at_home_where_that_is_cheapest() -> None:
    """A wait of 50 ns against a prefill of 100."""
    costs = {STAY: 50, REPREFILL: 100}
    assert session(turn(), engine("a", used=95), engine("b")) == ("a", STAY, costs)


def test_hard_affinity_waits_at_home_as_long_as_its_context_is_there() -> None:
    """A wait of 250 ns against a prefill of 100. One in its host's memory binds always (MORI §4.3.1)."""
    engines = [engine("a", used=115), engine("b")]

    def chosen(hard: bool) -> list[str]:
        asks = [turn(), turn(kv_tier=Tier.HOST), turn(kv_tier=Tier.NONE)]
        return [Session(hard=hard).place(STATELESS, each, engines, FACTS, 0)[1].replica for each in asks]

    assert chosen(hard=True) == ["a", "a", "b"]
    assert chosen(hard=False) == ["b", "a", "b"]


def test_who_waits_somewhere_now_does_not_drive_a_turn_away_that_comes_after_a_tool() -> None:
    """A wait of 250 ns against a prefill of 100; and of the contexts a fifth would be lost, 20 ns."""
    later, engines = turn(held=False), [engine("a", used=115), engine("b")]
    assert session(later, *engines) == ("a", STAY, {STAY: 0})
    half = Session(passing_wait=0.5, turns_ahead=1.0).place(STATELESS, later, engines, FACTS, 0)[1]
    assert (half.replica, half.costs_ns) == ("b", {STAY: 125, REPREFILL: 100})
    crowded = (engine("a", demand=125, used=115), engine("b"))
    assert session(later, *crowded, link_tokens_per_s=5e9) == (
        "b",
        MIGRATE,
        {STAY: 20, MIGRATE: 10, REPREFILL: 100},
    )


def test_it_is_computed_anew_elsewhere_where_that_is_cheapest() -> None:
    """A wait of 250 ns against a prefill of 100."""
    costs = {STAY: 250, REPREFILL: 100}
    assert session(turn(), engine("a", used=115), engine("b")) == ("b", REPREFILL, costs)


def test_its_kv_is_sent_where_that_is_cheapest() -> None:
    """50 tokens at 2 a nanosecond."""
    costs = {STAY: 50, MIGRATE: 25, REPREFILL: 100}
    engines = (engine("a", used=95), engine("b"))
    assert session(turn(), *engines, link_tokens_per_s=2e9) == ("b", MIGRATE, costs)
    slow = {STAY: 50, MIGRATE: 50, REPREFILL: 100}
    assert session(turn(), *engines, link_tokens_per_s=1e9) == ("a", STAY, slow), "of equal ones it stays"


def test_leaving_costs_the_wait_elsewhere_too() -> None:
    """b is the less crowded of the others: 10 blocks lack there, 20 on c."""
    engines = (engine("a", used=115), engine("b", used=100), engine("c", used=110))
    assert session(turn(), *engines) == ("b", REPREFILL, {STAY: 250, REPREFILL: 200})
    equal = (engine("a", used=115), engine("b", 30), engine("c", 20))
    assert session(turn(), *equal)[0] == "c", "of equal ones that with the most room"


def test_a_program_leaves_an_engine_whose_contexts_do_not_fit() -> None:
    """It would lose a fifth of its context, 20 ns; sending it takes 10."""
    engines = (engine("a", demand=125), engine("b", demand=50))
    assert session(turn(), *engines, link_tokens_per_s=5e9) == (
        "b",
        MIGRATE,
        {STAY: 20, MIGRATE: 10, REPREFILL: 100},
    )
    assert session(turn(), engine("a", demand=125), engine("b", demand=125), link_tokens_per_s=5e9)[1] is STAY


def test_crowding_counts_for_the_turns_to_come_and_a_move_once() -> None:
    """A fifth of the context is lost at each turn, 20 ns; computing all of it elsewhere takes 100 ns."""
    engines = (engine("a", demand=125), engine("b", demand=50))

    def chosen(turns_ahead: float) -> tuple[str, dict[Choice, int]]:
        placed = Session(turns_ahead=turns_ahead).place(STATELESS, turn(), engines, FACTS, 0)[1]
        return placed.replica, dict(placed.costs_ns)

    assert chosen(5) == ("a", {STAY: 100, REPREFILL: 100})
    assert chosen(6) == ("b", {STAY: 120, REPREFILL: 100})


def test_who_lost_its_slot_may_go_anywhere_and_returns_where_there_is_room() -> None:
    """Its context is computed anew on any engine (ThunderAgent): only what is crowded counts."""
    paused = turn(warm=False)
    assert session(paused, engine("a", demand=100), engine("b")) == ("a", STAY, {STAY: 100})
    costs = {STAY: 120, REPREFILL: 100}
    assert session(paused, engine("a", demand=125), engine("b"), link_tokens_per_s=9e9) == ("b", REPREFILL, costs)


def test_a_copy_on_a_host_is_not_sent() -> None:
    hosted = turn(kv_tier=Tier.HOST)
    assert session(hosted, engine("a", used=95), engine("b"), link_tokens_per_s=9e9) == ("a", STAY, {STAY: 50})


def test_a_context_on_an_engine_that_drains_is_sent_to_another() -> None:
    """It is there, and no turn may go there. Where the engine is gone, so is the context."""
    costs = {MIGRATE: 25, REPREFILL: 100}
    assert session(turn("drains"), engine("a", 60), engine("b", 40), link_tokens_per_s=2e9) == ("b", MIGRATE, costs)
    lost = turn("gone", kv_tier=Tier.NONE)
    assert session(lost, engine("a", 60), engine("b", 40), link_tokens_per_s=2e9)[1] is REPREFILL


def test_a_program_whose_engine_has_gone_is_computed_anew_where_there_is_room() -> None:
    assert session(turn("gone"), engine("a", 60), engine("b", 40)) == ("b", REPREFILL, {REPREFILL: 100})


def test_alone_an_engine_keeps_everybody() -> None:
    assert session(turn(), engine("a", used=115)) == ("a", STAY, {STAY: 250})


def test_a_link_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="link_tokens_per_s"):
        Session(link_tokens_per_s=-1.0)
    with pytest.raises(ConfigError, match="passing_wait"):
        Session(passing_wait=2.0)
    with pytest.raises(ConfigError, match="turns_ahead"):
        Session(turns_ahead=-1.0)

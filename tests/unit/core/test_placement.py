"""Placement policies, worked by hand: each choice, and the costs that it was weighed by.

A prefill takes 2 ns a token here, and a turn runs for 1,000 ns; engines have 100 blocks unless said.
"""

from made_facts import MadeFacts

from controlplane.core.model.types import Program, Replica, Tier
from controlplane.core.policies.placement.cost import wait_ns
from controlplane.core.policies.placement.hashing import Hash
from controlplane.core.policies.placement.least_loaded import LeastLoaded
from controlplane.core.policies.placement.prefix import Prefix
from controlplane.core.policies.placement.session import Session
from controlplane.core.policies.placement.single import Single
from controlplane.core.policies.protocols import STATELESS, Choice, NextTurn, Placed

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


def test_what_is_retained_for_others_is_no_room() -> None:
    """50 blocks are room, 10 more are wanted than that: a fifth of 1,000 ns."""
    assert wait_ns(turn(), engine("a", used=50, retained_blocks=50), FACTS, 0) == 200
    own = turn(retained_until_ns=7)
    assert wait_ns(own, engine("a", used=50, retained_blocks=50), FACTS, 6) == 1000 * 2 // 58
    assert wait_ns(own, engine("a", used=50, retained_blocks=50), FACTS, 7) == 200, "its pin has ended"
    assert wait_ns(own, engine("b", used=50, retained_blocks=50), FACTS, 6) == 200, "its pin is elsewhere"
    assert wait_ns(turn(), engine("a", used=0, retained_blocks=100), FACTS, 0) == 10_000, "nothing is room"


# Policies that weigh nothing


def test_single_takes_the_first() -> None:
    placed = Single().place(Single().initial(), turn("b"), [engine("a"), engine("b")], FACTS, 0)[1]
    assert placed == Placed(replica="a", choice=REPREFILL, costs_ns={REPREFILL: 100})


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


# The session-aware router


def session(
    asks: NextTurn, *engines: Replica, link_tokens_per_s: float = 0.0
) -> tuple[str, Choice, dict[Choice, int]]:
    policy = Session(link_tokens_per_s=link_tokens_per_s, turns_ahead=1.0)
    _, placed = policy.place(policy.initial(), asks, engines, FACTS, 0)
    return placed.replica, placed.choice, dict(placed.costs_ns)


def test_it_waits_at_home_where_that_is_cheapest() -> None:
    """A wait of 50 ns against a prefill of 100."""
    costs = {STAY: 50, REPREFILL: 100}
    assert session(turn(), engine("a", used=95), engine("b")) == ("a", STAY, costs)


def test_its_kv_is_sent_where_that_is_cheapest() -> None:
    """50 tokens at 2 a nanosecond."""
    costs = {STAY: 50, MIGRATE: 25, REPREFILL: 100}
    engines = (engine("a", used=95), engine("b"))
    assert session(turn(), *engines, link_tokens_per_s=2e9) == ("b", MIGRATE, costs)
    slow = {STAY: 50, MIGRATE: 50, REPREFILL: 100}
    assert session(turn(), *engines, link_tokens_per_s=1e9) == ("a", STAY, slow), "of equal ones it stays"


def test_a_context_on_an_engine_that_drains_is_sent_to_another() -> None:
    """It is there, and no turn may go there. Where the engine is gone, so is the context."""
    costs = {MIGRATE: 25, REPREFILL: 100}
    assert session(turn("drains"), engine("a", 60), engine("b", 40), link_tokens_per_s=2e9) == ("b", MIGRATE, costs)
    lost = turn("gone", kv_tier=Tier.NONE)
    assert session(lost, engine("a", 60), engine("b", 40), link_tokens_per_s=2e9)[1] is REPREFILL

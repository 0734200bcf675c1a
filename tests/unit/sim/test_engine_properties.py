"""What must hold for every script of operations."""

from typing import Any

from engine_operations import OPERATIONS, PROFILE, PROFILES, TOY, Driven, Operation
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.core.events import FirstToken, TurnEnded, TurnSubmitted
from controlplane.core.policies import Fit
from controlplane.lab.sim.engine_model import EngineModel
from controlplane.lab.sim.hardware import Profile

POOLS = st.sampled_from([40, 150, 300, 700])


def driven(script: list[Operation], pool_blocks: int, **options: Any) -> Driven:
    profile = options.pop("profile", PROFILE)
    engine = EngineModel(profile, pool_blocks=pool_blocks, chunk_tokens=512, max_running=6, **options)
    return Driven(engine).run(script)


@settings(deadline=None, max_examples=120)
@given(script=OPERATIONS, pool_blocks=POOLS, profile=st.sampled_from(PROFILES))
def test_decode_jumps_equal_single_steps(script: list[Operation], pool_blocks: int, profile: Profile) -> None:
    jumping = driven(script, pool_blocks, profile=profile)
    stepping = driven(script, pool_blocks, profile=profile, max_jump_steps=1)
    assert jumping.events == stepping.events
    assert jumping.samples == stepping.samples


@settings(deadline=None, max_examples=120)
@given(
    script=OPERATIONS,
    pool_blocks=POOLS,
    block_tokens=st.sampled_from([1, 16, 64]),
    profile=st.sampled_from(PROFILES),
)
def test_every_accepted_call_ends_once_and_in_order(
    script: list[Operation], pool_blocks: int, block_tokens: int, profile: Profile
) -> None:
    run = driven(script, pool_blocks * 16 // block_tokens, block_tokens=block_tokens, profile=profile)
    seen: dict[str, list[type]] = {}
    for event in run.events:
        assert isinstance(event, TurnSubmitted | FirstToken | TurnEnded)
        seen.setdefault(event.turn_id, []).append(type(event))
        if isinstance(event, TurnEnded):
            call = run.accepted[event.turn_id]
            assert event.cached_tokens <= max(call.reusable_tokens, call.prefix_tokens)
            assert event.cached_tokens < call.prompt_tokens
            assert event.output_tokens <= call.output_tokens
            assert event.ok == (event.output_tokens == call.output_tokens)
    assert set(seen) == set(run.accepted)
    for kinds in seen.values():
        assert kinds in ([TurnSubmitted, FirstToken, TurnEnded], [TurnSubmitted, TurnEnded])
    assert [event.at_ns for event in run.events] == sorted(event.at_ns for event in run.events)
    assert run.engine.open_calls() == []


class Halving:
    """A memory policy double: grants half of every chunk, and nothing when the chunk is one block."""

    shrinks = True
    pins_outlast_waits = False
    pin_budget_ratio = 0.5

    def unpin(self, pins: Any, shortfall_blocks: int, stuck: bool) -> list[str]:
        return [pin.program_id for pin in pins]

    def host_rank(self, label: str, parked: bool) -> int:
        return 0

    def fit(
        self,
        chunk_blocks: int,
        shortfall_blocks: int,
        least_blocks: int,
        candidates: Any,
        now_ns: int,
    ) -> Any:
        return Fit(chunk_blocks=chunk_blocks // 2, victims=[(c.program_id, 1) for c in candidates])


@settings(deadline=None, max_examples=60)
@given(script=OPERATIONS, pool_blocks=POOLS)
def test_a_policy_that_shrinks_chunks_cannot_stop_the_engine(script: list[Operation], pool_blocks: int) -> None:
    run = driven(script, pool_blocks, memory=Halving())
    assert sum(isinstance(event, TurnEnded) for event in run.events) == len(run.accepted)


@settings(deadline=None, max_examples=60)
@given(script=OPERATIONS)
def test_time_never_goes_back(script: list[Operation]) -> None:
    engine = EngineModel(TOY, pool_blocks=300)
    run = Driven(engine)
    for index, operation in enumerate(script):
        run.now_ns = max(0, run.now_ns + operation.gap_ns - 2_000)  # a clock that sometimes steps back
        run.apply(operation, index)
        run.events += engine.advance(run.now_ns)
        run.check_blocks()
    run.finish()
    assert [event.at_ns for event in run.events] == sorted(event.at_ns for event in run.events)

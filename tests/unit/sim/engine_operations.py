"""Random scripts of engine operations, and a driver that checks the block count after each step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from controlplane.core.model.events import Event, PoolSampled
from controlplane.core.policies.engine_policies import EnginePolicies
from controlplane.lab.sim.engine_model import Call, ContextTooLong, EngineModel
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.lower_tiers import TierSpec
from controlplane.lab.sim.profile import load_profile

PROFILE = load_profile("h200-llama31-8b")
PROFILES = [PROFILE, replace(PROFILE, results_late=True)]
TOY = Profile(
    name="toy",
    source="made up",
    prefill_tokens=(0, 1000),
    prefill_cumulative_ns=(0, 1_000_000),  # 1 us a token
    step_overhead_ns=10_000,
    decode_base_ps=1_000_000,  # 1 us
    decode_sequence_ps=0,
    decode_context_ps=0,
    kv_pool_tokens=1 << 20,
    max_context_tokens=1 << 20,
    kv_bytes_per_token=1000,
)


@dataclass(frozen=True, slots=True)
class Operation:
    """What to do ``gap_ns`` after the operation before."""

    kind: str
    gap_ns: int
    program: int
    prompt_tokens: int
    output_tokens: int
    reusable_tokens: int
    ttl_ns: int


DRAM = TierSpec(name="dram", tokens=3000, gb_per_s=10.0)
CXL = TierSpec(name="cxl", tokens=1000, gb_per_s=5.0)
KINDS = ["submit"] * 6 + ["retain", "release", "discard", "cut", "adopt", "abort", "sample"]
STEERING = ["park", "unpark", "use", "demote", "label"]  # "use" takes one of ``Driven.choices``
SCRIPTS = st.lists(
    st.builds(
        Operation,
        kind=st.sampled_from(KINDS + STEERING),
        gap_ns=st.sampled_from([0, 1_000, 10**7, 10**8, 3 * 10**8, 10**9]),
        program=st.integers(0, 4),
        prompt_tokens=st.integers(1, 2000),
        output_tokens=st.integers(1, 300),
        reusable_tokens=st.integers(0, 2000),
        ttl_ns=st.integers(1, 10**9),
    ),
    min_size=1,
    max_size=30,
)


def running_blocks(engine: EngineModel) -> int:
    """Blocks of running turns that the prefix cache does not hold."""
    batch, scheduler = engine._batch, engine._scheduler
    blocks = sum(turn.own_blocks for turn in scheduler.turns.values() if turn.decoding is None)
    for turn in scheduler.running.values():
        if turn.decoding is not None:
            blocks += scheduler.blocks(batch.kv_tokens(turn.decoding)) - turn.shared_blocks
    return blocks + (batch.growth_blocks(0, engine._taken_steps) if engine._jump_steps else 0)


class Driven:
    """An engine model run through a script, as a caller would: advanced whenever it asks."""

    def __init__(self, engine: EngineModel, choices: Sequence[EnginePolicies] = ()) -> None:
        self.engine = engine
        self.choices = choices
        self.now_ns = 0
        self.events: list[Event] = []
        self.accepted: dict[str, Call] = {}
        self.samples: list[PoolSampled] = []

    def run(self, script: list[Operation]) -> "Driven":
        for index, operation in enumerate(script):
            self.wait(self.now_ns + operation.gap_ns)
            self.apply(operation, index)
            self.check_blocks()
        self.finish()
        return self

    def wait(self, until_ns: int) -> None:
        while (wake_ns := self.engine.next_wake_ns()) is not None and wake_ns <= until_ns:
            self.events += self.engine.advance(wake_ns)
            self.check_blocks()
        self.now_ns = until_ns
        self.events += self.engine.advance(until_ns)

    def finish(self) -> None:
        while (wake_ns := self.engine.next_wake_ns()) is not None:
            self.now_ns = wake_ns
            self.events += self.engine.advance(wake_ns)
            self.check_blocks()

    def apply(self, operation: Operation, index: int) -> None:
        engine, now_ns, program_id = self.engine, self.now_ns, f"p{operation.program}"
        match operation.kind:
            case "submit":
                call = self.call(operation, index)
                try:
                    engine.submit(call, now_ns)
                except ContextTooLong:
                    return
                self.accepted[call.turn_id] = call
            case "demote":
                engine.demote(program_id, now_ns)
            case "label":
                engine.label(program_id, ("", "idle", "inactive")[operation.prompt_tokens % 3], now_ns)
            case "retain":
                engine.retain(program_id, now_ns + operation.ttl_ns, now_ns)
            case "release":
                engine.release(program_id, now_ns)
            case "discard":
                engine.discard(program_id, now_ns)
            case "cut":
                engine.discard(program_id, now_ns, keep_tokens=operation.reusable_tokens)
            case "adopt":
                blocks = operation.reusable_tokens // engine.block_tokens
                assert 0 <= engine.adopt(self.call(operation, index), blocks, now_ns) <= blocks + 200
            case "abort":
                engine.abort(f"t{index - operation.program}", now_ns)
            case "sample":
                self.samples.append(engine.pool_sample(now_ns))
            case "park" | "unpark":
                engine.park(program_id, operation.kind == "park", now_ns)
            case "use" if self.choices:
                engine.use(self.choices[operation.prompt_tokens % len(self.choices)], now_ns)

    @staticmethod
    def call(operation: Operation, index: int) -> Call:
        shares = operation.program % 2 == 1
        return Call(
            turn_id=f"t{index}",
            program_id=f"p{operation.program}",
            prompt_tokens=operation.prompt_tokens,
            output_tokens=operation.output_tokens,
            reusable_tokens=operation.reusable_tokens,
            prefix_group="system" if shares else "",
            prefix_tokens=200 if shares else 0,
        )

    def check_blocks(self) -> None:
        held = running_blocks(self.engine)
        cache = self.engine.cache
        assert cache.free_blocks >= 0
        assert cache.evictable_blocks >= 0
        assert cache.pinned_blocks >= 0
        bases = [node.base_blocks for name in cache.pins() if (node := cache.find(name)) is not None]
        assert cache.budgeted_blocks == cache.pinned_blocks + sum(bases)
        assert cache.free_blocks + sum(node.blocks for node in cache._nodes.values()) + held == cache.total_blocks

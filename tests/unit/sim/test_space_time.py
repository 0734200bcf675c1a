"""What the pool's blocks were used for."""

import pytest
from engine_operations import PROFILE, STEERED, TOY, Driven, Operation
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.lab.sim.engine_model import Call, EngineModel
from controlplane.lab.sim.space_time import Holding, SpaceTime

S_PS = 10**12
US = 1000


def test_what_is_held_counts_until_it_changes() -> None:
    used = SpaceTime()
    used.hold(Holding(unused=10), 2 * S_PS)
    used.hold(Holding(decode=4, caching=6), 3 * S_PS)
    used.hold(Holding(decode=99), 1 * S_PS)  # not back in time
    used.hold(Holding(prefill=7, recompute=3), 5 * S_PS)
    assert (used.unused, used.decode, used.caching, used.prefill, used.recompute) == (20, 4, 6, 14, 6)
    assert used.total == 50


def finish(model: EngineModel) -> None:
    while (wake_ns := model.next_wake_ns()) is not None:
        model.advance(wake_ns)


def test_a_run_by_hand() -> None:
    """TOY: a prefill step takes 10 us and 1 us a token, a decode step 1 us; a block has 16 tokens. A pool of 20."""
    model = EngineModel(TOY, pool_blocks=20)
    model.submit(Call(turn_id="a1", program_id="a", prompt_tokens=160, output_tokens=1), 100 * US)
    finish(model)
    used = model.space_time
    us = 1e-6
    # 100 us of nothing; a prefill of 170 us in 10 blocks, 10 stay free; then "a" rests in its blocks
    assert used.unused == pytest.approx(20 * 100 * us + 10 * 170 * us)
    assert used.prefill == pytest.approx(10 * 170 * us)
    assert (used.recompute, used.decode) == (0, 0)
    model.discard("a", 400 * US)
    assert used.caching == pytest.approx(10 * 130 * us)
    again = Call(turn_id="a2", program_id="a", prompt_tokens=192, output_tokens=1, reusable_tokens=160)
    model.submit(again, 400 * US)
    finish(model)
    # 12 blocks for 202 us, of whose 192 tokens 160 had been there
    assert used.recompute == pytest.approx(12 * 202 * us * 160 / 192)
    assert used.prefill == pytest.approx(10 * 170 * us + 12 * 202 * us * 32 / 192)
    assert model.redone == (0, 160)


@settings(max_examples=60)
@given(script=STEERED, pool_blocks=st.sampled_from([40, 150, 700]))
def test_every_block_is_accounted_for_at_every_time(script: list[Operation], pool_blocks: int) -> None:
    driven = Driven(EngineModel(PROFILE, pool_blocks=pool_blocks, chunk_tokens=512, max_running=6), ()).run(script)
    used = driven.engine.space_time
    parts = (used.decode, used.prefill, used.recompute, used.caching, used.unused)
    assert min(parts) >= -1e-9
    end_s = used._at_ps / S_PS
    assert used.total == pytest.approx(pool_blocks * end_s)

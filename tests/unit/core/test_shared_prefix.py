"""What programs share counts once, and never more than they hold."""

from support.core_driver import Driver, fixed

from controlplane.core.estimators.idleness import Decay
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.policies.presets import preset
from controlplane.core.scheduling.demand import demand_blocks

S = seconds(1)


def node(name: str = "") -> Driver:
    d = Driver(preset(name) if name else fixed(0))
    d.pool(total=10_000)
    return d


def test_what_is_lent_is_not_subtracted_again_as_faded() -> None:
    """b waits for its child: nothing of it is counted, so that nothing of it can fade."""
    d = node("thunderagent")
    d.submit("a", blocks=400)
    d.run_turn("b", prompt=300)
    d.start_tool("b")
    d.send(d.tools(ev.ProgramArrived, program_id="child", parent_id="b"))
    d.wait(60)
    assert d.program("b").lends
    assert demand_blocks(d.ledger, Decay(base=2.0, tick_ns=S), d.now_ns) == 400


def test_of_large_blocks_none_is_shared_that_is_not_full_of_the_prefix() -> None:
    """Of llama.cpp's server a slot is one block: its programs begin alike, and none has room in another's."""
    d = node()
    d.pool(total=4, block_tokens=4096)
    for name in ("a", "b", "c"):
        d.submit(name)
        d.send(d.engine(ev.FirstToken, program_id=name, turn_id=f"{name}.1", prompt_tokens=1000, cached_tokens=900))
        d.finish(name, prompt=1000)
    assert demand_blocks(d.ledger, None, d.now_ns) == 3

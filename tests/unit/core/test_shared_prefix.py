"""What programs share counts once, and never more than they hold."""

from support.core_driver import Driver, Publisher, fixed

from controlplane.core import events as ev
from controlplane.core.outlook import demand_blocks, parts
from controlplane.core.presets import preset
from controlplane.core.types import seconds

S = seconds(1)


def node(name: str = "") -> Driver:
    d = Driver(preset(name) if name else fixed(0))
    d.pool(total=10_000)
    return d


def test_an_average_prefix_is_not_taken_from_contexts_that_are_shorter_than_it() -> None:
    """Others shared 200 blocks; these five have 100 each and share nothing that was seen."""
    d = node()
    d.ledger.estimates.shared_tokens.add(200)
    for name in "abcde":
        d.submit(name, blocks=100)
    demand = demand_blocks(d.ledger, 0, d.now_ns)
    assert demand >= 100, "one of them is resident at least"


def test_one_long_shared_prefix_does_not_hide_many_short_contexts() -> None:
    """400 shared by two; five of 100 that share at most 100 need 500 beside them, less what they could share."""
    d = node()
    d.ledger.estimates.shared_tokens.add(400)
    for name in ("x", "y"):
        d.submit(name, blocks=600)
    pair = demand_blocks(d.ledger, 0, d.now_ns)
    assert pair == 800
    for name in "abcde":
        d.submit(name, blocks=100)
    assert demand_blocks(d.ledger, 0, d.now_ns) >= pair, "more programs never need less"


def test_what_fades_is_not_subtracted_again_as_shared() -> None:
    """b has faded to nothing: what is left is a, whole."""
    d = node("thunderagent")
    d.ledger.estimates.shared_tokens.add(300)
    d.submit("a", blocks=400)
    d.submit("b", blocks=400)
    d.finish("b", prompt=400)
    d.ledger.estimates.shared_tokens.value = 300.0
    d.start_tool("b")
    d.wait(60)
    assert demand_blocks(d.ledger, S, d.now_ns) == 400


def test_who_has_not_run_yet_shares_the_prefix_of_the_engine_where_it_will() -> None:
    d = Driver(fixed(0))
    engines = [Publisher("node/engine-1/x"), Publisher("node/engine-2/x")]
    for engine in engines:
        d.send(engine(ev.PoolSampled, total_blocks=1000, free_blocks=1000, block_tokens=1))
    d.ledger.estimates.shared_tokens.add(300)
    for engine, name, blocks in zip(engines, "ab", (500, 400), strict=True):
        d.engine = engine
        d.submit(name, blocks=blocks)
    d.ask("c", tokens=400)
    d.tick()
    assert [each.demand_blocks for each in parts(d.ledger, 0, d.now_ns)] == [500, 500], "c adds 100 to the second"


def test_what_is_lent_is_not_subtracted_again_as_faded() -> None:
    """b waits for its child: nothing of it is counted, so that nothing of it can fade."""
    d = node("thunderagent")
    d.submit("a", blocks=400)
    d.run_turn("b", prompt=300)
    d.start_tool("b")
    d.send(d.tools(ev.ProgramArrived, program_id="child", parent_id="b"))
    d.wait(60)
    assert d.program("b").lends
    assert demand_blocks(d.ledger, S, d.now_ns) == 400

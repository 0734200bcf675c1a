"""Contexts that are fetched from memory below the device before their programs come back."""

from dataclasses import replace

from support.core_driver import Driver, of

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Tier, seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.core.policies.retention.least_waste import LeastWaste
from controlplane.core.policies.retention.lend import Lend

TOOL_S = 20.0
AHEAD_S = 4.0
POOL = 1000


def driver(retention: Lend | LeastWaste | None = None, host_blocks: int = 5000) -> Driver:
    """A node on which the tool took 20 s twelve times."""
    d = Driver(replace(PRESETS["fcfs"], retention=retention or Lend(prefetch_s=AHEAD_S)))
    for turn in range(12):
        sample(d, host_blocks)
        run(d, "a", f"a.{turn}")
        d.tick(TOOL_S)
    sample(d, host_blocks)
    run(d, "a", "a.last")
    return d


def sample(d: Driver, host_blocks: int) -> None:
    d.send(
        d.engine(ev.PoolSampled, total_blocks=POOL, free_blocks=0, block_tokens=1, host_total_blocks=host_blocks)
    )


def run(d: Driver, name: str, turn: str) -> None:
    """A turn whose prompt takes a second to prefill."""
    d.submit(name, turn)
    d.send(d.engine(ev.FirstToken, program_id=name, turn_id=turn, prompt_tokens=300, prefill_ns=seconds(1)))
    d.finish(name, turn, prompt=300, calls=1, tool="bash")
    d.tick()


def goes_below(d: Driver, name: str = "a") -> None:
    d.send(d.engine(ev.ContextMoved, program_id=name, below_tokens=300))
    assert d.program(name).kv_tier is Tier.HOST


def fetched_after(d: Driver, most_s: int = 60) -> tuple[int, list[cmd.Prefetch]]:
    """How long it takes until something is fetched, and what."""
    for waited_s in range(1, most_s):
        found = of(cmd.Prefetch, d.tick(1.0))
        if found:
            return waited_s, found
    return most_s, []


def test_what_the_engine_fetched_is_on_the_device_again() -> None:
    d = driver()
    goes_below(d)
    _, (prefetch,) = fetched_after(d)
    d.send(d.engine(ev.CommandApplied, command_id=prefetch.command_id, program_id="a"))
    assert d.program("a").kv_tier is Tier.HBM


def test_only_into_room_that_the_active_programs_leave() -> None:
    d = driver(LeastWaste(prefetch_s=AHEAD_S))
    goes_below(d)
    d.submit("b", blocks=POOL - 200)
    assert fetched_after(d, int(TOOL_S) - 1)[1] == []
    d.finish("b", prompt=POOL - 400)
    assert fetched_after(d)[1]


def test_a_paused_program_s_turn_is_let_in_before_anything_is_loaded() -> None:
    d = driver()
    goes_below(d)
    d.program("a").gap_since_ns = d.now_ns
    d.controller.replay_command(cmd.Pause(program_id="a", command_id=d.controller.numbering.sent + 1), d.now_ns)
    assert fetched_after(d)[1] == []


def test_what_was_swapped_out_is_swapped_in_before_its_tool_ends() -> None:
    d = driver(LeastWaste(prefetch_s=AHEAD_S))
    demoted_s, demote = 0, []
    while not demote and demoted_s < TOOL_S:
        demoted_s += 1
        demote = of(cmd.Demote, d.tick(1.0))
    assert demote, "that is tried, to learn what it costs"
    d.send(d.engine(ev.CommandApplied, command_id=demote[0].command_id, program_id="a"))
    waited_s, (prefetch,) = fetched_after(d)
    assert TOOL_S - AHEAD_S <= demoted_s + waited_s < TOOL_S
    assert prefetch.program_id == "a"

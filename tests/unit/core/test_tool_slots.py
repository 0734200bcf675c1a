"""Tools that wait for a slot of the host: who may start, when, and what is made of late or lost answers."""

from support.core_driver import Driver, of, recounted, sums

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Pressure
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.core.scheduling.tool_slots import ANY, ToolSlots


def driver(per_cpu: float = 1.0, *, cpus: float = 2.0, use_ratio: float = 1.0) -> Driver:
    d = Driver(rules=ControlRules(tool_slots=ToolSlots(per_cpu=per_cpu)))
    use(d, use_ratio, cpus)
    d.tick()
    return d


def use(d: Driver, ratio: float, cpus: float = 2.0) -> None:
    d.send(d.host(ev.HostSampled, cpus=cpus, cpu_use_ratio=ratio))


def ask(d: Driver, *names: str) -> None:
    for name in names:
        call = {"program_id": name, "call_id": f"{name}.call", "tool": "bash"}
        d.send(d.tools(ev.ToolEnqueued, **call, wants_slot=True))


def started(d: Driver, after_s: float = 0.0) -> list[str]:
    return [command.program_id for command in of(cmd.StartTool, d.tick(after_s))]


def counts(d: Driver) -> tuple[int, int]:
    assert sums(d.ledger) == sums(recounted(d.ledger))
    return d.ledger.tools.active, d.ledger.tools.waiting


def test_without_slots_a_tool_that_asks_starts_at_once() -> None:
    d = driver(0)
    ask(d, "a", "b", "c")
    assert started(d) == ["a", "b", "c"]


def test_idle_cpus_let_more_start_but_each_only_once_an_interval() -> None:
    """Tools that wait for a network fill the slots, and one of the two CPUs is idle."""
    d = driver(use_ratio=0.4)
    d.start_tool("x")
    d.start_tool("y")
    ask(d, "a", "b", "c")
    assert started(d) == ["a"]
    assert started(d, 0.1) == []
    use(d, 0.4)
    assert started(d, 1) == ["b"]
    use(d, 0.95)
    assert started(d, 1) == []


def test_a_tool_that_has_lost_patience_starts_and_counts() -> None:
    d = driver()
    ask(d, "a", "b", "c")
    assert started(d) == ["a", "b"]
    d.start_tool("c")
    assert counts(d) == (3, 0)
    d.start_tool("a")
    d.end_tool("a")
    assert started(d) == [], "two run"


def test_who_asks_again_keeps_its_place_and_who_was_not_told_is_told_again() -> None:
    d = driver()
    ask(d, "a", "b", "c", "d")
    assert started(d) == ["a", "b"]
    ask(d, "d", "c", "b")
    assert counts(d) == (1, 3)
    assert started(d) == ["b"], "its answer was lost"
    d.start_tool("a")
    d.end_tool("a")
    assert started(d) == ["c"]
    d.start_tool("b")
    ask(d, "b")
    assert counts(d) == (2, 1), "a late question changes nothing"


def test_a_call_that_ends_or_whose_publisher_is_gone_waits_no_longer() -> None:
    d = driver(0.5)
    ask(d, "a", "b", "c", "d")
    assert started(d) == ["a"]
    d.end_tool("b", duration_s=0)
    d.end("c")
    assert counts(d) == (1, 1)
    d.send(d.tools(ev.PublisherState, role="tool"))
    assert counts(d) == (0, 0)
    assert started(d) == []


def test_a_publisher_s_state_tells_who_waits() -> None:
    """The daemon has forgotten everything: what is open is told again."""
    d = driver()
    state = [("x", True, False), ("a", False, True), ("b", False, True), ("late", False, False)]
    d.send(
        d.tools(
            ev.PublisherState,
            role="tool",
            open_tools=tuple(
                ev.OpenTool(program_id=name, call_id=f"{name}.call", tool="bash", started=runs, wants_slot=asks)
                for name, runs, asks in state
            ),
        )
    )
    assert started(d) == ["a"]
    assert counts(d) == (2, 2)


def test_a_host_of_unknown_size_has_room() -> None:
    assert ToolSlots(per_cpu=2).free(Pressure(tools_active=100), 0) == ANY
    assert ToolSlots(per_cpu=0.1).slots(4) == 1, "at least one"

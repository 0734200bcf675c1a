"""Which resources are taken back when, by hand: nothing here touches any."""

from controlplane.core.model.types import seconds
from engine_hooks.tools.resources.registry import MOST_ATTEMPTS, Registry


def handles(registry: Registry, at_s: float) -> list[tuple[str, str]]:
    return [(each.handle, each.reason) for each in registry.take_due(seconds(at_s))]


def test_a_program_s_end_takes_back_what_it_holds_the_last_first() -> None:
    registry = Registry()
    registry.register("workspace", "folder", "run")
    registry.register("process", "shell", "run")
    registry.register("process", "other", "another")
    assert handles(registry, 1) == []
    assert registry.next_ns() is None
    registry.end("run", "finished", seconds(1))
    (shell,) = registry.take_due(seconds(1))
    assert (shell.handle, shell.reason) == ("shell", "finished")
    assert handles(registry, 1) == [], "the folder that it works in goes after it"
    assert registry.next_ns() is None
    assert registry.settle(shell, False, seconds(1))
    assert handles(registry, 1) == [("folder", "finished")], "but does not wait for another attempt"
    assert [each.handle for each in registry.held_by("another")] == ["other"]


def test_a_time_to_live_ends_it_and_registering_again_gives_it_another() -> None:
    registry = Registry()
    registry.register("process", "short", "run", seconds(10))
    registry.register("process", "longer", "run", seconds(10))
    registry.register("process", "longer", "run", seconds(30))
    assert registry.next_ns() == seconds(10)
    assert handles(registry, 9.9) == []
    (short,) = registry.take_due(seconds(10))
    assert (short.handle, short.reason) == ("short", "its time is over")
    registry.settle(short, True, seconds(10))
    registry.register("process", "longer", "another")
    assert handles(registry, 100) == [], "kept, by another program"
    registry.end("run", "", seconds(100))
    assert handles(registry, 100) == []


def test_what_is_released_is_left_alone_unless_it_is_being_taken_back() -> None:
    registry = Registry()
    registry.register("process", "one", "run")
    registry.register("process", "two", "run")
    released = registry.release("process", "one")
    assert released is not None
    assert registry.release("process", "one") is None
    registry.end("run", "finished", 0)
    assert registry.release("process", "two") is None
    registry.register("process", "two", "run")
    assert handles(registry, 0) == [("two", "finished")], "too late to keep it"


def test_a_failure_is_tried_again_ever_later_and_not_for_ever() -> None:
    registry = Registry()
    registry.register("container", "stuck", "run")
    registry.end_all("its agent is gone", 0)
    now_ns, waits_ns = 0, []
    for attempt in range(1, MOST_ATTEMPTS + 1):
        (due,) = registry.take_due(now_ns)
        assert due.attempts == attempt
        assert registry.take_due(now_ns + seconds(100)) == [], "it is busy"
        assert registry.settle(due, False, now_ns) == (attempt < MOST_ATTEMPTS)
        if attempt < MOST_ATTEMPTS:
            next_ns = registry.next_ns()
            assert next_ns is not None
            assert registry.take_due(next_ns - 1) == []
            waits_ns.append(next_ns - now_ns)
            now_ns = next_ns
    assert waits_ns == [seconds(wait_s) for wait_s in (0.5, 1, 2, 4, 8, 16, 30)]
    assert len(registry) == 0
    assert registry.next_ns() is None


def test_success_ends_it() -> None:
    registry = Registry()
    registry.register("process", "one", "run")
    registry.end("run", "finished", 0)
    (due,) = registry.take_due(0)
    assert registry.settle(due, True, 0)
    assert len(registry) == 0
    registry.end("run", "finished", 0)
    assert registry.take_due(0) == []

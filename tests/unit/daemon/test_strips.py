"""What the page is told of what programs did before it was opened."""

from support.journalled import Journalled

from controlplane.core.model.types import seconds
from controlplane.daemon.observe.strips import strips


def test_a_strip_has_what_its_program_did_within_the_last_while() -> None:
    node = Journalled()
    node.pin_too_short()
    node.ask("b")
    now_ns = node.driver.now_ns
    first, second = strips(node.journal, ["b"], since_ns=now_ns - seconds(60), now_ns=now_ns, most=2)
    assert (first.program_id, second.program_id) == ("a", "b")
    told = [(kind, round((until - since) / 1e9)) for kind, since, until in first.stretches]
    assert told == [("held", 2), ("reasoning", 3), ("acting", 5), ("pinned", 1), ("reasoning", 3)]
    node.driver.wait(4)
    now_ns = node.driver.now_ns
    (waits,) = strips(node.journal, ["b", "nobody"], since_ns=now_ns - seconds(3), now_ns=now_ns, most=1)
    assert waits.stretches == [("held", now_ns - seconds(3), now_ns)], (
        "it waits still, and longer than is asked for"
    )

"""What a shadow may take of the CPU: what it earned, with a little in advance."""

from controlplane.daemon.shadow.budget import Budget

SECOND = 1_000_000_000


class ClocksDouble:
    """CPU time of a thread and of its process, turned by hand."""

    def __init__(self) -> None:
        self.thread_ns = self.process_ns = 0

    def shadow_works(self, budget: Budget, seconds: float) -> None:
        with budget.spending():
            self.thread_ns += round(seconds * SECOND)
            self.process_ns += round(seconds * SECOND)

    def rest_works(self, seconds: float) -> None:
        self.thread_ns += round(seconds * SECOND)
        self.process_ns += round(seconds * SECOND)


def made(ratio: float = 0.2) -> tuple[Budget, ClocksDouble]:
    clocks = ClocksDouble()
    return Budget(ratio, thread=lambda: clocks.thread_ns, process=lambda: clocks.process_ns), clocks


def test_who_takes_less_than_its_share_is_never_short_and_who_takes_more_is_short_before_it_is_done() -> None:
    budget, clocks = made()
    for _ in range(1000):
        clocks.rest_works(0.085)
        clocks.shadow_works(budget, 0.015)
        assert not budget.is_thin
    assert round(budget.share_ratio, 3) == 0.15
    seen = []
    while not budget.is_spent:
        clocks.rest_works(0.01)
        clocks.shadow_works(budget, 0.01)
        seen.append(budget.is_thin)
    assert seen == sorted(seen)
    assert 0 < sum(seen) < len(seen)


def test_a_shadow_that_works_whenever_it_may_keeps_to_its_share() -> None:
    budget, clocks = made()
    for _ in range(20_000):
        clocks.rest_works(0.01)
        if not budget.is_spent:
            clocks.shadow_works(budget, 0.02)
        else:
            with budget.spending():
                pass
    assert 0.19 < budget.share_ratio < 0.21


def test_it_begins_again_once_that_and_some_more_was_earned() -> None:
    budget, clocks = made(0.2)
    clocks.shadow_works(budget, 2.0)  # with one second in advance
    assert budget.is_spent
    clocks.rest_works(4 * 2.0)
    assert not budget.allows(2 * SECOND)
    clocks.rest_works(4 * 4.1)
    assert budget.allows(2 * SECOND)

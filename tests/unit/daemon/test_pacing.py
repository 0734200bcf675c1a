"""Long work lets others run, ends whole, and what must not fall into it waits; an inbox holds a bounded backlog."""

import anyio
import pytest

from controlplane.core.model.steps import Steps
from controlplane.daemon.bus import connection as bus
from controlplane.daemon.bus.connection import Delivery, Inbox
from controlplane.daemon.pacing import Pacer


class _Work:
    """Each step takes a second of the pacer's clock."""

    def __init__(self) -> None:
        self.now_s, self.done = 0.0, list[str]()
        self.pacer = Pacer(lambda: self.now_s)

    def steps(self, count: int) -> Steps[str]:
        for number in range(count):
            self.now_s += 1
            self.done.append(f"step {number}")
            yield
        return "result"


async def test_others_run_between_steps_and_what_may_not_waits() -> None:
    work = _Work()
    note = work.pacer.between(work.done.append)

    async def beat() -> None:
        note("reconfigured")
        work.done.append("beat")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        assert await work.pacer.drive(work.steps(3)) == "result"
    assert work.done == ["step 0", "beat", "step 1", "step 2", "reconfigured"]


async def test_work_that_is_cancelled_is_done_whole() -> None:
    work = _Work()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await work.pacer.drive(work.steps(3))
    assert (scope.cancelled_caught, work.done) == (True, ["step 0", "step 1", "step 2"])


async def test_of_a_backlog_the_inbox_takes_a_part_at_once_and_lets_no_more_in_than_it_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bus, "_MOST_WAITING", 100)
    monkeypatch.setattr(bus, "_MOST_AT_ONCE_BYTES", 50)
    inbox, let_in = Inbox(), list[int]()

    async def come() -> None:
        for number in range(30):
            await inbox.room()
            inbox.put(Delivery(bytes(20), number, 0, "", False))
            let_in.append(number)

    taken: list[int] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(come)
        await anyio.wait_all_tasks_blocked()
        assert len(let_in) == len(inbox) == 6
        while len(taken) < 30:
            some = await inbox.take(60)
            assert len(some) <= 3
            taken += [delivery.sequence for delivery in some]
    assert taken == list(range(30))

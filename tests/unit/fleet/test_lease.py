"""The lease in virtual time, over a double of the bucket that all contenders write to."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from controlplane.core.model.errors import ConfigError
from controlplane.fleet.buckets import Entry, WriteConflict
from controlplane.fleet.lease import Lease

TTL_S = 12.0


class BucketDouble:
    """A key that all see alike. ``away``: nobody is answered; ``keeps``: what is written is kept all the same."""

    def __init__(self, answers_after_s: float = 0.0) -> None:
        self.entry: Entry | None = None
        self.away = False
        self.keeps = False
        self.answers_after_s = answers_after_s

    async def read(self) -> Entry | None:
        await anyio.sleep(self.answers_after_s)
        if self.away:
            raise TimeoutError
        return self.entry

    async def write(self, holder: bytes, last: int) -> int:
        await anyio.sleep(self.answers_after_s)
        if self.away and not self.keeps:
            raise TimeoutError
        revision = self.entry.revision if self.entry else 0
        if last != revision:
            raise WriteConflict
        self.entry = Entry(holder, revision + 1)
        if self.away:
            raise TimeoutError
        return revision + 1


class Fleet:
    """Contenders for one lease, on one clock."""

    def __init__(self, bucket: BucketDouble | None = None) -> None:
        self.bucket = bucket or BucketDouble()
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s

    def contender(self, name: str, bucket: BucketDouble | None = None) -> Lease:
        return Lease(bucket or self.bucket, name, ttl_s=TTL_S, elapsed_s=self.now, awake_s=self.now)

    def run(self, duration_s: float, *leases: Lease, every_s: float = 1.0) -> None:
        """All step once ``every_s``."""

        async def steps() -> None:
            end_s = self.now_s + duration_s
            while self.now_s < end_s:
                for lease in leases:
                    await lease.step()
                self.now_s += every_s

        anyio.run(steps)

    def do(self, call: Callable[[], Awaitable[Any]]) -> None:
        async def done() -> None:
            await call()

        anyio.run(done)


def test_the_first_one_leads_until_it_was_not_heard_for_a_whole_lease_and_never_two() -> None:
    fleet = Fleet()
    a, b = fleet.contender("a"), fleet.contender("b")
    fleet.run(100, a, b)
    assert (a.leading, b.leading) == (True, False)
    assert a.fence == 1
    assert fleet.bucket.entry is not None and fleet.bucket.entry.revision > 50
    for second in range(40):  # a is frozen, and would look at the clock at any time
        assert not b.leading or second >= TTL_S
        fleet.run(1, b)
        assert not (a.leading and b.leading)
    assert b.leading and b.fence > a.fence
    fleet.run(2, a, b)
    assert (a.leading, b.leading) == (False, True)


def test_who_cannot_renew_steps_down_a_second_before_the_lease_ends() -> None:
    fleet = Fleet()
    a = fleet.contender("a")
    fleet.run(5, a)
    fleet.bucket.away = True
    with capture_logs() as logged:
        fleet.run(TTL_S - 3, a)
        assert a.leading
        fleet.run(2, a)
    assert not a.leading
    assert [(line["event"], line["log_level"]) for line in logged] == [
        ("not renewed", "warning"),
        ("lost", "warning"),
    ]
    assert "TimeoutError" in logged[-1]["why"], "what it is lost by"


@pytest.mark.parametrize(("keeps", "for_s"), [(False, 7), (True, 1)])
def test_a_short_outage_costs_nothing(keeps: bool, for_s: int) -> None:
    """Nor does a write that nobody answered and that was kept all the same."""
    fleet = Fleet()
    a, b = fleet.contender("a"), fleet.contender("b")
    fleet.run(5, a, b)
    changes: list[bool] = []
    a.on_change.append(lambda: changes.append(a.leading))
    fleet.bucket.away, fleet.bucket.keeps = True, keeps
    fleet.run(for_s, a)
    fleet.bucket.away = fleet.bucket.keeps = False
    fleet.run(20, a, b)
    assert (a.leading, b.leading, changes) == (True, False, [])


def test_who_starts_again_under_its_name_has_its_lease_back_at_once() -> None:
    fleet = Fleet()
    a, b = fleet.contender("a"), fleet.contender("b")
    fleet.run(5, a, b)
    a.fenced_out()
    assert not a.leading
    again = fleet.contender("a")
    fleet.run(1, b, again)
    assert again.leading
    assert again.fence > a.fence


def test_who_handed_over_leads_again_if_nobody_else_does() -> None:
    fleet = Fleet()
    a = fleet.contender("a")
    fleet.run(5, a)
    fleet.do(a.hand_over)
    fleet.run(2, a)
    assert not a.leading
    fleet.run(3, a)
    assert a.leading


def test_all_can_read_how_preferred_the_leader_is() -> None:
    fleet = Fleet()
    b = Lease(fleet.bucket, "b", ttl_s=TTL_S, rank=1, elapsed_s=fleet.now, awake_s=fleet.now)
    a = fleet.contender("a")
    fleet.run(3, b, a)
    assert (a.leader_rank, b.leader_rank) == (1, 1)
    fleet.do(b.hand_over)
    assert b.leader_rank is None, "its own would be taken for that of whoever leads now"
    fleet.run(1, b, a)
    assert (a.leader_rank, b.leader_rank) == (0, None)
    fleet.run(1, b, a)
    assert b.leader_rank == 0


def test_a_store_that_nobody_reaches_makes_no_leader() -> None:
    fleet = Fleet()
    fleet.bucket.away = True
    a, b = fleet.contender("a"), fleet.contender("b")
    fleet.run(60, a, b)
    assert not a.leading
    assert not b.leading


def test_of_a_slow_store_the_lease_is_had_all_the_same() -> None:
    """A look is two calls, and each has its time: a store that takes half of it for each made no leader at all."""
    slow = Fleet(BucketDouble(answers_after_s=0.5))
    a = slow.contender("a")
    slow.do(a.step)
    assert a.leading


def test_a_lease_must_outlast_its_renewal() -> None:
    with pytest.raises(ConfigError):
        Lease(BucketDouble(), "a", ttl_s=1.0)

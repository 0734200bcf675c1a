"""Processor sharing: as rational arithmetic has it, step by step."""

from dataclasses import dataclass
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.lab.sim.shared_cpus import SharedCpus

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Job:
    """Comes at a time, takes so long on so many CPUs of its own."""

    at_ns: int
    alone_ns: int
    cpus: float = 1.0


def ends(cpus: float, jobs: list[Job]) -> list[int]:
    """When each job ends."""
    shared, ended = SharedCpus(cpus), [-1] * len(jobs)
    waiting = sorted(range(len(jobs)), key=lambda k: jobs[k].at_ns)
    while waiting or shared.next_end_ns() is not None:
        end_ns = shared.next_end_ns()
        if waiting and (end_ns is None or jobs[waiting[0]].at_ns <= end_ns):
            job = waiting.pop(0)
            shared.add(job, jobs[job].alone_ns, jobs[job].cpus, jobs[job].at_ns)
            continue
        assert end_ns is not None
        done = shared.take_ended(end_ns)
        assert done
        for job in done:
            ended[job] = end_ns
    return ended


def exact_ends(cpus: float, jobs: list[Job]) -> list[Fraction]:
    """The same by brute force in rational numbers: all progress is stepped from change to change."""
    capacity = Fraction(round(cpus * 1000), 1000)
    demands = [Fraction(round(job.cpus * 1000), 1000) for job in jobs]
    left = {k: Fraction(job.alone_ns) for k, job in enumerate(jobs)}
    ended = [Fraction(-1)] * len(jobs)
    now = Fraction(0)
    while left:
        running = [k for k in left if jobs[k].at_ns <= now]
        coming = [Fraction(jobs[k].at_ns) for k in left if jobs[k].at_ns > now]
        rate = min(Fraction(1), capacity / sum(demands[k] for k in running)) if running else Fraction(1)
        upcoming = coming + [now + left[k] / rate for k in running]
        step = min(upcoming) - now
        now += step
        for k in running:
            left[k] -= step * rate
            if left[k] == 0:
                ended[k] = now
                del left[k]
    return ended


def test_a_short_tool_among_long_ones() -> None:
    """Speeds 1, 1/2, 1/3: at 2 s the first has 1.5 s left; three share until the short one has 1 s, at 5 s."""
    jobs = [Job(0, 3 * SECOND), Job(SECOND, 3 * SECOND), Job(2 * SECOND, SECOND)]
    # Left at 5 s: 0.5 and 1.5 s. Two share: the first ends at 6 s; the second, with 1 s left, at 7 s.
    assert exact_ends(1, jobs) == [6 * SECOND, 7 * SECOND, 5 * SECOND]
    assert ends(1, jobs) == [6 * SECOND, 7 * SECOND, 5 * SECOND]


def test_what_the_host_shows() -> None:
    """4 CPUs: 1 of them for 1 s, then 6 wanted for 1 s, then nothing."""
    shared = SharedCpus(4)
    assert shared.read(0) == (0.0, 0.0)
    shared.add("a", SECOND, 1.0, 0)
    assert shared.read(SECOND) == (0.25, 0.0)
    assert shared.take_ended(SECOND) == ["a"]
    for name in "bcdefg":
        shared.add(name, SECOND * 2 // 3, 1.0, SECOND)
    assert shared.take_ended(2 * SECOND) == list("bcdefg")
    assert shared.read(2 * SECOND) == (1.0, 1.0)
    assert shared.read(3 * SECOND) == (0.0, 0.0)
    shared.add("h", SECOND, 8.0, 3 * SECOND + SECOND // 2)
    assert shared.read(4 * SECOND) == (0.5, 0.5)


JOBS = st.lists(
    st.builds(
        Job,
        at_ns=st.integers(0, 3000),
        alone_ns=st.integers(1, 2000),
        cpus=st.sampled_from([1.0, 1.0, 1.0, 1.5, 4.0, 0.333]),
    ),
    min_size=1,
    max_size=14,
)
CPUS = st.sampled_from([0.5, 1.0, 2.0, 3.7, 64.0])


@settings(deadline=None, max_examples=60)
@given(cpus=CPUS, jobs=JOBS)
def test_ends_are_the_exact_ones_rounded_up(cpus: float, jobs: list[Job]) -> None:
    """Within a ns: an end that was rounded up lets the next one's speed rise that much later."""
    for found, exact in zip(ends(cpus, jobs), exact_ends(cpus, jobs), strict=True):
        assert exact <= found < exact + len(jobs) + 1

"""What a finished run is, a line of a file (``ab.results``), and the table of them."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from controlplane.lab.compare.markdown import table

COMPLETED, TIMED_OUT, FAILED = "completed", "timed out", "failed"


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """What became of an agent. ``took_s``: from its arrival on, its start included."""

    name: str
    harness: str
    at_s: float
    took_s: float
    outcome: str
    cpu_s: float  # of itself and of the tools for which it waited


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. Ratios are from 0 to 1."""

    scenario: str
    system: str
    seed: int
    setting: dict[str, Any]  # the scenario
    agents: list[Ended]
    mean_s: float  # who timed out counts with the limit
    p95_s: float
    hit_rate: float  # cached / prompt tokens of all turns
    wall_s: float
    cpu_ratio: float  # of the machine's CPUs in use
    engine_cpu_s: float
    control_cpu_s: float  # of daemon and nats-server
    memory_gb: float  # more in use at the peak than before the agents came
    cpus: int
    cpu: str
    goes_first: bool  # the engine, before agents and tools
    load_before: float  # average over a minute
    revision: str
    began: str

    def count(self, outcome: str) -> int:
        return sum(agent.outcome == outcome for agent in self.agents)


def report(rows: Sequence[Row]) -> str:
    """A table, seed by seed, in Markdown."""
    head = ["seed, system", COMPLETED, TIMED_OUT, FAILED, "mean (s)", "p95 (s)", "hit rate", "CPUs in use"]
    return "\n".join(table(head, map(list, map(_cells, sorted(rows, key=lambda row: row.seed)))))


def _cells(row: Row) -> Iterator[str]:
    yield f"{row.seed}, {row.system}"
    yield from (str(row.count(outcome)) for outcome in (COMPLETED, TIMED_OUT, FAILED))
    yield from (f"{row.mean_s:.1f}", f"{row.p95_s:.1f}", f"{row.hit_rate:.2f}", f"{row.cpu_ratio:.0%}")

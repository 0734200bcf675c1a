"""Made-up runs: plausible shapes for the report to draw, measured on nothing."""

import re
from html.parser import HTMLParser

import numpy as np

from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Pressure
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.series import Series
from controlplane.lab.workload.summary import summarize

S = NANOSECONDS_PER_SECOND
_NAMESPACES = ("2000/svg", "1999/xlink")


def made_up_run(
    preset: str, rate: float, *, slowdown: float, seed: int = 1, failed: int = 0, programs: int = 60
) -> RunResult:
    """A run whose programs take ``slowdown`` times their ideal time on average."""
    random = np.random.default_rng([seed, round(rate * 1000), len(preset)])
    arrivals = np.cumsum(random.exponential(1 / (rate or 1), programs))
    records, turns = [], []
    for index, arrived_s in enumerate(arrivals):
        ideal_s = random.lognormal(4.5, 0.5)
        ended_s = arrived_s + ideal_s * (1 + (slowdown - 1) * random.gamma(2, 0.5))
        name = f"{preset}-{index}"
        records.append(
            ProgramRecord(
                program_id=name,
                arrived_ns=int(arrived_s * S),
                ended_ns=int(ended_s * S),
                turns=4,
                ideal_ns=int(ideal_s * S),
                failed=index < failed,
            )
        )
        for turn in range(4):
            queued_s = arrived_s + (ended_s - arrived_s) * turn / 4
            ttft_s = 0.4 + random.exponential(slowdown - 0.9)
            turns.append(
                TurnRecord(
                    program_id=name,
                    index=turn,
                    queued_ns=int(queued_s * S),
                    first_token_ns=int((queued_s + ttft_s) * S),
                    ended_ns=int((queued_s + ttft_s + 2) * S),
                    prompt_tokens=20_000,
                    output_tokens=300,
                    cached_tokens=int(20_000 * min(0.9, 1.2 / slowdown)),
                    hold_ns=int(ttft_s * S / 2) if preset != "fcfs" else 0,
                )
            )
    end_ns = max(record.ended_ns for record in records)
    return RunResult(
        label=preset,
        preset=preset,
        rate=rate,
        arrival=f"poisson:{rate:g}" if rate else "closed:8",
        seed=seed,
        summary=summarize(records, turns, end_ns),
        programs=tuple(records),
        turns=tuple(turns),
        series=_series(preset, rate, end_ns // S, random),
        facts={"trace": "made up", "python": "3.11", "machine": "2 CPUs, Linux x86_64", "retries": str(seed)},
    )


def _series(preset: str, rate: float, seconds: int, random: np.random.Generator) -> Series:
    series = Series()
    window, demand, tools = 4.0, 0.2, 2.0
    for t in range(seconds):
        storm = seconds * 0.55 < t < seconds * 0.72
        demand = float(np.clip(demand + random.normal(rate * 0.02, 0.04) - (demand - 0.7) * 0.05, 0.05, 1.8))
        tools = float(np.clip(tools + random.normal(0.4 if storm else -0.05, 0.5), 0, 9))
        kv_overloaded, cpu_overloaded = demand > 0.95, tools > 5
        window = max(1.0, window * 0.7 if (kv_overloaded or cpu_overloaded) and t % 5 == 0 else window + 0.15)
        limit = 0 if preset == "fcfs" else int(min(window, 18))
        active = int(rate * 60 * demand) if preset == "fcfs" else min(limit, int(rate * 60))
        queue = 0 if preset == "fcfs" else max(0, int(rate * 60 - limit))
        pressure = Pressure(
            programs_active=active,
            queue_length=queue,
            kv_use_ratio=demand,
            kv_total_blocks=10_000,
            kv_free_blocks=max(0, int(10_000 * (0.8 - demand))),
            kv_evictable_blocks=int(10_000 * 0.2),
            tools_active=min(4, int(tools)),
            tools_waiting=max(0, int(tools) - 4),
            tool_slowdown_ratio=1 + tools / 6,
            kv_overloaded=kv_overloaded,
            cpu_overloaded=cpu_overloaded,
        )
        series.sample(t * S, pressure, window=window, limit=limit)
    return series


def assert_stands_alone(page: str) -> None:
    """Nothing is loaded from elsewhere, and each element closes."""
    tags = _Tags(page)
    assert tags.open == [] and not {"script", "link"} & set(tags.seen)
    assert all(link.startswith("#") for link in tags.links)
    assert set(re.findall(r"url\(([^)]*)", page)) <= set(re.findall(r"url\((#[^)]*)", page))
    assert set(re.findall(r'https?://[^"\s<]+', page)) <= {f"http://www.w3.org/{it}" for it in _NAMESPACES}


class _Tags(HTMLParser):
    """Which elements there are, whether each closes, and what they refer to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

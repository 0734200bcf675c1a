"""Rows as finished runs leave them, made up."""

from collections.abc import Sequence
from typing import Any

from ab.results import Cell, Figures, Row

SCENARIO = "load-a"


def cell(system: str = "stock", *, rate: float = 0.15, seed: int = 1, scenario: str = SCENARIO) -> Cell:
    return Cell(scenario=scenario, rate=rate, seed=seed, system=system)


def row(
    system: str = "stock",
    jct_s: Sequence[float | None] = (10.0, 20.0, 30.0, 40.0),
    *,
    ttft_s: Sequence[Sequence[float]] | None = None,
    makespan_s: float = 100.0,
    scenario: str = SCENARIO,
    rate: float = 0.15,
    seed: int = 1,
    engine_cpu_s: float = 0.0,
    tpot_mean_s: float = 0.0,
    **more: Any,
) -> Row:
    """A run of these completion times; its other figures follow from them, or are nothing."""
    ended = [jct for jct in jct_s if jct is not None]
    turns = [list(times) for times in ttft_s or [[0.1 * index, 0.2] for index in range(1, len(jct_s) + 1)]]
    known = sorted(time for times in turns for time in times)
    figures = Figures(
        jct_mean_s=sum(ended) / len(ended) if ended else 0.0,
        jct_p50_s=sorted(ended)[len(ended) // 2] if ended else 0.0,
        jct_p95_s=max(ended, default=0.0),
        ttft_p50_s=known[len(known) // 2] if known else 0.0,
        ttft_p99_s=max(known, default=0.0),
        hit_rate=0.5,
        turns_per_min=60.0,
        output_tokens_per_s=9.0,
        makespan_s=makespan_s,
        longest_hold_s=0.0,
        programs_failed=len(jct_s) - len(ended),
        turns=len(known),
        prompt_tokens=1000,
        cached_tokens=500,
        output_tokens=100,
        retractions=0,
        retries=0,
        hook_failures=0,
        engine_cpu_s=engine_cpu_s,
        tpot_mean_s=tpot_mean_s,
    )
    fields = {
        "others_ratio": 0.01,
        "toml": "",
        "effective": "",
        "code": "",
        "revision": "abc",
        "versions": {"sglang": "0"},
        "began": "2000-01-01T00:00:00+00:00",
        "wall_s": 120.0,
    } | more
    return Row(
        cell=cell(system, rate=rate, seed=seed, scenario=scenario),
        load="made up",
        programs=len(jct_s),
        figures=figures,
        jct_s=list(jct_s),
        ttft_s=turns,
        errors=[],
        cpus=2,
        load_before=0.1,
        **fields,
    )

"""Made-up rows of a sweep."""

from collections.abc import Iterable
from pathlib import Path

from controlplane.lab.compare.rows import Row
from controlplane.lab.sweep.results import COLUMNS, FIGURES


def made_up_row(
    preset: str, seed: int = 1, jct_s: float = 50.0, arrival: str = "poisson:0.1", **more: object
) -> Row:
    """A run whose other figures follow its mean JCT."""
    figures = dict.fromkeys(FIGURES, 1.0) | {
        "programs_ended": 10,
        "programs_failed": 0,
        "jct_mean_s": jct_s,
        "jct_p95_s": 2 * jct_s,
        "ttft_p95_s": jct_s / 10,
        "cache_hit_ratio": 20 / (20 + jct_s),
        "pool_decode_ratio": 0.4,
        "pool_prefill_ratio": 0.1,
        "pool_recompute_ratio": 0.1,
        "pool_caching_ratio": 0.3,
        "pool_unused_ratio": 0.1,
    }
    rate = arrival.removeprefix("poisson:") if arrival.startswith("poisson") else "0"
    known = {
        "workload": "w",
        "hardware": "h",
        "preset": preset,
        "arrival": arrival,
        "seed": seed,
        "digest": f"engine-{preset}",
        "telemetry": "full",
        "rate": rate,
        "code": "c0de",
        "revision": "1a2b3c",
        "error": "",
    }
    assert set(known) | set(figures) == set(COLUMNS)
    return {name: str(value) for name, value in (figures | known | more).items()}


def rows_of(*runs: tuple[str, float, Iterable[float]], **more: object) -> list[Row]:
    """(preset, rate, mean JCT of seeds 1, 2, ...)"""
    return [
        made_up_row(preset, seed, jct_s, f"poisson:{rate:g}", **more)
        for preset, rate, times in runs
        for seed, jct_s in enumerate(times, start=1)
    ]


def csv_of(folder: Path, rows: Iterable[Row]) -> Path:
    """A sweep's results of these rows."""
    path = folder / "out.csv"
    lines = [",".join(COLUMNS), *(",".join(row[name] for name in COLUMNS) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path

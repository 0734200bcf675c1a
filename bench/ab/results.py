"""One finished run a line, in a file that is committed as the evidence."""

import fcntl
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from ab.machine import SLOW_RATIO, model_name
from controlplane.lab.workload.telemetry import Telemetry

R = TypeVar("R")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Which run: ``scenario`` is the digest of the load, what its programs tell, and the engine."""

    scenario: str
    rate: float
    seed: int
    system: str


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The run in numbers; a hold at the gate counts in JCT and TTFT."""

    jct_mean_s: float
    jct_p50_s: float
    jct_p95_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    hit_rate: float  # cached / prompt tokens, as the engine's usage says
    turns_per_min: float
    output_tokens_per_s: float
    makespan_s: float
    longest_hold_s: float
    programs_failed: int
    turns: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    retractions: int  # -1: not known
    retries: int  # turns sent again after a 429 or 503
    hook_failures: int
    tpot_mean_s: float = 0.0  # between two tokens of an answer; 0: not noted
    engine_cpu_s: float = 0.0  # of all the engine's processes while the programs ran; 0: not noted


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A finished run. Programs are in the order of their arrival, so that two systems' can be paired."""

    cell: Cell
    load: str  # the scenario in words
    programs: int
    figures: Figures
    jct_s: list[float | None]  # None: it failed
    ttft_s: list[list[float]]  # of each program's turns
    errors: list[str]  # of the programs that failed, each kind once
    toml: str  # the daemon's configuration; empty: no plugin
    effective: str  # digest of that with every default
    code: str  # digest of the code that decides
    revision: str  # of the repository; with a + for changes that were not committed
    versions: dict[str, str]
    cpus: int
    load_before: float  # load average over a minute
    others_ratio: float  # of the CPUs, taken by other work during the run
    began: str
    wall_s: float
    cpu: str = ""  # its model; empty: not noted
    transform_ms: tuple[float, float] = (0.0, 0.0)  # ``machine.arithmetic_ms`` before and after; 0: not noted
    telemetry: Telemetry = Telemetry.FULL  # the scenario's; older rows are all of this one
    gpu: str = ""  # its model; empty: the engine ran on the CPU

    @property
    def cpu_model(self) -> str:
        """Older rows have the time of another piece of arithmetic behind it."""
        return re.sub(r", [0-9.]+ ms$", "", self.cpu)

    @property
    def slowest_ms(self) -> float:
        """How long the arithmetic took at worst; 0: not noted."""
        return max(self.transform_ms)

    def ttft_s_of(self, percent: float, *, first: bool) -> float:
        """Over each program's first turn, which is the one that an admission policy holds, or over all others."""
        found = [ttft for turns in self.ttft_s for ttft in (turns[:1] if first else turns[1:])]
        return float(np.percentile(found, percent)) if found else 0.0

    @property
    def engine_cpu_turn_s(self) -> float:
        """CPU time of the engine for each turn that ended well; 0: not noted."""
        return self.figures.engine_cpu_s / self.figures.turns if self.figures.turns else 0.0


def read(path: Path) -> list[Row]:
    """All rows; a later one of the same cell replaces an earlier one. A last line that breaks off is left out."""
    rows: dict[Cell, Row] = {}
    for row in lines_of(path, Row):
        rows.pop(row.cell, None)
        rows[row.cell] = row
    return list(rows.values())


def lines_of(path: Path, kind: type[R]) -> Iterator[R]:
    """A file's lines as ``kind``; none where it is not there. Raises ``SystemExit`` for what is no such line."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line, type=kind)
        except msgspec.DecodeError as error:
            if number < len(lines):
                raise SystemExit(f"{path}:{number}: not a result: {error}") from error


def append(path: Path, row: msgspec.Struct) -> None:
    """Add a line. What is left of one that broke off before goes. Two processes may do so at once."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(path.read_bytes().rfind(b"\n") + 1)
        file.write(msgspec.json.encode(row) + b"\n")


def usual_ms(rows: Sequence[Row]) -> float:
    """What the arithmetic takes on this machine when nobody slows it down: the least that was seen; 0: none was."""
    return min((row.slowest_ms for row in rows if row.slowest_ms and row.cpu.startswith(model_name())), default=0.0)


def of_a_slow_machine(rows: Sequence[Row]) -> set[Cell]:
    """Those whose machine was slower than in the fastest run of the same rate and seed, before or after them."""
    found = set()
    for row in rows:
        same = [one for one in rows if (one.cell.rate, one.cell.seed) == (row.cell.rate, row.cell.seed)]
        least = min((one.slowest_ms for one in same if one.slowest_ms), default=0.0)
        if row.slowest_ms > SLOW_RATIO * least:
            found.add(row.cell)
    return found

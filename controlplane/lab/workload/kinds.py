"""A pool of agents that are not alike: five kinds, of three turns to forty-five and 1 k to 60 k first tokens.

**Paper**: MARS §6.1 mixes SWE-bench, GitTaskBench, Terminal-Bench, RepoBench and coBench into one pool, of which it
samples four regimes with a mean prompt volume of 125 k, 167 k, 220 k and 263 k tokens a request. It gives neither
turns nor tools. The ranges here are ours, drawn evenly; a regime is the same pool with first prompts and growth
stretched so that prompts sum to that mean over a program.
"""

from dataclasses import dataclass

import numpy as np

from controlplane.lab.workload.trace import ProgramTrace
from controlplane.lab.workload.trace_lines import Turn

_Range = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of agents. ``growth``: tokens that a tool's answer adds; ``tool_s``: what it takes."""

    name: str
    share: float
    turns: tuple[int, int]
    first: _Range
    growth: _Range
    outputs: _Range
    tool_s: _Range

    def volume(self) -> tuple[float, float]:
        """The mean sum of prompts: what stretches with sizes, and what comes of replies and does not."""
        counts = np.arange(self.turns[0], self.turns[1] + 1)
        steps = float((counts * (counts - 1) / 2).mean())
        sizes = float(counts.mean()) * float(np.mean(self.first)) + steps * float(np.mean(self.growth))
        return sizes, steps * float(np.mean(self.outputs))


# Name, share, turns, first prompt, growth, outputs, seconds of a tool.
KINDS: tuple[Kind, ...] = (
    Kind("repobench", 0.25, (4, 8), (15_000, 60_000), (500, 3000), (60, 200), (0.1, 1)),
    Kind("swe", 0.3, (20, 45), (3000, 8000), (300, 1200), (60, 250), (0.2, 8)),
    Kind("terminal", 0.2, (8, 25), (2000, 4000), (200, 900), (50, 200), (0.5, 15)),
    Kind("gittask", 0.15, (10, 25), (8000, 40_000), (500, 3000), (80, 300), (1, 30)),
    Kind("cobench", 0.1, (3, 6), (1000, 3000), (300, 1500), (400, 1500), (0.1, 2)),
)
FIVE_KINDS, ILR_LIKE = "five-kinds", "ilr-like"
REGIMES = {"ilr-1": 125_000, "ilr-2": 167_000, "ilr-3": 220_000, "ilr-4": 263_000}
"""Mean sum of a program's prompts, in tokens."""
NAMES = (FIVE_KINDS, *REGIMES, ILR_LIKE)


def draw_kind(rng: np.random.Generator, program_id: str, name: str) -> ProgramTrace:
    """One program of a pool: of the five kinds as they are, of a regime, or of all regimes evenly."""
    regime = str(rng.choice(list(REGIMES))) if name == ILR_LIKE else name
    kind = KINDS[int(rng.choice(len(KINDS), p=[kind.share for kind in KINDS]))]
    scale = _scale(REGIMES[regime]) if regime in REGIMES else 1.0
    prompt, turns = max(1, round(float(rng.uniform(*kind.first)) * scale)), []
    count = int(rng.integers(kind.turns[0], kind.turns[1] + 1))
    for place in range(count):
        output = round(float(rng.uniform(*kind.outputs)))
        last = place == count - 1
        tool_ms = None if last else round(1e3 * float(rng.uniform(*kind.tool_s)), 1)
        turn = Turn(input_tokens=prompt, output_tokens=output, tool="" if last else kind.name, tool_ms=tool_ms)
        turns.append(turn)
        prompt += output + round(float(rng.uniform(*kind.growth)) * scale)
    return ProgramTrace(program_id=program_id, source=kind.name, turns=tuple(turns))


def _scale(volume: float) -> float:
    sizes = sum(kind.share * kind.volume()[0] for kind in KINDS)
    replies = sum(kind.share * kind.volume()[1] for kind in KINDS)
    return (volume - replies) / sizes

"""Coding agents as AA-AgentPerf replays them: many turns, short calls, contexts up to 131,000 tokens.

**Published** (artificialanalysis.ai/methodology/agentperf): a turn has 5,000 to 131,000 tokens of prompt, 27,000
in the mean, and 150 tokens of output in the median, 2,000 at p95; a tool takes a second in the median. The
trajectories are private. The shapes are ours: lognormal, a first prompt of 5,000 to 12,000 tokens, 25 turns in the
median.
"""

import numpy as np

from controlplane.lab.workload.growing_turns import growing_turns
from controlplane.lab.workload.trace import ProgramTrace

PROMPT_TOKENS, LEAST_TOKENS, MOST_TOKENS = 27_000, 5_000, 131_000
"""Of a turn: the mean, and the bounds."""
OUTPUT_TOKENS, TOOL_MS = 150, 1000.0
"""Medians of a turn."""
_FIRST_TOKENS = (float(LEAST_TOKENS), 12_000.0)
_TURNS, _TURNS_SIGMA, _MOST_TURNS = 25, 0.6, 200
_GROWTH_TOKENS, _GROWTH_SIGMA = 230, 1.2  # median of a tool's answer
_OUTPUT_SIGMA = 1.575  # p95 at 2,000
_TOOL_SIGMA = 1.0


def draw_program(rng: np.random.Generator, program_id: str, source: str) -> ProgramTrace:
    """One program of the workload; it ends before its context outgrows the most."""
    count = min(_MOST_TURNS, max(2, round(float(rng.lognormal(np.log(_TURNS), _TURNS_SIGMA)))))
    outputs = np.clip(rng.lognormal(np.log(OUTPUT_TOKENS), _OUTPUT_SIGMA, count), 1, LEAST_TOKENS).astype(int)
    answers = rng.lognormal(np.log(_GROWTH_TOKENS), _GROWTH_SIGMA, count).astype(int)
    tools_ms = rng.lognormal(np.log(TOOL_MS), _TOOL_SIGMA, count)
    turns = growing_turns(int(rng.uniform(*_FIRST_TOKENS)), outputs, answers, tools_ms, MOST_TOKENS)
    return ProgramTrace(program_id=program_id, source=source, turns=turns)

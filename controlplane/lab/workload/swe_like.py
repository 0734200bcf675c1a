"""Software-engineering agents of long contexts: few turns, each of which reads much and says little.

**Paper**: Continuum, Table 1, SWE-Bench: turns 10.9 ± 2.1, tool calls 925 ± 3550 ms, 70,126 ± 19,732 tokens, here
read as the context that a program ends with (``swe-bench`` of ``lab/workload/synthetic.py`` reads them as the sum
over its turns). The shapes are ours: a first prompt of 18% of that context, lognormal growth after it, one
tool call in eight from a heavy tail, and replies of 181 tokens in the median, 900 at most.
"""

import numpy as np

from controlplane.lab.workload.trace import ProgramTrace
from controlplane.lab.workload.trace_lines import Turn

TURNS = (10.9, 2.1)
CONTEXT_TOKENS = (70_126.0, 19_732.0)
_LEAST_TURNS = 4
_LEAST_CONTEXT_TOKENS = 20_000.0
_FIRST_PROMPT_RATIO = 0.18
_GROWTH_SIGMA = 0.9
_LONG_CALLS_RATIO = 0.13
# Mean and deviation of the logarithm.
_LONG_CALL_MS = (8.2, 0.9)
_SHORT_CALL_MS = (5.5, 0.8)
_OUTPUT_TOKENS = (5.2, 0.6)
_MOST_OUTPUT_TOKENS = 900


def draw_program(rng: np.random.Generator, program_id: str, source: str) -> ProgramTrace:
    """One program of the workload."""
    count = max(_LEAST_TURNS, round(float(rng.normal(*TURNS))))
    context = max(_LEAST_CONTEXT_TOKENS, float(rng.normal(*CONTEXT_TOKENS)))
    growth = rng.lognormal(0.0, _GROWTH_SIGMA, count - 1)
    prompts = _FIRST_PROMPT_RATIO * context * np.ones(count)
    prompts[1:] += (1 - _FIRST_PROMPT_RATIO) * context * np.cumsum(growth) / growth.sum()
    outputs = np.minimum(rng.lognormal(*_OUTPUT_TOKENS, count), _MOST_OUTPUT_TOKENS)
    is_long = rng.random(count) < _LONG_CALLS_RATIO
    calls_ms = np.where(is_long, rng.lognormal(*_LONG_CALL_MS, count), rng.lognormal(*_SHORT_CALL_MS, count))
    turns = [
        Turn(
            input_tokens=int(prompts[k]),
            output_tokens=max(1, int(outputs[k])),
            tool="bash" if k < count - 1 else "",
            tool_ms=round(float(calls_ms[k]), 1) if k < count - 1 else None,
        )
        for k in range(count)
    ]
    return ProgramTrace(program_id=program_id, source=source, turns=tuple(turns))

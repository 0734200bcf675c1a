"""Turns whose contexts grow by what they say and what their tools answer, as synthetic workloads draw them."""

import numpy as np
from numpy.typing import NDArray

from controlplane.lab.workload.trace_lines import Turn


def growing_turns(
    prompt: int,
    outputs: NDArray[np.int_],
    answers: NDArray[np.int_],
    tools_ms: NDArray[np.float64],
    most_tokens: int,
) -> tuple[Turn, ...]:
    """As many as stay within ``most_tokens``; the last calls no tool. ``prompt``: the first one's, in tokens.

    The arrays have a value for each turn: tokens of its output and of its tool's answer, and the tool's time.
    """
    growth = outputs + answers
    prompts = prompt + np.concatenate(([0], np.cumsum(growth[:-1])))
    count = int(np.count_nonzero(prompts + outputs <= most_tokens))
    return tuple(
        Turn(
            input_tokens=int(prompts[k]),
            output_tokens=int(outputs[k]),
            tool="bash" if k < count - 1 else "",
            tool_ms=round(float(tools_ms[k]), 1) if k < count - 1 else None,
        )
        for k in range(count)
    )

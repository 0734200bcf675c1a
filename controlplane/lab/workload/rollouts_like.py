"""Rollouts of coding agents for GRPO: groups that begin with one prompt, and lengths with a long tail.

**Paper**: ThunderAgent §5.3 rolls SWE-bench out with OpenHands and mini-SWE-agent and gives no lengths. The shapes
are ours: lognormal turns, of whose logarithm's variance half is the task's, which all of a group share. So a group
has a straggler, and a hard task a group of them.
"""

from collections.abc import Sequence

import numpy as np

from controlplane.lab.workload.families import families
from controlplane.lab.workload.growing_turns import growing_turns
from controlplane.lab.workload.trace import ProgramTrace
from controlplane.lab.workload.trace_lines import Turn

_NAME = "rollouts-like"
SIZES = {f"{_NAME}-{size}": size for size in (4, 8, 16)}
"""Members of a group, by the workload's name."""
_PROMPT_TOKENS = (3000.0, 9000.0)  # system prompt, tools and the task
_TURNS, _TASK_SIGMA, _OWN_SIGMA, _MOST_TURNS = 18, 0.5, 0.5, 120
_OUTPUT_TOKENS, _OUTPUT_SIGMA = 180, 1.0
_ANSWER_TOKENS, _ANSWER_SIGMA = 250, 1.2  # a tool's
_TOOL_MS, _TOOL_SIGMA = 1200.0, 1.3
_MOST_TOKENS = 120_000


def draw_group(rng: np.random.Generator, name: str, number: int) -> list[ProgramTrace]:
    """The rollouts of one prompt."""
    size, group = SIZES[name], f"{name}-{number:04d}"
    prompt = int(rng.uniform(*_PROMPT_TOKENS))
    task = float(rng.normal(0, _TASK_SIGMA))
    return [
        ProgramTrace(
            program_id=f"{group}-{member:02d}",
            source=_NAME,
            turns=_turns(rng, prompt, task),
            agent=group,
            shared_tokens=prompt,
            group=(group, size),
        )
        for member in range(size)
    ]


def sampled(programs: Sequence[ProgramTrace], seed: int) -> list[ProgramTrace]:
    """In the order in which a trainer's sampler draws their prompts: groups and families stay together."""
    found: dict[str, list[ProgramTrace]] = {}
    for family in families(programs):
        found.setdefault(family[0].group[0] or family[0].program_id, []).extend(family)
    groups = list(found.values())
    return [program for place in np.random.default_rng(seed).permutation(len(groups)) for program in groups[place]]


def _turns(rng: np.random.Generator, prompt: int, task: float) -> tuple[Turn, ...]:
    count = int(np.clip(round(_TURNS * np.exp(task + rng.normal(0, _OWN_SIGMA))), 2, _MOST_TURNS))
    outputs = np.clip(rng.lognormal(np.log(_OUTPUT_TOKENS), _OUTPUT_SIGMA, count), 8, 8000).astype(int)
    answers = rng.lognormal(np.log(_ANSWER_TOKENS), _ANSWER_SIGMA, count).astype(int)
    tools_ms = rng.lognormal(np.log(_TOOL_MS), _TOOL_SIGMA, count)
    return growing_turns(prompt, outputs, answers, tools_ms, _MOST_TOKENS)

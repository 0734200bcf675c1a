"""Coding agents of long contexts, of which some send sub-agents and wait for all of them.

**Published**: sessions of AgentX have 43 turns in the median, a turn 142,000 tokens of prompt and 444 of output,
and 44% of the sessions have sub-agents. The shapes are ours: first prompts and growth like those of published
sessions of Claude Code, stretched to that prompt; MORI's tool times (87% of the calls below 2 s, the others hold
most of the time); one to three calls a session that each send one to four sub-agents at once. These have an
instruction and tools in common, a dozen turns and a context of their own.
"""

from dataclasses import dataclass

import numpy as np

from controlplane.lab.workload.trace import ProgramTrace
from controlplane.lab.workload.trace_lines import Turn

AGENTX_LIKE = "agentx-like"
TURNS, PROMPT_TOKENS, OUTPUT_TOKENS = 43, 142_000, 444
"""Medians of sessions, and of turns."""
WITH_CHILDREN = 0.44
"""The share of sessions that have sub-agents."""
TASK = "Task"
_TURNS_SIGMA = 0.6
_FIRST_TOKENS, _FIRST_SIGMA = 30_000, 0.6
_GROWTH_TOKENS, _GROWTH_SIGMA = 2100, 1.0  # median of a turn
_OUTPUT_SIGMA = 0.7
_SHORT_TOOL_MS, _LONG_TOOL_MS = (6.0, 0.9), (9.0, 0.9)  # mean and deviation of the logarithm
_LONG_TOOLS = 0.13
_CALLS = (1, 3)  # of a session with sub-agents: turns that send some
_SIBLINGS = (1, 4)
_FAMILY_TOKENS = 10_000  # instruction and tools of a sub-agent
_BRIEF_TOKENS = (500, 4000)
_CHILD_TURNS, _CHILD_GROWTH_TOKENS = 12, 1500
_MOST_TURNS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Medians of one kind of programs."""

    turns: int
    first_tokens: float
    growth_tokens: float


def draw_family(rng: np.random.Generator, program_id: str, source: str) -> list[ProgramTrace]:
    """A session, and its sub-agents behind it."""
    first = float(rng.lognormal(np.log(_FIRST_TOKENS), _FIRST_SIGMA))
    shape = _Shape(turns=TURNS, first_tokens=first, growth_tokens=_GROWTH_TOKENS)
    turns = _turns(rng, shape)
    children: list[ProgramTrace] = []
    if len(turns) > 1 and rng.random() < WITH_CHILDREN:
        calls = min(int(rng.integers(_CALLS[0], _CALLS[1] + 1)), len(turns) - 1)
        for spawn_turn in sorted(int(at) for at in rng.choice(len(turns) - 1, size=calls, replace=False)):
            before = turns[spawn_turn]
            turns[spawn_turn] = Turn(
                input_tokens=before.input_tokens, output_tokens=before.output_tokens, tool=TASK, tool_ms=0.0
            )
            siblings = int(rng.integers(_SIBLINGS[0], _SIBLINGS[1] + 1))
            children += [_child(rng, program_id, f"{source}/sub-agent", spawn_turn, n) for n in range(siblings)]
    return [ProgramTrace(program_id=program_id, source=source, turns=tuple(turns)), *children]


def _child(rng: np.random.Generator, parent: str, source: str, spawn_turn: int, number: int) -> ProgramTrace:
    brief = _FAMILY_TOKENS + float(rng.uniform(*_BRIEF_TOKENS))
    shape = _Shape(turns=_CHILD_TURNS, first_tokens=brief, growth_tokens=_CHILD_GROWTH_TOKENS)
    return ProgramTrace(
        program_id=f"{parent}/{spawn_turn}.{number}",
        source=source,
        turns=tuple(_turns(rng, shape)),
        parent_id=parent,
        spawn_turn=spawn_turn,
        family_tokens=_FAMILY_TOKENS,
    )


def _turns(rng: np.random.Generator, shape: _Shape) -> list[Turn]:
    count = min(_MOST_TURNS, max(2, round(float(rng.lognormal(np.log(shape.turns), _TURNS_SIGMA)))))
    growth = rng.lognormal(np.log(shape.growth_tokens), _GROWTH_SIGMA, count)
    outputs = np.maximum(1, rng.lognormal(np.log(OUTPUT_TOKENS), _OUTPUT_SIGMA, count).astype(int))
    is_long = rng.random(count) < _LONG_TOOLS
    tools_ms = np.where(is_long, rng.lognormal(*_LONG_TOOL_MS, count), rng.lognormal(*_SHORT_TOOL_MS, count))
    turns, prompt = [], max(1, round(shape.first_tokens))
    for place in range(count):
        output, last = int(outputs[place]), place == count - 1
        tool_ms = None if last else round(float(tools_ms[place]), 1)
        turns.append(Turn(input_tokens=prompt, output_tokens=output, tool="" if last else "bash", tool_ms=tool_ms))
        prompt += output + round(float(growth[place]))
    return turns

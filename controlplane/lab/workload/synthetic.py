"""Workloads drawn to published statistics, for when no trace is at hand.

**Paper**: Continuum's SWE-Bench and BFCL v4, and AgentServeSim's SWE-Bench Verified, by the mean and standard
deviation of turns, tool times and tokens per program (the sum over turns of prompt and output). What the papers
do not give is ours: lognormal tool times and token sums, normal turn counts, a first prompt of a quarter of the
mean context, and growth of which two fifths are output.
"""

from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np

from controlplane.core.model.errors import ConfigError, require
from controlplane.lab.workload import agentperf_like, rollouts_like, swe_like
from controlplane.lab.workload.kinds import NAMES as KINDS_NAMES
from controlplane.lab.workload.kinds import draw_kind
from controlplane.lab.workload.trace import ProgramTrace, Trace
from controlplane.lab.workload.trace_lines import Turn
from controlplane.lab.workload.trees import AGENTX_LIKE, draw_family

# Name, share of calls, length against the mean. Shares sum to 1 and so do share * length.
_TOOLS: tuple[tuple[str, float, float], ...] = (
    ("bash", 0.5, 1.2),
    ("edit", 0.25, 0.4),
    ("search", 0.2, 0.7),
    ("test", 0.05, 3.2),
)
_TURNS_TOKENS_CORRELATION = 0.8
_FIRST_PROMPT_RATIO = 0.25
_OUTPUT_RATIO = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Mean and standard deviation of a workload's programs."""

    source: str
    turns: tuple[float, float]
    tool_ms: tuple[float, float]
    tokens: tuple[float, float]


WORKLOADS: dict[str, Statistics] = {
    "swe-bench": Statistics(
        source="Continuum, SWE-Bench",
        turns=(10.9, 2.1),
        tool_ms=(925.0, 3550.0),
        tokens=(70_126.0, 19_732.0),
    ),
    "swe-bench-verified": Statistics(
        source="AgentServeSim, SWE-Bench Verified",
        turns=(41.9, 14.9),
        tool_ms=(1161.0, 4125.0),
        tokens=(356_031.0, 184_632.0),
    ),
    "bfcl-v4": Statistics(
        source="Continuum, BFCL v4",
        turns=(6.3, 2.3),
        tool_ms=(1923.0, 2133.0),
        tokens=(93_256.0, 68_687.0),
    ),
}
"""Built-in workloads by name, those drawn to sums of tokens."""

_DRAWN = {"swe-like": swe_like.draw_program, "agentperf-like": agentperf_like.draw_program}


def synthesize(name: str, *, programs: int, seed: int = 0) -> Trace:
    """Draw ``programs`` of a built-in workload, with sub-agents where it has any. The same seed gives the same.

    Raises ``ConfigError`` for an unknown name.
    """
    statistics = WORKLOADS.get(name)
    others = (*_DRAWN, *rollouts_like.SIZES, AGENTX_LIKE, *KINDS_NAMES)
    if statistics is None and name not in others:
        built_in = ", ".join((*WORKLOADS, *others))
        raise ConfigError(f"workload: there is no {name!r}; built in: {built_in}", field="workload")
    require("programs", programs, low=1, high=10_000_000)
    rng = np.random.default_rng(seed)
    names = [f"{name}-{i:05d}" for i in range(programs)]
    if name in KINDS_NAMES:
        drawn = tuple(draw_kind(rng, program_id, name) for program_id in names)
    elif (size := rollouts_like.SIZES.get(name)) is not None:
        groups = (rollouts_like.draw_group(rng, name, number) for number in range(-(-programs // size)))
        drawn = tuple(program for group in groups for program in group)
    elif name == AGENTX_LIKE:
        drawn = tuple(program for program_id in names for program in draw_family(rng, program_id, name))
    elif statistics is None:
        drawn = tuple(_DRAWN[name](rng, program_id, name) for program_id in names)
    else:
        drawn = tuple(_program(rng, program_id, name, statistics) for program_id in names)
    return Trace(programs=drawn, rejected=[], name=name)


def _program(rng: np.random.Generator, program_id: str, source: str, statistics: Statistics) -> ProgramTrace:
    z_turns, z_own = rng.standard_normal(2)
    mean, deviation = statistics.turns
    turns = max(1, round(mean + deviation * float(z_turns)))
    rho = _TURNS_TOKENS_CORRELATION
    mu, sigma = _lognormal(*statistics.tokens)
    tokens = exp(mu + sigma * (rho * float(z_turns) + sqrt(1 - rho * rho) * float(z_own)))
    sizes = _sizes(rng, turns, tokens)
    tools = rng.choice(len(_TOOLS), size=turns, p=[share for _, share, _ in _TOOLS])
    tool_mu, tool_sigma = _tool_lognormal(*statistics.tool_ms)
    times = np.exp(rng.normal(tool_mu, tool_sigma, turns))
    return ProgramTrace(
        program_id=program_id,
        source=source,
        turns=tuple(
            Turn(input_tokens=prompt, output_tokens=output)
            if k == turns - 1
            else Turn(
                input_tokens=prompt,
                output_tokens=output,
                tool=_TOOLS[tools[k]][0],
                tool_ms=round(float(times[k]) * _TOOLS[tools[k]][2], 3),
            )
            for k, (prompt, output) in enumerate(sizes)
        ),
    )


def _sizes(rng: np.random.Generator, turns: int, tokens: float) -> list[tuple[int, int]]:
    """Prompt and output of each turn: prompts grow, and all of it sums to ``tokens``."""
    first = _FIRST_PROMPT_RATIO * tokens / turns
    growth = rng.gamma(2.0, 1.0, turns)
    prompts_of_growth = sum(float(growth[k]) * (turns - 1 - k) for k in range(turns))
    unit = (tokens - turns * first) / (prompts_of_growth + _OUTPUT_RATIO * float(growth.sum()))
    sizes: list[tuple[int, int]] = []
    prompt = max(1, round(first))
    for share in growth:
        output = max(1, round(_OUTPUT_RATIO * unit * float(share)))
        sizes.append((prompt, output))
        prompt += max(output, round(unit * float(share)))
    return sizes


def _lognormal(mean: float, deviation: float) -> tuple[float, float]:
    """Parameters of the lognormal distribution of this mean and standard deviation."""
    variance = log(1 + (deviation / mean) ** 2)
    return log(mean) - variance / 2, sqrt(variance)


def _tool_lognormal(mean: float, deviation: float) -> tuple[float, float]:
    """The same for the mixture over tools, each of them the distribution times the tool's length."""
    square = sum(share * length * length for _, share, length in _TOOLS)
    variance = max(0.0, log((mean * mean + deviation * deviation) / (mean * mean * square)))
    return log(mean) - variance / 2, sqrt(variance)

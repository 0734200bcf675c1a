"""Make a trace fit a smaller machine, by factors that are printed with the result."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from controlplane.core.model.errors import require
from controlplane.lab.workload.trace import ProgramTrace, Trace
from controlplane.lab.workload.trace_lines import Turn

_MOST = 1e6  # no trace needs more, and numbers stay whole ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Factors on prompt tokens, output tokens and tool gaps; counts stay at least 1.

    ``turns`` repeats each program's turns so many times, with lengths as much shorter, so that its last context
    stays as it is while its calls and its tools multiply (Continuum §6.3, Figure 13).
    """

    tokens: float = 1.0
    outputs: float = 1.0
    tools: float = 1.0
    turns: int = field(default=1, repr=False)  # digests of before it are of the representation

    def __post_init__(self) -> None:
        require("scale_tokens", self.tokens, low=0, high=_MOST, ends="(]")
        require("scale_outputs", self.outputs, low=0, high=_MOST, ends="(]")
        require("scale_tools", self.tools, low=0, high=_MOST)
        require("scale_turns", self.turns, low=1, high=1000)

    def __str__(self) -> str:
        text = f"tokens x{self.tokens:g}, outputs x{self.outputs:g}, tools x{self.tools:g}"
        return text if self.turns == 1 else f"{text}, turns x{self.turns}"

    def apply(self, trace: Trace) -> Trace:
        """The trace, scaled. A prompt keeps growing where it grew: by at least the reply before it."""
        if self == Scale():
            return trace
        return replace(trace, programs=tuple(self.apply_program(program) for program in trace.programs))

    def apply_program(self, program: ProgramTrace) -> ProgramTrace:
        """One program, scaled, with what its group's prompts have in common."""
        shared = program.shared_tokens
        return replace(
            program,
            turns=tuple(self._turns(_repeated(program.turns, self.turns))),
            shared_tokens=None if shared is None else round(shared * self.tokens),
        )

    def _turns(self, turns: Sequence[Turn]) -> list[Turn]:
        scaled: list[Turn] = []
        for index, turn in enumerate(turns):
            input_tokens = max(1, round(turn.input_tokens * self.tokens))
            if index:
                before, after = turns[index - 1], scaled[-1]
                # Different factors for prompts and outputs must not turn growth into a compaction.
                if turn.input_tokens >= before.input_tokens + before.output_tokens:
                    input_tokens = max(input_tokens, after.input_tokens + after.output_tokens)
                elif turn.input_tokens >= before.input_tokens:
                    input_tokens = max(input_tokens, after.input_tokens)
            scaled.append(
                replace(
                    turn,
                    input_tokens=input_tokens,
                    output_tokens=max(1, round(turn.output_tokens * self.outputs)),
                    tool_ms=None if turn.tool_ms is None else turn.tool_ms * self.tools,
                    cached_prefix_tokens=(
                        None
                        if turn.cached_prefix_tokens is None
                        else round(turn.cached_prefix_tokens * self.tokens)
                    ),
                )
            )
        return scaled


def _repeated(turns: Sequence[Turn], times: int) -> Sequence[Turn]:
    """The turns so many times over; each time goes on from the context that the last one left."""
    if times == 1:
        return turns
    left = turns[-1].input_tokens + turns[-1].output_tokens
    return [
        replace(
            turn,
            input_tokens=max(1, round((turn.input_tokens + time * left) / times)),
            output_tokens=max(1, round(turn.output_tokens / times)),
            cached_prefix_tokens=None,  # what was cached in the original is no figure of this one
        )
        for time in range(times)
        for turn in turns
    ]

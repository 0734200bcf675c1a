"""Tool times fitted to a trace: what the simulator draws from in place of the times of the trace.

Which distribution a tool gets depends on how many of its calls have a time:

- 20 or more: the calls themselves, smoothed. Tool times have several modes (a cached run, a full one) and heavy
  tails, which no family with two parameters has.
- 5 to 19: a log-normal distribution. An empirical one of so few calls is all gaps and has no tail; two parameters
  can be had from them, and times that span decades are nearest to normal in their logarithm.
- fewer, or a tool that is not there: the pool, the calls of all tools. Its spread tells how little is known.

**Paper**: AgentServeSim §3.2, generative mode: one distribution for each tool name. How it is fitted is left open;
the above is ours (docs/adr/0007).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.durations import Calls, Empirical, LogNormal, empirical, log_normal, uniform
from controlplane.lab.workload.trace import ProgramTrace
from controlplane.wire.files import read_bytes

_MOST_BYTES = 1 << 28

FORMAT = 1
FEWEST_EMPIRICAL = 20
FEWEST_LOG_NORMAL = 5


class Pooled(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="fit", tag="pool"):
    """Too few calls for a distribution of the tool's own."""

    calls: Calls


Fit = Empirical | LogNormal | Pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFits:
    """Each tool's fit by name, and the pool of all. ``trace`` is what they were fitted to."""

    trace: str
    pool: Empirical
    tools: Mapping[str, Fit]

    def __str__(self) -> str:
        return f"drawn, fitted to {self.pool.calls} calls of {self.trace}"

    def of(self, tool: str) -> Empirical | LogNormal:
        """What the tool's times are drawn from."""
        fit = self.tools.get(tool)
        return self.pool if fit is None or isinstance(fit, Pooled) else fit

    def unknown(self, programs: Iterable[ProgramTrace]) -> list[str]:
        """Tools that the programs call and that are not here, by name."""
        called = {turn.tool for program in programs for turn in program.turns if turn.calls_tool}
        return sorted(called - self.tools.keys())

    def redraw(self, program: ProgramTrace, seed: int, factor: float = 1.0) -> ProgramTrace:
        """The program with other tool times, each ``factor`` times a draw; a person's think time stays."""
        turns = tuple(
            replace(turn, tool_ms=self.of(turn.tool).quantile_ms(uniform(seed, program.program_id, index)) * factor)
            if turn.calls_tool
            else turn
            for index, turn in enumerate(program.turns)
        )
        return replace(program, turns=turns)

    def save(self, path: Path) -> None:
        """Write the fits as JSON. Raises ``ConfigError``."""
        body = {"format": FORMAT, "trace": self.trace, "pool": self.pool, "tools": self.tools}
        try:
            path.write_bytes(msgspec.json.encode(body))
        except OSError as error:
            raise ConfigError(f"{path}: cannot write the tool times: {error.strerror}") from error


def fit_tools(programs: Iterable[ProgramTrace], trace: str) -> ToolFits:
    """Fit every tool that the programs call. Raises ``ConfigError`` where they call none."""
    calls: dict[str, list[float]] = defaultdict(list)
    for program in programs:
        for turn in program.turns:
            if turn.calls_tool and turn.tool_ms is not None:
                calls[turn.tool].append(turn.tool_ms)
    if not calls:
        raise ConfigError(f"{trace}: no tool call with a time, so there is nothing to fit", field="trace")
    by_number = sorted(calls.items(), key=lambda item: (-len(item[1]), item[0]))
    return ToolFits(
        trace=trace,
        pool=empirical([value for _, times in by_number for value in times]),
        tools={name: _fit(times) for name, times in by_number},
    )


def _fit(durations_ms: list[float]) -> Fit:
    if len(durations_ms) >= FEWEST_EMPIRICAL:
        return empirical(durations_ms)
    return log_normal(durations_ms) if len(durations_ms) >= FEWEST_LOG_NORMAL else Pooled(calls=len(durations_ms))


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    trace: str
    pool: msgspec.Raw
    tools: dict[str, msgspec.Raw]  # one by one, so that what is wrong is told with the tool's name


def load_fits(path: Path) -> ToolFits:
    """Read what ``save`` wrote. Raises ``ConfigError`` with the path of the file and of the field."""
    try:
        body = msgspec.json.decode(read_bytes(path, _MOST_BYTES), type=_File)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the tool times: {error.strerror}", field="tools") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: no tool times: {error}", field="tools") from error
    if body.format != FORMAT:
        raise ConfigError(f"{path}: $.format: expected {FORMAT}, got {body.format}", field="tools")
    pool = _decoded(path, "$.pool", body.pool)
    if not isinstance(pool, Empirical):
        raise ConfigError(f'{path}: $.pool.fit: expected "empirical"', field="tools")
    tools = {name: _decoded(path, f"$.tools.{name}", raw) for name, raw in body.tools.items()}
    return ToolFits(trace=body.trace, pool=pool, tools=tools)


def _decoded(path: Path, where: str, raw: msgspec.Raw) -> Fit:
    try:
        fit: Fit = msgspec.json.decode(raw, type=Fit)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        reason, _, at = str(error).partition(" - at `$")
        raise ConfigError(f"{path}: {where}{at.rstrip('`')}: {reason}", field="tools") from error
    return fit

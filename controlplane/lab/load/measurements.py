"""What a replay has measured so far, and the result that it comes to."""

import os
import platform
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from controlplane.core.model.types import Pressure, seconds
from controlplane.lab.load.client import TurnOutcome
from controlplane.lab.load.options import Observation, ReplayOptions
from controlplane.lab.workload.arrivals import Closed
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.run import RunResult, python_version
from controlplane.lab.workload.series import Series
from controlplane.lab.workload.summary import summarize
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import Turn

SAMPLE_EVERY_NS = seconds(1)
CUT = "still running when the replay was stopped"


class Measurements:
    """Records of turns and programs, and the series sampled on the way."""

    def __init__(self, options: ReplayOptions) -> None:
        self.turns_ended = 0
        self.programs_failed = 0
        self.latest_start_ns = 0  # how far behind its schedule an arrival began, at worst
        self.programs: list[ProgramRecord] = []
        self._options = options
        self._turns: list[TurnRecord] = []
        self._finishes: Counter[str] = Counter()
        self._series = Series()
        self._sampled_ns = -SAMPLE_EVERY_NS

    def turn(self, program_id: str, index: int, outcome: TurnOutcome, asked: Turn) -> None:
        """Take a turn that ended, well or not."""
        if not outcome.error:
            self.turns_ended += 1
            self._finishes[outcome.finish] += 1
        admitted_ns = min(outcome.queued_ns + outcome.hold_ns, outcome.ended_ns)
        self._turns.append(
            TurnRecord(
                program_id=program_id,
                index=index,
                queued_ns=outcome.queued_ns,
                admitted_ns=admitted_ns,
                first_token_ns=outcome.first_token_ns,
                ended_ns=outcome.ended_ns,
                prompt_tokens=asked.input_tokens if outcome.prompt_tokens is None else outcome.prompt_tokens,
                output_tokens=asked.output_tokens if outcome.output_tokens is None else outcome.output_tokens,
                cached_tokens=outcome.cached_tokens or 0,
                counted=outcome.prompt_tokens is not None and outcome.output_tokens is not None,
                cache_counted=outcome.cached_tokens is not None,
                hold_ns=outcome.hold_ns,
                error=outcome.error,
                refusals=outcome.refusals,
            )
        )

    def started(self, late_ns: int) -> None:
        """An arrival began ``late_ns`` after its time."""
        self.latest_start_ns = max(self.latest_start_ns, late_ns)

    def program(self, record: ProgramRecord) -> None:
        """Take a program that ended, well or not."""
        self.programs.append(record)
        self.programs_failed += record.failed

    @property
    def roots_ended(self) -> int:
        """Programs that ended and were nobody's sub-agents."""
        return sum(not program.parent_id for program in self.programs)

    def sample(self, now_ns: int, observation: Observation) -> None:
        """Take a row of the series if its time has come."""
        if now_ns - self._sampled_ns < SAMPLE_EVERY_NS:
            return
        self._sampled_ns = now_ns
        pressure: Pressure = observation.pressure
        self._series.sample(now_ns, pressure, window=observation.window, limit=observation.limit)

    def result(self, *, cut: bool, tool_wait_mean_s: float | None, facts: Mapping[str, str]) -> RunResult:
        """All of it. ``cut``: stopped before every program had ended."""
        options = self._options
        begin_ns = min((program.arrived_ns for program in self.programs), default=0)
        end_ns = max((program.ended_ns for program in self.programs), default=0)
        return RunResult(
            label=options.label,
            preset=options.preset,
            rate=0.0 if isinstance(options.arrival, Closed) else options.arrival.rate,
            arrival=str(options.arrival),
            seed=options.seed,
            scale=options.workload.scale,
            summary=replace(
                summarize(self.programs, self._turns, end_ns - begin_ns), tool_wait_mean_s=tool_wait_mean_s
            ),
            programs=tuple(self.programs),
            turns=tuple(self._turns),
            series=self._series,
            facts={**self._facts(), **facts, **options.facts},
            cut=cut,
        )

    def _facts(self) -> dict[str, str]:
        options, trace = self._options, self._options.trace
        return {
            "trace": f"{trace.name}: {len(trace.programs)} programs, {trace.turns} turns"
            + (f", {len(trace.rejected)} rejected" if trace.rejected else ""),
            "scale": str(options.workload.scale),
            "time scale": f"{options.time_scale:g}x",
            "endpoint": options.shown_url,
            "replies ended by": ", ".join(f"{finish} {n}" for finish, n in self._finishes.most_common()) or "none",
            "replies without usage": str(sum(not turn.counted for turn in self._turns if not turn.error)),
            "tokens per word": str(options.tokens_per_word),
            "shared prefix": f"{options.workload.shared_prefix} tokens",
            "telemetry": str(Telemetry.NONE if options.nats is None else options.workload.telemetry),
            "tools": f"slots {options.tools.slots or 'unlimited'}, {options.tools.cpu_ratio:.0%} on the CPU",
            "python": python_version(),
            "machine": f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}",
        }

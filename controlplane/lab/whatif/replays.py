"""Runs a recorded stretch again in the simulator: as it was decided, and as it is asked."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from controlplane.config import Config, overridden
from controlplane.core.model.errors import ConfigError, require
from controlplane.core.model.events import HostSampled
from controlplane.core.model.types import FEWEST_TO_JUDGE
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.presets import Preset
from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.retention.never import Never
from controlplane.lab.calibrate.observed import StepCosts, fit_served
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.sim.hardware import CHUNK_TOKENS, MAX_RUNNING, Profile
from controlplane.lab.sim.profile import FittedProfile, fitted
from controlplane.lab.simulate import simulate
from controlplane.lab.whatif.answer import Answer
from controlplane.lab.whatif.figures import NAMES, RunFigures, change, changes, expected, mean_figures
from controlplane.lab.whatif.notes import notes
from controlplane.lab.whatif.observed import Observed, observe
from controlplane.lab.whatif.question import Question, amount
from controlplane.lab.whatif.recorded import Recorded, read_recorded
from controlplane.lab.whatif.worlds import World, shifted, with_agents
from controlplane.lab.workload.arrivals import Arrival
from controlplane.lab.workload.arrivals import Recorded as RecordedArrivals
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.summary import summarize
from controlplane.lab.workload.trace import ProgramTrace, Trace

REPEAT = 3
_FAR_S = 1e9  # longer than any log
_HIDDEN_GB_PER_S = 1e3  # of loads from below the device that nobody waited for
_TOKEN_BYTES = 1  # a log tells of tokens only, so that a token counts as a byte
_SOURCE = "told by its engine's events"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceWindow:
    """Which part of which log, and what no log tells: how the engine was started."""

    log: Path
    since_s: float | None = None
    until_s: float | None = None
    repeat: int = REPEAT
    chunk_tokens: int = CHUNK_TOKENS
    max_running: int = MAX_RUNNING

    def __post_init__(self) -> None:
        for name, asked_s in (("since", self.since_s), ("until", self.until_s)):
            if asked_s is not None:
                require(name, asked_s, low=-_FAR_S, high=_FAR_S)


class Replays:
    """One stretch, read and calibrated once, of which several questions may be asked.

    Raises ``ConfigError`` where the log does not hold enough.
    """

    def __init__(self, asked: TraceWindow) -> None:
        self.asked = asked
        self.recorded: Recorded = read_recorded(asked.log)
        self.observed: Observed = observe(self.recorded, asked.since_s, asked.until_s)
        self.config_text = self._config_text()
        self.config: Config = overridden(self.config_text)
        self.costs: StepCosts = fit_served(self.observed.served, asked.chunk_tokens)
        if not self.recorded.engines:
            raise ConfigError("no engine told of its memory in this log: is an engine's plugin attached?")
        self.pool_tokens = self._mean_tokens("pool_tokens")
        if not self.observed.whole:
            raise ConfigError(
                f"none of {len(self.observed.programs)} programs was seen from its first turn to its last: take a "
                "longer stretch, several times as long as a program runs"
            )

    # -- what was

    @cached_property
    def measured(self) -> RunFigures:
        """By the log."""
        return self._outcome(self.observed.measured_programs, self.observed.measured_turns)

    @cached_property
    def measured_run(self) -> RunResult:
        """The same as a run, to show beside others."""
        observed = self.observed
        programs, turns = observed.measured_programs, observed.measured_turns
        begin_ns = min(program.arrived_ns for program in programs)
        lasted_ns = max(program.ended_ns for program in programs) - begin_ns
        return RunResult(
            label="measured",
            preset="",
            summary=summarize(programs, turns, lasted_ns),
            arrival="recorded",
            programs=programs,
            turns=turns,
        )

    @cached_property
    def replayed(self) -> list[RunResult]:
        """Under the recorded configuration on the recorded machine, once for each shift of arrivals."""
        return self._runs(Question(), "replayed")

    # -- what would have been

    def ask(self, question: Question) -> Answer:
        """Simulate the alternative, and compare. Raises ``ConfigError`` for one that makes no sense."""
        runs = self._runs(question, question.title)
        names = self._names
        before = [self._outcome(run.programs, run.turns) for run in self.replayed]
        after = [self._outcome(run.programs, run.turns) for run in runs]
        measured, replayed = self.measured.figures(), mean_figures(before)
        errors = {name: change(name, measured[name], replayed[name]) for name in NAMES}
        found = changes(before, after, len(names))
        one = expected(before, after, len(names), found, errors, measured)
        if self.measured.programs < FEWEST_TO_JUDGE:
            found, one = ({name: each.without_ends for name, each in of.items()} for of in (found, one))
        return Answer(
            question=question,
            presets=(self.config.policies.name, self._config_of(question).policies.name),
            stretch=self._window(),
            measured=measured,
            replayed=replayed,
            alternative=mean_figures(after),
            programs=(
                self.measured.programs,
                before[0].programs,
                after[0].programs,
            ),
            change=found,
            expected=one,
            costs=self.costs,
            pool_tokens=self.pool_tokens,
            engines=len(self.recorded.engines),
            notes=tuple(notes(self.recorded, self.observed, self.costs, question, runs)),
            runs=(self.measured_run, self.replayed[0], runs[0]),
        )

    def experiment(
        self, question: Question, programs: Sequence[ProgramTrace], arrival: Arrival | RecordedArrivals
    ) -> Experiment:
        """A run of these programs as asked, with its own host. Raises ``ConfigError``."""
        config = self._config_of(question)
        return Experiment(
            workload=Workload(
                trace="recorded",
                shared_prefix=0,  # each program says its own
                timeout_s=self.recorded.timeout_ns / 1e9,
            ),
            arrival=arrival,
            preset=self._as_obeyed(config.policies),
            hardware=self._hardware(question),
            rules=config.control,
            trace=Trace(programs=tuple(programs), rejected=[], name="recorded"),
            profile=self._profile(),
            control_delay_ns=self.observed.control_ns,
        )

    def _runs(self, question: Question, label: str) -> list[RunResult]:
        observed = self.observed
        factor = amount(question.agents, 1.0, "agents") if question.agents else 1.0
        found = []
        for number in range(self.asked.repeat):
            world = shifted(World(observed.programs, observed.arrivals_ns), number)
            if factor != 1:
                world = with_agents(world, factor, number)
            asked = self.experiment(question, world.programs, RecordedArrivals(world.arrivals_ns))
            run = simulate(replace(asked, label=label, host_samples=self._host_samples()))
            found.append(replace(run, rate=0.0, preset=""))  # all are shown side by side, by their labels
        return found

    def _config_of(self, question: Question) -> Config:
        preset = "" if question.preset == self.config.policies.name else question.preset
        return overridden(self.config_text, preset=preset, settings=question.settings)

    def _hardware(self, question: Question) -> Hardware:
        engines = len(self.recorded.engines)
        blocks = [engine.block_tokens for engine in self.recorded.engines.values()]
        host_tokens = self._mean_tokens("host_tokens")
        rate = self.costs.load_tokens_per_s
        gb_per_s = rate * _TOKEN_BYTES / 1e9 if rate else _HIDDEN_GB_PER_S
        pool, many = question.pool_tokens, question.engines
        return Hardware(
            profile="recorded",
            pool_tokens=round(amount(pool, self.pool_tokens, "pool-tokens")) if pool else self.pool_tokens,
            block_tokens=max(blocks),
            chunk_tokens=max(self.asked.chunk_tokens, *blocks),
            max_running=self.asked.max_running,
            replicas=max(1, round(amount(many, engines, "engines"))) if many else engines,
            tiers=(f"host:{host_tokens}:{gb_per_s:.12f}",) if host_tokens else (),
            link_gb_per_s=0.0,
        )

    def _profile(self) -> Profile:
        costs = self.costs
        return fitted(
            FittedProfile(
                name="recorded",
                source=_SOURCE,
                step_overhead_us=costs.overhead * 1e6,
                prefill_token_us=costs.token * 1e6,
                attention_ps=costs.attention * 1e12,
                attends_anew=costs.attends_anew,
                decode_base_us=costs.base * 1e6,
                decode_sequence_us=costs.sequence * 1e6,
                decode_context_ns=costs.context * 1e9,
                kv_pool_tokens=self.pool_tokens,
                max_context_tokens=1 << 30,  # the pool bounds it
                kv_bytes_per_token=_TOKEN_BYTES,
                turn_overhead_us=self.observed.overhead_ns / 1e3,
            )
        )

    def _as_obeyed(self, preset: Preset) -> Preset:
        """An engine that says that it pins and orders nothing keeps its own policies under any preset."""
        if not all(engine.passive for engine in self.recorded.engines.values()):
            return preset
        return replace(preset, memory=Lru(), priority=Fcfs(), retention=Never())

    # -- small parts

    @property
    def _names(self) -> Sequence[str]:
        return [program.program_id for program in self.observed.programs]

    def _outcome(self, programs: Sequence[ProgramRecord], turns: Sequence[TurnRecord]) -> RunFigures:
        observed = self.observed
        return RunFigures(programs, turns, names=self._names, whole=observed.whole, warm=observed.warm)

    def _host_samples(self) -> tuple[tuple[int, HostSampled], ...]:
        """The host as it was within the stretch, beginning with what was known of it before."""
        begin_ns, end_ns = self.observed.begin_ns, self.observed.end_ns
        samples = [(at_ns - begin_ns, sample) for at_ns, sample in self.recorded.hosts if at_ns <= end_ns]
        before = [(0, sample) for at_ns, sample in samples if at_ns < 0]
        return (*before[-1:], *(each for each in samples if each[0] >= 0))

    def _mean_tokens(self, name: str) -> int:
        engines = self.recorded.engines.values()
        return round(statistics.fmean(getattr(engine, name) for engine in engines))

    def _config_text(self) -> str:
        """What was in force when the stretch began."""
        begin_ns = self.observed.begin_ns
        return [text for at_ns, text in self.recorded.configs if at_ns <= begin_ns][-1]

    def _window(self) -> dict[str, float]:
        observed, begin_ns = self.observed, self.recorded.begin_ns
        return {
            "since_s": (observed.begin_ns - begin_ns) / 1e9,
            "until_s": (observed.end_ns - begin_ns) / 1e9,
            "programs": len(observed.whole),
            "cut_at_start": observed.cut_at_start,
            "cut_at_end": observed.cut_at_end,
            "turns": len(observed.measured_turns),
        }

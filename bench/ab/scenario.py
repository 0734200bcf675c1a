"""What every system gets alike: the programs, their arrivals, what they tell, the engine."""

import hashlib
import random
from dataclasses import dataclass, field, replace

from ab.kinds import CPU, GPU, SGLANG, EngineShape
from ab.machine import cpus
from controlplane.lab.experiment import Workload
from controlplane.lab.workload.named import SYNTHETIC, Wanted, named_workload
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import Trace

# The programs are drawn with a seed of their own, so that they have nothing to do with the gaps between them.
_PROGRAM_SEEDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The load, with what its programs tell of themselves, and the engine.

    ``trace``: ``synthetic:NAME``, or a file or a mix of files of which each seed takes other programs.
    """

    trace: str = f"{SYNTHETIC}swe-like"
    programs: int = 60
    scale: Scale = field(default_factory=lambda: Scale(tokens=0.05, outputs=0.1, tools=1.0))
    shared_prefix_tokens: int = 100
    engine: EngineShape = field(default_factory=EngineShape)
    cpus: int = field(default_factory=cpus)  # for engine, client, daemon and nats-server together
    sglang: str = ""  # its version; empty: the engine is another one
    # Not in the representation, of which the digest is: scenarios from before keep theirs.
    telemetry: Telemetry = field(default=Telemetry.FULL, repr=False)
    humans: bool = field(default=True, repr=False)  # whether programs that wait for a person take part
    turns: int = field(default=0, repr=False)  # of each program the first so many; 0: all
    version: str = field(default="", repr=False)  # of an engine that is not SGLang

    def workload(self, seed: int) -> Trace:
        """The programs of that seed, the same at every rate. Raises ``ConfigError``."""
        trace = self._all_turns(seed)
        if not self.turns:
            return trace
        return replace(trace, programs=tuple(replace(p, turns=p.turns[: self.turns]) for p in trace.programs))

    def _all_turns(self, seed: int) -> Trace:
        if self.trace.startswith(SYNTHETIC):
            drawn = Wanted(programs=self.programs, seed=_PROGRAM_SEEDS + seed)
            return self.scale.apply(named_workload(self.trace, drawn))
        fitting = Wanted(max_context_tokens=self._longest_context(), humans=self.humans)
        trace = self.scale.apply(named_workload(self.trace, fitting))
        chosen = random.Random(_PROGRAM_SEEDS + seed).sample(
            trace.programs, min(self.programs, len(trace.programs))
        )
        return replace(trace, programs=tuple(chosen))

    def described(self, scale: Scale | None = None) -> Workload:
        """The programs as the laboratory knows them; ``scale`` where it is to tell of it."""
        scale = scale or Scale()
        return Workload(
            trace=self.trace,
            scale_tokens=scale.tokens,
            scale_outputs=scale.outputs,
            scale_tools=scale.tools,
            shared_prefix=self.shared_prefix_tokens,
            cpus=float(self.cpus),
            telemetry=self.telemetry,
        )

    def _longest_context(self) -> int:
        """Of programs as they are in the file, so that what is left fits into the pool."""
        return int(0.9 * self.engine.pool_tokens / self.scale.tokens)

    def __str__(self) -> str:
        engine, who = self.engine, "programs" if self.humans else "programs without people"
        who += f" of {self.turns} turns at most" if self.turns else ""
        model = f"{engine.model} in {engine.dtype}" if engine.dtype else engine.model
        server = "" if engine.kind == SGLANG else f"{engine.engine.title} {self.version}, "
        threads = f"{engine.threads} threads" if engine.device == CPU else "on a GPU"
        return (
            f"{self.trace}, {self.programs} {who}, {self.scale}, {self.shared_prefix_tokens} shared tokens; "
            f"{server}model {model}, {engine.pool_tokens} tokens of KV, chunks of {engine.chunk_tokens}, "
            f"{threads}, {f'{engine.flags}, ' if engine.flags else ''}"
            f"{self.cpus} CPUs for everything; telemetry {self.telemetry}"
        )

    def on(self, kind: str, version: str) -> "Scenario":
        """The same load on that engine of that version."""
        changed = {"sglang": version} if kind == SGLANG else {"version": version}
        return replace(self, engine=replace(self.engine, kind=kind), **changed)  # type: ignore[arg-type]

    @property
    def is_smoke(self) -> bool:
        return self.engine.model == "tiny"

    @property
    def digest(self) -> str:
        """Names this scenario: results of another one are not compared with its."""
        changed = "" if self.telemetry is Telemetry.FULL else f", telemetry={self.telemetry}"
        changed += "" if self.humans else ", humans=False"
        changed += f", turns={self.turns}" if self.turns else ""
        changed += f", dtype={self.engine.dtype}" if self.engine.dtype else ""
        changed += "" if self.engine.kind == SGLANG else f", engine={self.engine.kind} {self.version}"
        changed += "" if self.engine.device == CPU else f", device={self.engine.device}"
        changed += f", flags={self.engine.flags}" if self.engine.flags else ""
        return hashlib.sha256(f"{self!r}{changed}".encode()).hexdigest()[:10]


SMOKE = Scenario(
    programs=4,
    scale=Scale(tokens=0.01, outputs=0.02, tools=0.05),
    shared_prefix_tokens=20,
    engine=EngineShape(model="tiny", pool_tokens=4000, threads=1),
)
"""Seconds long, to see that everything works; its figures mean nothing."""

ON_A_GPU = Scenario(
    programs=40,
    scale=Scale(tokens=0.4, outputs=1.0, tools=1.0),
    shared_prefix_tokens=1000,
    engine=EngineShape(
        model="8b", pool_tokens=128_000, context_tokens=65_536, chunk_tokens=8192, threads=0, device=GPU
    ),
)
"""The same agents on an 8B shape: the pool holds as many of them as on the CPU, in 17 GB beside the weights' 16."""

"""The whole loop on a real engine: nats-server, daemon, engine with its plugin, and agents that report their tools.

For benchmarks that ask the daemon while it runs, or the log that it wrote: ``EngineLoop`` is to a real engine what
``support.whole_loop.Loop`` is to the engine double. ``add_options`` and ``load_of`` have a benchmark take either.
"""

import argparse
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from engine_server import EngineServer
from support.whole_loop import Loop

from ab.engine import find_environment, version_of
from ab.kinds import KINDS
from ab.machine import cpus
from ab.one_run import NODE, RECORD, prepare, replayed, served
from ab.plan import Job
from ab.results import RUN, Cell
from ab.scenario import SMOKE, Scenario
from ab.systems import System
from controlplane.lab.sim.hardware import CHUNK_TOKENS
from controlplane.lab.workload.run import RunResult

DOUBLE = "double"
_SEED = 1
_DOUBLE_POOL_TOKENS, _DOUBLE_RATE, _RATE, _SMOKE_RATE = 60_000, 0.3, 0.15, 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What every run of a benchmark gets alike. ``rate``: programs a second of the engine's time."""

    pool_tokens: int
    rate: float
    time_scale: float
    chunk_tokens: int  # of the engine's steps, which no log tells
    make: Callable[[Path, str, int, str], "Loop | EngineLoop"]


class EngineLoop:
    """A daemon and a real engine, fresh, in processes of their own.

    :param folder: for logs and state.
    :param toml: the daemon's configuration, beside its preset.
    """

    node = NODE

    def __init__(
        self, folder: Path, preset: str, toml: str, *, scenario: Scenario, environment: Path, rate: float
    ) -> None:
        self.record, self.folder = folder / RECORD, folder / "daemon"  # the latter: of the daemon's state
        self._place, self._scenario, self._environment, self._rate = folder, scenario, environment, rate
        self._system = System(name=preset, toml=f'preset = "{preset}"\n{toml}')
        self._running = contextlib.ExitStack()
        self._server: EngineServer | None = None

    def start(self) -> None:
        """Return once the gate is governed; minutes on a busy machine."""
        prepare()
        self._place.mkdir(parents=True, exist_ok=True)
        run = served(self._system, self._scenario, self._environment, self._place, recorded=True)
        self._server = self._running.enter_context(run)

    def run(self, programs: int) -> RunResult:
        """So many programs, to their end."""
        assert self._server is not None, "it was not started"
        scenario = replace(self._scenario, programs=programs)
        cell = Cell(purpose=RUN, scenario=scenario.digest, rate=self._rate, seed=_SEED, system=self._system.name)
        return replayed(Job(cell=cell, system=self._system), scenario, self._server.url, self._place)

    def stop(self) -> None:
        """End all of it; the record is whole then."""
        self._running.close()


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that ``load_of`` reads."""
    known = (DOUBLE, *sorted(KINDS))
    parser.add_argument(
        "--engine", choices=known, default=DOUBLE, help="a real one takes hours; default: %(default)s"
    )
    parser.add_argument(
        "--rate", type=float, help="programs/s of the engine's time; default: 0.3, 0.15 on a real one"
    )
    parser.add_argument("--time-scale", type=float, default=20.0, help="of the double; default: %(default)g")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on a real engine: to see that it works")


def load_of(given: argparse.Namespace) -> Load:
    """As the options say. Makes the real engine's environment where it is not there yet."""
    if given.engine == DOUBLE:
        rate = given.rate or _DOUBLE_RATE

        def double(folder: Path, preset: str, pool_tokens: int, toml: str) -> Loop:
            told: tuple[str, ...] = ()
            if toml:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "penstock.toml").write_text(toml)
                told = ("--config", str(folder / "penstock.toml"))
            return Loop(
                folder,
                preset,
                pool_tokens=pool_tokens,
                rate=rate,
                time_scale=given.time_scale,
                daemon=told,
            )

        return Load(
            pool_tokens=_DOUBLE_POOL_TOKENS,
            rate=rate,
            time_scale=given.time_scale,
            chunk_tokens=CHUNK_TOKENS,
            make=double,
        )
    kind = KINDS[given.engine]
    environment = find_environment(kind.version)
    scenario = replace(SMOKE if given.smoke else Scenario(), cpus=cpus()).on(
        kind.name, version_of(environment, kind)
    )
    rate = given.rate or (_SMOKE_RATE if given.smoke else _RATE)

    def real(folder: Path, preset: str, pool_tokens: int, toml: str) -> EngineLoop:
        sized = replace(scenario, engine=replace(scenario.engine, pool_tokens=pool_tokens))
        return EngineLoop(folder, preset, toml, scenario=sized, environment=environment, rate=rate)

    return Load(
        pool_tokens=scenario.engine.pool_tokens,
        rate=rate,
        time_scale=1.0,
        chunk_tokens=scenario.engine.chunk_tokens,
        make=real,
    )

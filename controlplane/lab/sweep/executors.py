"""Where the runs of a sweep happen: in processes of this machine, or on a Ray cluster."""

import logging
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, Self

from controlplane.core.model.errors import ConfigError
from controlplane.lab.sweep.run_cell import CellOutcome
from controlplane.lab.sweep.spec import Cell

Task = Callable[[Cell], CellOutcome]
LOCAL, RAY = "local", "ray"


class Executor(Protocol):
    """Runs cells side by side, inside a ``with``."""

    slots: int  # cells at once

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

    def submit(self, task: Task, cell: Cell) -> "Future[CellOutcome]":
        """Begin; at most ``slots`` at once."""

    def is_loss(self, error: Exception) -> bool:
        """Whether a future's error says that its worker died, rather than that the task went wrong."""


def executor(on: str, jobs: int, most: int) -> Executor:
    """Where ``--on`` says: ``local``, ``ray`` or ``ray://HOST:PORT``, ``jobs`` cells at once, ``most`` at most.

    ``jobs`` 0: one for each CPU. Raises ``ConfigError``.
    """
    if on == LOCAL:
        return LocalProcesses(min(jobs or len(os.sched_getaffinity(0)), most))
    if on == RAY or on.startswith("ray://"):
        return RayCluster(on if on != RAY else "", jobs)
    raise ConfigError(f"--on: expected local, ray or ray://HOST:PORT, got {on!r}")


class LocalProcesses:
    """Each of ``slots`` processes is a pool of its own: one that is killed takes no other's cell with it."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._pools = [_pool() for _ in range(slots)]
        self._in_hand: list[Future[CellOutcome] | None] = [None] * slots

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown()

    def submit(self, task: Task, cell: Cell) -> "Future[CellOutcome]":
        """Begin in a process that has nothing to do; one that has died is replaced."""
        free = next(i for i, future in enumerate(self._in_hand) if future is None or future.done())
        try:
            future = self._pools[free].submit(task, cell)
        except BrokenProcessPool:
            self._pools[free] = _pool()
            future = self._pools[free].submit(task, cell)
        self._in_hand[free] = future
        return future

    def is_loss(self, error: Exception) -> bool:
        """Whether the process died."""
        return isinstance(error, BrokenProcessPool)


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


class RayCluster:
    """Ray tasks of a CPU each; at most ``slots``, by default as many as the cluster has CPUs now.

    Every node needs this version of Penstock with its extra ``sim``, and trace files under the same path.
    """

    def __init__(self, address: str, slots: int) -> None:
        """``address`` empty: the cluster that this machine is part of, or one that is started on it."""
        self._ray = _ray()
        own = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.WARNING}
        try:
            self._ray.init(address) if address else self._ray.init(**own)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ConfigError(f"--on {address or RAY}: no Ray cluster: {error}") from error
        self._begin = self._ray.remote(num_cpus=1, max_retries=0)(_call)
        self.slots = slots or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ray.shutdown()

    def submit(self, task: Task, cell: Cell) -> "Future[CellOutcome]":
        """Begin as a Ray task, which Ray does not retry: the sweep does."""
        future: Future[CellOutcome] = self._begin.remote(task, cell).future()
        return future

    def is_loss(self, error: Exception) -> bool:
        """Whether the worker or its node died; what a task itself raises is wrapped."""
        kinds = self._ray.exceptions
        return isinstance(error, kinds.RayError) and not isinstance(error, kinds.RayTaskError)


def _call(task: Task, cell: Cell) -> CellOutcome:
    return task(cell)


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError("--on ray needs Ray: pip install 'penstock-agents[ray]'") from None
    return ray

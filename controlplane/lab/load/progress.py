"""How far a replay is, and two ways to show it: a live bar on a terminal, plain lines elsewhere."""

import time
from dataclasses import dataclass
from typing import Protocol

from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.lab.console import Console

PLAIN_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProgress:
    """A replay at one instant of trace time."""

    now_ns: int
    programs: int
    programs_ended: int  # the failed ones included
    programs_failed: int
    programs_running: int
    turns: int
    turns_ended: int
    turns_waiting: int  # sent, and no token yet: held by the gate or queued in the engine
    turns_streaming: int
    retries: int
    tools_running: int
    tools_waiting: int
    limit: int | None = None  # the admission limit from the daemon's heartbeat; None: no daemon heard

    def line(self) -> str:
        """One line for a person."""
        limit = "" if self.limit is None else f", limit {self.limit or 'none'}"
        failed = f", {self.programs_failed} failed" if self.programs_failed else ""
        retried = f", {self.retries} retries" if self.retries else ""
        return (
            f"{self.turns_ended}/{self.turns} turns | {self.programs_running} running{failed}{limit} | "
            f"{self.turns_waiting} waiting, {self.turns_streaming} streaming | "
            f"tools {self.tools_running} running, {self.tools_waiting} waiting{retried} | "
            f"{self.now_ns / NANOSECONDS_PER_SECOND:.0f} s of trace time"
        )


class Display(Protocol):
    """Where a replay shows itself. Called in its event loop, so it must be quick."""

    def update(self, progress: ReplayProgress) -> None: ...

    def note(self, text: str) -> None:
        """Something that the user should read."""

    def close(self) -> None: ...


class BarDisplay:
    """A progress bar over programs with a line of figures under it, for a terminal.

    ``transient``: it is gone when the replay is over.
    """

    def __init__(self, console: Console, label: str, *, transient: bool = False) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("programs"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._bar.add_task(label, total=None)
        self._figures = Text(style="dim")
        shown = Group(self._bar, self._figures)
        self._live = Live(shown, console=console, refresh_per_second=4, transient=transient)
        self._live.start()

    def update(self, progress: ReplayProgress) -> None:
        self._bar.update(self._task, total=progress.programs, completed=progress.programs_ended)
        self._figures.plain = progress.line()

    def note(self, text: str) -> None:
        self._live.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self._live.stop()


class LineDisplay:
    """A line every few seconds, for a log file or a pipe."""

    def __init__(self, console: Console, label: str) -> None:
        self._console = console
        self._label = label
        self._shown_s = time.monotonic()

    def update(self, progress: ReplayProgress) -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s < PLAIN_EVERY_S and progress.programs_ended < progress.programs:
            return
        self._shown_s = now_s
        self.note(f"{self._label}: {progress.programs_ended}/{progress.programs} programs ended, {progress.line()}")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to put away."""


def choose_display(label: str, console: Console | None = None) -> Display:
    """A bar on a terminal, lines elsewhere; on standard error, so that results can be piped."""
    console = console or Console(stderr=True)
    return BarDisplay(console, label) if console.is_terminal else LineDisplay(console, label)

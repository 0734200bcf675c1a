"""``penstock top``: a node live in a terminal. ``screen`` draws the latest status; it never waits or asks."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from controlplane.core.model.text import printable
from controlplane.operate.client import ControlClient
from controlplane.operate.printing import cells
from controlplane.operate.tables import (
    ENGINE_HEAD,
    are_several,
    engine_cells,
    engines_line,
    has_engines,
    kv_line,
    lead_line,
    program_head,
    program_row,
    title,
    tools_line,
)
from controlplane.wire.control import Fields

_MOST_SAMPLES = 240  # samples, of which the plots show the last that fit
_BARS = "▁▂▃▄▅▆▇█"
_PHASE_STYLE = {"reasoning": "green", "acting": "cyan", "held": "yellow", "idle": "dim"}
_LABEL_WIDTH = 14
_HEADER_LINES = 10
_OTHER_LINES = _HEADER_LINES + 3  # lines that show no program


@dataclass(slots=True)
class History:
    """The last samples of the plots' values, the latest at the end."""

    limit: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))
    active: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))
    waiting: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST_SAMPLES))

    def add(self, status: Fields) -> None:
        self.limit.append(status.window.limit)
        self.active.append(status.pressure.programs_active)
        self.waiting.append(status.pressure.queue_length)


def watch(client: ControlClient, console: Console | None = None) -> None:
    """Redraw at each control interval until Ctrl-C. Raises ``EngineUnavailable`` when the daemon goes."""
    history = History()
    with Live(console=console or Console(), screen=True, auto_refresh=False) as live:
        for status in client.watch("WatchStatus"):
            history.add(status)
            size = live.console.size
            engines = None
            if has_engines(status):
                engines = client.call("ListEngines", limit=engine_places(size.height))
            listed = client.call("ListPrograms", limit=places(size.height, engines))
            shown = screen(status, listed, history, engines, width=size.width, height=size.height)
            live.update(shown, refresh=True)


def places(height: int, engines: Fields | None = None) -> int:
    """How many programs a screen of ``height`` lines has room for, below that table of engines."""
    return max(1, height - _OTHER_LINES - (_engine_lines(engines) if engines is not None else 0))


def engine_places(height: int) -> int:
    """How many engines a screen of ``height`` lines shows: a third of what is below the head."""
    return max(2, (height - _OTHER_LINES) // 3)


def screen(
    status: Fields, listed: Fields, history: History, engines: Fields | None = None, *, width: int, height: int
) -> RenderableType:
    """The whole screen, ``width`` by ``height`` characters."""
    layout = Layout()
    parts = [Layout(_head(status, listed.phases, history, width), size=_HEADER_LINES)]
    if engines is not None:
        parts.append(Layout(_engines(engines), size=_engine_lines(engines)))
    parts.append(Layout(_programs(listed, places(height, engines)), name="programs"))
    layout.split_column(*parts)
    return layout


def _engine_lines(engines: Fields) -> int:
    """The head, a row each, what is left out, and an empty line."""
    shown = len(engines.engines)
    return shown + (3 if engines.total > shown else 2)


def _engines(listed: Fields) -> RenderableType:
    table = _table(ENGINE_HEAD)
    for engine in listed.engines:
        table.add_row(*cells(engine_cells(engine)), style=_engine_style(engine))
    left = listed.total - len(listed.engines)
    return Group(table, Text(f"… and {left} more engines", style="dim")) if left > 0 else table


def _table(head: Sequence[str]) -> Table:
    """A table of one line a row, whatever the names' width."""
    table = Table(box=None, expand=True, header_style="bold", pad_edge=False)
    for name in head:
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    return table


def _engine_style(engine: Fields) -> str:
    if engine.standing == "gone" or engine.silent:
        return "red"
    return "yellow" if engine.standing == "draining" or engine.passive else ""


def _head(status: Fields, phases: Sequence[Fields], history: History, width: int) -> RenderableType:
    pressure, window = status.pressure, status.window
    plot = max(10, width - _LABEL_WIDTH - 20)
    top = max([*history.limit, *history.active, *history.waiting, 1])
    lines = Table.grid(padding=(0, 1))
    lines.add_column(width=_LABEL_WIDTH, style="bold", no_wrap=True)
    lines.add_column(no_wrap=True, overflow="ellipsis")
    limit = str(window.limit) if window.limit else "no limit"
    lines.add_row("window", _plot(history.limit, top, plot, limit, "magenta"))
    lines.add_row("active", _plot(history.active, top, plot, str(pressure.programs_active), "green"))
    lines.add_row("waiting", _plot(history.waiting, top, plot, str(pressure.queue_length), "yellow"))
    lines.add_row("because", Text(printable(status.window.reason)))
    lines.add_row("KV", _gauge(pressure.kv_use_ratio, pressure.kv_overloaded, kv_line(pressure)))
    lines.add_row("CPU", _gauge(pressure.cpu_use_ratio, pressure.cpu_overloaded, tools_line(pressure)))
    lines.add_row("phases", _phases(phases))
    lines.add_row("", _warnings(status))
    summary = [f"preset {status.preset}  configuration {status.config.version}"]
    summary += [engines_line(status.engines)] * has_engines(status)
    summary += [line for line in (lead_line(status),) if line]
    title = Text.assemble((printable(status.node), "bold"), *(printable(f"  {each}") for each in summary))
    return Panel(lines, title=title, title_align="left", box=box.ROUNDED)


def _plot(values: Iterable[float], top: float, width: int, now: str, style: str) -> Text:
    """The latest ``width`` values as bars from 0 to ``top``, and the last value as text."""
    shown = list(values)[-width:]
    bars = "".join(_BARS[min(len(_BARS) - 1, int(value / top * len(_BARS)))] if value else " " for value in shown)
    return Text.assemble((bars.rjust(width), style), f" {now}")


def _gauge(ratio: float, is_overloaded: bool, words: str) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(
        total=1.0, completed=min(1.0, ratio), width=20, complete_style="red" if is_overloaded else "green"
    )
    row.add_row(bar, Text(words, no_wrap=True, overflow="ellipsis"))
    return row


def _phases(phases: Sequence[Fields]) -> Text:
    text = Text()
    for each in phases:
        text.append(f"{each.programs} {each.phase}", _PHASE_STYLE[each.phase])
        text.append(f" ({each.context_tokens:,} tokens)   " if each.programs else "   ")
    return text


def _warnings(status: Fields) -> Text:
    """Every finding's name, as only one line is here; and as much as there is room for of what was found."""
    names = ", ".join(map(title, status.findings)) + "; " if len(status.findings) > 1 else ""
    summary = "; ".join(f"{title(each)}: {each.found}" for each in status.findings)
    return Text(printable(names + summary), style="red")


def _programs(listed: Fields, most: int) -> RenderableType:
    """Programs that reason, then those that wait, then those that act, then idle ones; the rest is counted."""
    shown = sorted(listed.programs[:most], key=_place)
    engines = are_several(shown)
    table = _table(program_head(engines=engines))
    for program in shown:
        table.add_row(*cells(program_row(program, engines=engines)), style=_PHASE_STYLE[program.phase])
    left = listed.total - len(shown)
    return Group(table, Text(f"… and {left} more", style="dim")) if left > 0 else table


def _place(program: Fields) -> tuple[int, int, int]:
    if program.queue_position:
        return (1, program.queue_position, 0)
    order = {"reasoning": 0, "acting": 2, "held": 1, "idle": 3}
    return (order[program.phase], 0, -program.idle_ns)

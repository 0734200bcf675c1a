"""``penstock top`` in its terminal: keys change what is wanted of the screen, looks what there is to see on it."""

import asyncio
import signal
import sys
import time
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from controlplane.core.model.errors import ConfigError, ControlPlaneError
from controlplane.core.model.text import printable
from controlplane.operate.top.head import engine_places
from controlplane.operate.top.lines import Line, changed
from controlplane.operate.top.looks import Connect, Looks
from controlplane.operate.top.screen import Look, Screen


def watch(connect: Connect) -> None:
    """Show the node until the user has seen enough. Raises ``EngineUnavailable`` if no daemon answers at first."""
    with connect() as client:
        client.call("GetStatus")
    if not (sys.stdin.isatty() and sys.stderr.isatty()):  # where Textual reads and writes
        raise ConfigError("top draws on a terminal, and this is none: `penstock status` prints the same once")
    app = Top(connect)
    app.run(mouse=False)  # so that the terminal's own selection of text works
    if app.return_code:  # it failed, and has printed how
        raise SystemExit(app.return_code)


def strip(line: Line, width: int) -> Strip:
    """As Textual draws it."""
    return Strip(Segment(printable(text), Style.parse(style)) for text, style in line).adjust_cell_length(width)


class Lines(Widget):
    """Lines that were made elsewhere; those that differ from the last ones are drawn anew."""

    DEFAULT_CSS = "Lines { height: 1fr; }"

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[Line] = []

    def show(self, lines: list[Line]) -> None:
        """These instead of the last ones."""
        stretches = changed(self._lines, lines)
        self._lines = lines
        if stretches:
            self.refresh(*(Region(0, first, self.size.width, count) for first, count in stretches))

    def render_line(self, y: int) -> Strip:
        return strip(self._lines[y] if y < len(self._lines) else (), self.size.width)


class Looked(Message):
    """A look at the daemon, or why there is none."""

    def __init__(self, found: Look | ControlPlaneError) -> None:
        super().__init__()
        self.found = found


class Top(App[None]):
    """Looks come as messages, from a thread."""

    AUTO_FOCUS = None  # keys are commands
    ENABLE_COMMAND_PALETTE = False
    CSS = "Input { dock: bottom; display: none; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit"),
        Binding("ctrl+c", "quit", priority=True),
        Binding("ctrl+z", "suspend_process", priority=True),
        Binding("slash", "filter"),
        Binding("s,greater_than_sign", "sort(1)"),
        Binding("S,less_than_sign", "sort(-1)"),
        Binding("up", "move(-1)"),
        Binding("down", "move(1)"),
        Binding("pageup", "page(-1)"),
        Binding("pagedown", "page(1)"),
        Binding("home", "move(-1_000_000)"),
        Binding("end", "move(1_000_000)"),
        Binding("enter", "panel('details')"),
        Binding("question_mark", "panel('keys')"),
        Binding("escape", "leave"),
    ]

    def __init__(self, connect: Connect) -> None:
        super().__init__()
        self.theme = "ansi-dark"  # the terminal's own colours
        self._shown = Screen()
        self._looks = Looks(connect, lambda found: self.post_message(Looked(found)))
        self._seen_s = time.monotonic()

    def compose(self) -> ComposeResult:
        yield Lines()
        yield Input(compact=True, placeholder="nothing: all of them")

    def on_mount(self) -> None:
        if not self.is_headless:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                asyncio.get_running_loop().add_signal_handler(number, self.exit)
        self._looks.start()

    def on_unmount(self) -> None:
        self._looks.stop()

    def on_looked(self, message: Looked) -> None:
        if isinstance(message.found, Look):
            self._seen_s = time.monotonic()
            self._shown.take(message.found)
            self._looks.after_ms = self._shown.history.last_ms
        else:
            self._shown.lost, self._shown.lost_s = str(message.found), time.monotonic() - self._seen_s
        self._draw()

    def on_resize(self, event: Resize) -> None:
        self._looks.engines = engine_places(event.size.height)
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        for widget in self.query(Lines):
            widget.show(self._shown.lines(*widget.size))

    # Keys

    def action_filter(self) -> None:
        field = self.query_one(Input)
        field.value, field.display, self._shown.is_typing = self._shown.contains, True, True
        field.focus()
        self.call_after_refresh(self._draw)

    def on_input_submitted(self, message: Input.Submitted) -> None:
        self._filter(message.value)

    def _filter(self, contains: str) -> None:
        self.query_one(Input).display = self._shown.is_typing = False
        self.set_focus(None)
        if contains != self._shown.contains:
            self._shown.contains = self._looks.contains = contains
            self._shown.programs.unselect()
            self._shown.programs.forget()
            self._looks.at_once()
        self.call_after_refresh(self._draw)

    def action_sort(self, step: int) -> None:
        self._shown.programs.sort(step)
        self._draw()

    def action_move(self, rows: int) -> None:
        self._shown.programs.move(rows)
        self._draw()

    def action_page(self, pages: int) -> None:
        self._shown.programs.page(pages)
        self._draw()

    def action_panel(self, name: str) -> None:
        if name == "details" and self._shown.programs.selected is None:
            self._shown.programs.move(1)
        self._shown.panel = "" if self._shown.panel == name else name
        self._draw()

    def action_leave(self) -> None:
        shown = self._shown
        if shown.is_typing:
            self._filter(shown.contains)
        elif shown.panel:
            shown.panel = ""
        elif shown.programs.selected is not None:
            shown.programs.unselect()
        else:
            self._filter("")
        self._draw()

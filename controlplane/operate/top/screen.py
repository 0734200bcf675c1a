"""The whole screen as lines, from the latest look; it never waits or asks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from controlplane.operate.top import panels
from controlplane.operate.top.columns import Layout
from controlplane.operate.top.head import engine_lines, head
from controlplane.operate.top.history import History
from controlplane.operate.top.lines import Line, begin_of, fitting, padded, wrapped
from controlplane.operate.top.programs import Programs
from controlplane.wire.control import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a daemon told at one time. ``engines``: only where there is something to see about them."""

    status: Fields
    listed: Fields
    samples: Sequence[Fields] = ()
    engines: Fields | None = None


@dataclass(slots=True)
class Screen:
    """What was seen last, and what the user wants to see of it."""

    programs: Programs = field(default_factory=Programs)
    history: History = field(default_factory=History)
    contains: str = ""  # the filter
    panel: str = ""  # in the programs' place: "details" or "keys"
    lost: str = ""  # why the daemon does not answer
    lost_s: float = 0.0  # for so long
    _look: Look | None = None
    _engines: Layout = field(default_factory=Layout)
    _width: int = 0

    def take(self, look: Look) -> None:
        """See what is new."""
        self._look, self.lost = look, ""
        self.history.add(look.samples)
        self.programs.take(look.listed)

    def lines(self, width: int, height: int) -> list[Line]:
        """``height`` of them at most, the footer as the last one."""
        look = self._look
        if look is None or height < 1:
            return []
        if width != self._width:
            self._width = width
            self._engines = Layout()
            self.programs.forget()
        lines = head(look.status, look.listed.phases, self.history, width, height)
        if self.lost:
            lines[1:1] = self._lost(width)
        if look.engines is not None:
            lines += engine_lines(look.engines, self._engines, width)
        left = max(2, height - len(lines) - 1)
        lines += self._below(width, left)[:left]
        lines = lines[: height - 1]
        return [*lines, *[()] * (height - 1 - len(lines)), self._footer(width)]

    def _below(self, width: int, height: int) -> list[Line]:
        shown = self.programs.selected
        if self.panel == "keys":
            return panels.keys(width)
        if self.panel == "details" and shown is not None:
            return panels.details(shown, width, is_gone=self.programs.is_gone)
        if self.programs.rows:
            return self.programs.lines(width, height)
        none = f"no program has {self.contains!r} in its id, or tenant's, engine's or tool's name"
        return [((begin_of(none if self.contains else "no programs yet", width), "dim"),)]

    def _lost(self, width: int) -> list[Line]:
        words = f"The daemon has not answered for {self.lost_s:.0f} s, and is asked again each second."
        parts = [*wrapped(f"{words} What is shown is from before.", width, 2), *wrapped(self.lost, width, 3)]
        return [((part, "bold red"),) for part in parts]

    def _footer(self, width: int) -> Line:
        where = self.programs.where()
        if self.contains:
            where = f"{begin_of(repr(self.contains), 20)} {where}"
        keys = {"details": panels.DETAILS_FOOTER, "keys": panels.KEYS_FOOTER}.get(self.panel, panels.FOOTER)
        left = max(0, width - len(where) - 1)
        return ((padded(fitting(keys.split("  "), left, "  "), left), "reverse"), (" " + where, "reverse"))

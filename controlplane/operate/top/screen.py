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
    is_typing: bool = False  # another one, below the footer
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
        if width < 1 or height < 1:  # no terminal yet
            return []
        if width != self._width:
            self._width = width
            self._engines = Layout()
            self.programs.forget()
        lines = self._head(self._look, width, height) if self._look else self._lost(width)
        lines += self._below(width, max(2, height - 1 - len(lines))) if self._look else []
        lines = lines[: height - 1]
        return [*lines, *[()] * (height - 1 - len(lines)), self._footer(width)]

    def _head(self, look: Look, width: int, height: int) -> list[Line]:
        lines = head(look.status, look.listed.phases, self.history, width, height)
        lines[1:1] = self._lost(width)
        return lines + (engine_lines(look.engines, self._engines, width) if look.engines else [])

    def _below(self, width: int, height: int) -> list[Line]:
        shown = self.programs.selected
        if self.panel == "keys":
            return panels.keys(width)[:height]
        if self.panel == "details" and shown is not None:
            return panels.details(shown, width, is_gone=self.programs.is_gone)[:height]
        if self.programs.rows:
            return self.programs.lines(width, height)
        none = f"no program has {self.contains!r} in its id, or tenant's, engine's or tool's name"
        return [((begin_of(none if self.contains else "no programs yet", width), "dim"),)]

    def _lost(self, width: int) -> list[Line]:
        if not self.lost:
            return []
        words = f"The daemon has not answered for {self.lost_s:.0f} s, and is asked again each second."
        words += " What is shown is from before." if self._look else ""
        parts = [*wrapped(words, width, 2), *wrapped(self.lost, width, 3)]
        return [((part, "bold red"),) for part in parts]

    def _footer(self, width: int) -> Line:
        where = self.programs.where()
        if self.contains:
            where = f"{begin_of(repr(self.contains), 20)} {where}"
        if self.is_typing:
            return ((padded(fitting(panels.FILTER_FOOTER.split("  "), width, "  "), width), "reverse"),)
        keys = {"details": panels.DETAILS_FOOTER, "keys": panels.KEYS_FOOTER}.get(self.panel, panels.FOOTER)
        left = max(0, width - len(where) - 1)
        return ((padded(fitting(keys.split("  "), left, "  "), left), "reverse"), (" " + where, "reverse"))

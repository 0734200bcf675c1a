"""Tokens that an engine served each program lately: what quotas are counted against.

The owner of an engine's queue (the plugin, the simulator) adds; a priority policy reads the sum from the call.
"""

from collections import OrderedDict
from dataclasses import dataclass

_MOST_PROGRAMS = 65_536


@dataclass(slots=True)
class _Window:
    began_ns: int
    tokens: int


class ServiceWindow:
    """Sums over windows of ``window_ns``; a program's begins with the first service after its last one ended.

    0 counts nothing. The programs served longest ago are forgotten beyond 65,536.
    """

    def __init__(self, window_ns: int) -> None:
        self._window_ns = window_ns
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    def add(self, program_id: str, tokens: int, now_ns: int) -> None:
        """The program was served: prefilled tokens that were not cached, or decoded ones."""
        if not self._window_ns:
            return
        window = self._windows.get(program_id)
        if window is None or now_ns - window.began_ns >= self._window_ns:
            window = self._windows[program_id] = _Window(now_ns, 0)
        window.tokens += tokens
        self._windows.move_to_end(program_id)
        if len(self._windows) > _MOST_PROGRAMS:
            self._windows.popitem(last=False)

    def tokens(self, program_id: str, now_ns: int) -> int:
        """What the program was served in its running window; 0 if that is over."""
        window = self._windows.get(program_id)
        if window is None or now_ns - window.began_ns >= self._window_ns:
            return 0
        return window.tokens

"""Whether tools share the host's CPUs, and how many each of them can use."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from controlplane.core.model.errors import ConfigError

_MOST = 1024.0


@dataclass(frozen=True, slots=True)
class Contention:
    """Tools slow each other down. ``named`` holds a pattern and its share each: the first that fits counts.

    A share is the CPUs that a tool keeps busy while nothing contends: 0 only waits (for a network, a sleep), 0.25
    computes for a quarter of its time, 4 computes on four CPUs all the time.
    """

    share: float = 1.0
    named: tuple[tuple[str, float], ...] = ()

    def share_of(self, tool: str) -> float:
        """The CPUs that the tool uses, alone on the host."""
        for pattern, share in self.named:
            if tool == pattern or fnmatchcase(tool, pattern):
                return share
        return self.share

    def __str__(self) -> str:
        named = "".join(f", {pattern} {share:g}" for pattern, share in self.named)
        return f"CPUs shared; a tool uses {self.share:g}{named}"


def parse_contention(on: bool, shares: Sequence[str]) -> Contention | None:
    """Read shares as ``0.5`` (all tools that no other names) or ``TOOL=0.5``; None where tools do not contend.

    TOOL may hold ``*`` and ``?``. Raises ``ConfigError`` for what is no share, and for shares without contention.
    """
    if not on:
        if shares:
            raise ConfigError("cpu_shares: expected contention to be on, for shares to matter", field="cpu_shares")
        return None
    named = [(tool, _share(value, text)) for text in shares for tool, _, value in [text.rpartition("=")]]
    general = [share for tool, share in named if not tool]
    if len(general) > 1:
        raise ConfigError("cpu_shares: expected one share for all other tools, got two", field="cpu_shares")
    return Contention(share=general[0] if general else 1.0, named=tuple(item for item in named if item[0]))


def _share(value: str, text: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= _MOST:
        raise ConfigError(
            f"cpu_shares: expected SHARE or TOOL=SHARE with 0 <= SHARE <= {_MOST:g} CPUs, got {text!r}",
            field="cpu_shares",
        )
    return share

"""What it costs to have a context back that gave way on the device, in parts of computing it again.

Where memory of the host, or a disk, lies below the device, a context that had to leave may still be there. To load
it costs what the turn's prefill takes longer for it: nothing where loading hides behind computing, as much as
computing where the way up is slow. Both are seen in the turns that come back to such a context (docs/adr/0039).
"""

from dataclasses import dataclass

_FADE = 0.98  # by the turn: half of the weight is in the latest 35


@dataclass(slots=True, kw_only=True)
class Displaced:
    """Sums over turns that came back to a context of which something had left the device, older ones fading."""

    left_tokens: float = 0.0
    loaded_tokens: float = 0.0
    load_ns: float = 0.0  # by which prefills took longer for what they loaded
    computing_ns: float = 0.0  # what they would have taken to compute that instead

    def add(self, lost_tokens: int, loaded_tokens: int, load_ns: int, computing_ns: int) -> None:
        """Learn one turn: of its context, so much was computed again, and so much was loaded."""
        self.left_tokens = _FADE * self.left_tokens + lost_tokens + loaded_tokens
        self.loaded_tokens = _FADE * self.loaded_tokens + loaded_tokens
        self.load_ns = _FADE * self.load_ns + load_ns
        self.computing_ns = _FADE * self.computing_ns + computing_ns

    @property
    def kept_ratio(self) -> float:
        """The share of what left the device that was found below it; 0 while nothing is known."""
        return self.loaded_tokens / self.left_tokens if self.left_tokens else 0.0

    @property
    def load_ratio(self) -> float:
        """What loading takes of computing the same, at most 1; 1 while nothing is known."""
        return min(1.0, self.load_ns / self.computing_ns) if self.computing_ns else 1.0

"""What a prefill costs, fitted to those that were seen, and what it costs to load a context instead.

**Paper**: Continuum §5.2 fits a quadratic curve to a profile made offline. Ours is fitted while the engine serves,
with older observations fading: computing ``new`` tokens behind ``cached`` ones attends to both, so it takes

    linear * new + square * ((cached + new)^2 - cached^2)
"""

from dataclasses import dataclass

_FADE = 0.995  # half of the weight is in the latest 140
_KILO = 1000.0  # sizes in thousands keep the sums of a like magnitude
_SINGULAR = 1e-6
_FADE_BY_TURN = 0.98  # half of the weight is in the latest 35


@dataclass(slots=True, kw_only=True)
class PrefillCost:
    """Sums of a least-squares fit through the origin; ``x`` is new tokens, ``y`` the growth of the square, both
    in thousands (of tokens, of squared thousands)."""

    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0
    xt: float = 0.0
    yt: float = 0.0

    def add(self, new_tokens: int, cached_tokens: int, duration_ns: int) -> None:
        x, before = new_tokens / _KILO, cached_tokens / _KILO
        y = (before + x) ** 2 - before**2
        self.xx = _FADE * self.xx + x * x
        self.xy = _FADE * self.xy + x * y
        self.yy = _FADE * self.yy + y * y
        self.xt = _FADE * self.xt + x * duration_ns
        self.yt = _FADE * self.yt + y * duration_ns

    def estimate_ns(self, tokens: int) -> int:
        """Of a prompt of which nothing is cached; 0 while nothing was seen."""
        return self.part_ns(tokens, 0)

    def part_ns(self, new_tokens: int, cached_tokens: int) -> int:
        """Of ``new_tokens`` behind cached ones; 0 while nothing was seen."""
        linear, square = self._fit()
        x, before = new_tokens / _KILO, cached_tokens / _KILO
        return round(linear * x + square * ((before + x) ** 2 - before**2))

    def _fit(self) -> tuple[float, float]:
        """Neither is negative: one that would be is left out."""
        if not self.xx:
            return 0.0, 0.0
        spread = self.xx * self.yy - self.xy * self.xy
        if spread > _SINGULAR * self.xx * self.yy:
            linear = (self.xt * self.yy - self.yt * self.xy) / spread
            square = (self.yt * self.xx - self.xt * self.xy) / spread
            if linear >= 0 and square >= 0:
                return linear, square
            if linear < 0:
                return 0.0, self.yt / self.yy
        return self.xt / self.xx, 0.0


@dataclass(slots=True, kw_only=True)
class EvictionCost:
    """What it costs to have a context back that gave way on the device, in parts of computing it again.

    Where memory of the host, or a disk, lies below the device, a context that had to leave may still be there. To
    load it costs what the turn's prefill takes longer for it: nothing where loading hides behind computing, as much
    as computing where the way up is slow. Both are seen in the turns that come back to such a context
    (docs/adr/0016): sums over those, older ones fading.
    """

    left_tokens: float = 0.0
    loaded_tokens: float = 0.0
    load_ns: float = 0.0  # by which prefills took longer for what they loaded
    computing_ns: float = 0.0  # what they would have taken to compute that instead

    def add(self, lost_tokens: int, loaded_tokens: int, load_ns: int, computing_ns: int) -> None:
        self.left_tokens = _FADE_BY_TURN * self.left_tokens + lost_tokens + loaded_tokens
        self.loaded_tokens = _FADE_BY_TURN * self.loaded_tokens + loaded_tokens
        self.load_ns = _FADE_BY_TURN * self.load_ns + load_ns
        self.computing_ns = _FADE_BY_TURN * self.computing_ns + computing_ns

    @property
    def host_hit_ratio(self) -> float:
        """The share of what left the device that was found below it; 0 while nothing is known."""
        return self.loaded_tokens / self.left_tokens if self.left_tokens else 0.0

    @property
    def reload_cost_ratio(self) -> float:
        """What loading takes of computing the same, at most 1; 1 while nothing is known."""
        return min(1.0, self.load_ns / self.computing_ns) if self.computing_ns else 1.0

"""What decisions cost and gained, as a picture: a bar to each side, one group below the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from controlplane.core.errors import ConfigError
from controlplane.lab.compare.style import PRESET_COLOURS, tidy

_MOST_BARS = 30
_COST, _GAIN = PRESET_COLOURS["mars"], PRESET_COLOURS["continuum"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A group's two sides, in seconds of an engine."""

    name: str
    cost_s: float
    gain_s: float


def draw_regret(path: Path, bars: Sequence[Bar], by: str) -> None:
    """Write the picture; of very many groups those that cost or gained most.

    Raises ``ConfigError`` for a name that ends in neither .svg nor .png, and where the file cannot be written.
    """
    if path.suffix not in (".svg", ".png"):
        raise ConfigError(f"plot: expected a file that ends in .svg or .png, got {path}", field="plot")
    shown = sorted(bars, key=lambda bar: -max(bar.cost_s, bar.gain_s))[:_MOST_BARS]
    shown.sort(key=lambda bar: bar.cost_s - bar.gain_s)
    figure = Figure(figsize=(8.6, 1.2 + 0.32 * max(1, len(shown))), layout="constrained")
    axes = figure.subplots()
    tidy(axes)
    axes.grid(visible=True, axis="x")
    axes.grid(visible=False, axis="y")
    names = [bar.name[:60] for bar in shown]
    axes.barh(names, [-bar.cost_s for bar in shown], color=_COST, label="cost")
    axes.barh(names, [bar.gain_s for bar in shown], color=_GAIN, label="gain")
    axes.plot([bar.gain_s - bar.cost_s for bar in shown], names, "k|", markersize=10, label="net")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("seconds of an engine")
    axes.set_title(f"What decisions cost and gained, by {by}", loc="left", fontsize=10)
    axes.legend(fontsize=8.5, frameon=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise ConfigError(f"plot: cannot write {path}: {error.strerror}", field="plot") from error

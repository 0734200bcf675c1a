"""The look of the plots: one colour per preset, and colours that follow the page into dark mode.

matplotlib draws with stand-in colours; ``themed`` swaps each for a CSS variable that the page defines twice.
"""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK = "#010101"
MUTED = "#020202"
GRID = "#030303"
PAPER = "#040404"
KV = "#050505"
CPU = "#060606"
_VARIABLES = {INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "paper", KV: "kv", CPU: "cpu"}

PRESET_COLOURS = {
    "fcfs": "#7d8590",
    "penstock": "#e8590c",
    "mars": "#c0362c",
    "continuum": "#1c9e77",
    "thunderagent": "#7b61c9",
    "mori": "#b8860b",
    "autellix": "#2f7fd1",
    "infercept": "#c2508f",
    "mars-paper": "#f2c14e",
    "concur": "#3aa6a0",
}
# How a line is drawn where many presets meet: not by its colour alone.
_MARKS = {
    "fcfs": ("o", "-"),
    "autellix": ("s", "-"),
    "infercept": ("^", "-"),
    "continuum": ("D", "-"),
    "thunderagent": ("v", "-"),
    "penstock": ("o", "-"),
    "mars": ("P", "-"),
}
_OTHER_MARKS = (("s", "--"), ("^", "-."), ("D", ":"), ("v", "--"), ("P", "-."), ("X", ":"))
_OTHERS = ("#2a9db0", "#8a9a00", "#a0522d", "#5b6ee1", "#d14343")

_RC: dict[Any, Any] = {
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "penstock",
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.color": MUTED,
    "ytick.labelsize": 8.5,
}


def colour_of(preset: str) -> str:
    """The preset's colour, the same in every plot and every report."""
    known = PRESET_COLOURS.get(preset)
    return known or _OTHERS[sum(preset.encode()) % len(_OTHERS)]


def marks_of(presets: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """Marker and line style of each preset; variants and presets that this page does not know are broken lines."""
    others = [name for name in presets if name not in _MARKS]
    broken = {name: _OTHER_MARKS[index % len(_OTHER_MARKS)] for index, name in enumerate(others)}
    return {name: _MARKS.get(name) or broken[name] for name in presets}


@contextmanager
def plot_style() -> Iterator[None]:
    """matplotlib as the report wants it, and unchanged afterwards."""
    with mpl.rc_context(_RC):
        yield


def tidy(axes: Axes) -> None:
    """Horizontal grid lines behind the data, no tick marks."""
    axes.grid(visible=True, axis="y")
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.margins(x=0)


def svg_of(figure: Figure) -> str:
    """The figure as inline SVG that follows the page's theme."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return themed(buffer.getvalue())


def themed(svg: str) -> str:
    """Drop what only a file of its own needs, and let the page's CSS choose colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, count=1, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt" ', "", svg, count=1)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r'(?<= d=")[^"]*', _short_path, svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return svg


def _short_path(path: re.Match[str]) -> str:
    """A tenth of a point is finer than a screen shows, and a third of the bytes."""
    return re.sub(r"(\.\d)\d+", r"\1", re.sub(r"\s*\n\s*", "", path[0]))

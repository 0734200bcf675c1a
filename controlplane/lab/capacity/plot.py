"""What agents get against how many there are."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from controlplane.lab.capacity.slo import Point, Slo
from controlplane.lab.compare.style import MUTED, PAPER, colour_of, plot_style, svg_of, tidy

_LINES = ("-", "--", "-.", ":")


def curves_svg(systems: Sequence[tuple[str, str, Sequence[Point]]], slo: Slo) -> str:
    """Two panels over the agents, a line for each system (its name, its preset, its points)."""
    panels = (
        ("ttft_p90_s", "p90 TTFT, hold included (s)", slo.ttft_s),
        ("tokens_per_s_p10", "tokens/s that nine agents in ten get", slo.tokens_per_s),
    )
    with plot_style():
        figure = Figure(figsize=(11.0, 3.8), layout="constrained")
        for axes, (field, title, bound) in zip(figure.subplots(1, 2), panels, strict=True):
            tidy(axes)
            drawn: dict[str, int] = {}
            for name, preset, points in systems:
                colour = colour_of(preset or name)
                line = _LINES[drawn.setdefault(preset, -1) + 1 & 3]
                drawn[preset] += 1
                ordered = sorted(points, key=lambda each: each.agents)
                agents, values = [each.agents for each in ordered], [getattr(each, field) for each in ordered]
                axes.plot(agents, values, color=colour, linestyle=line, linewidth=1.7, label=name)
                faces = [PAPER if each.broken(slo) else colour for each in ordered]
                axes.scatter(agents, values, s=26, c=faces, edgecolors=colour, zorder=3)
            axes.axhline(bound, color=MUTED, linewidth=1.0, linestyle=":")
            axes.set_title(title)
            axes.set_xlabel("agents at once")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_ylim(bottom=0, top=None if field.startswith("tokens") else 4 * bound)
            axes.margins(x=0.05)
        figure.axes[0].legend()
        return svg_of(figure)

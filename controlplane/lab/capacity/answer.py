"""The search for each system, and its answer as a table, as JSON and as a page with a plot."""

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from rich.table import Table

from controlplane.lab.capacity.plot import curves_svg
from controlplane.lab.capacity.search import Found, most
from controlplane.lab.capacity.slo import Point, Slo
from controlplane.lab.capacity.systems import System
from controlplane.lab.compare.html import filled, write
from controlplane.lab.compare.rows import UNKNOWN
from controlplane.lab.compare.terminal import without_secrets
from controlplane.lab.console import Console

_HEADER = ("system", "agents", "TTFT p90", "tokens/s", "decode", "hits")  # 80 columns have room for these
_SAYS = (
    "The most agents at once that keep the SLO: nine turns in ten have their first token within {slo.ttft_s:g} s, "
    "holds included, and nine agents in ten get {slo.tokens_per_s:g} tokens/s over all their waits for replies. "
    "Decode is tokens/s after a turn's first, hits are the share of prompt tokens that were cached."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was found for one system."""

    system: System
    found: Found
    points: dict[int, Point]
    slo: Slo

    @property
    def agents(self) -> int:
        return self.found.number

    @property
    def number(self) -> str:
        """How many, in words."""
        return str(self.agents) if self.found.fails_at else f">= {self.agents}"

    @property
    def broke(self) -> str:
        """What broke first beyond the answer; empty: nothing did."""
        if not (at := self.found.fails_at):
            return ""
        broken = ", ".join(self.points[at].broken(self.slo))
        return f"{self.system.name} breaks the SLO at {at} agents: {broken}."

    def row(self) -> list[str]:
        """Its line of the table."""
        got = self.points.get(self.agents)
        if got is None:
            return [self.system.name, self.number, *[UNKNOWN] * 4]
        speeds = (got.tokens_per_s_p10, got.decode_tokens_per_s_p10)
        shown = (f"{got.ttft_p90_s:.1f} s", *[f"{speed:.1f}" for speed in speeds])
        hits = f"{got.cache_hit_ratio:.0%}" if isfinite(got.cache_hit_ratio) else UNKNOWN
        return [self.system.name, self.number, *shown, hits]

    def to_json(self) -> dict[str, Any]:
        """All of it; a figure of nothing is null."""
        tried = [
            {name: value if isfinite(value) else None for name, value in asdict(each).items()}
            | {"broken": each.broken(self.slo)}
            for _, each in sorted(self.points.items())
        ]
        return {
            "system": self.system.name,
            "preset": self.system.preset,
            "host_gb": self.system.host_gb,
            "agents": self.agents,
            "is_at_least": self.found.fails_at is None,
            "holds_again": self.found.holds_again,
            "tried": tried,
        }


def ask(system: System, slo: Slo, limit: int, say: Callable[[str], None]) -> Answer:
    """Search one system's answer; ``say`` is told each number of agents that was tried."""
    points: dict[int, Point] = {}

    def holds(agents: int) -> bool:
        got = points[agents] = system.measure(agents)
        broken = got.broken(slo)
        told = ", ".join(broken) or f"TTFT p90 {got.ttft_p90_s:.1f} s, {got.tokens_per_s_p10:.1f} tokens/s"
        say(f"{system.name}, agents: {agents}, SLO {'broken' if broken else 'kept'}: {told}")
        return not broken

    found = most(holds, first=system.first, limit=limit)
    return Answer(system=system, found=found, points=points, slo=slo)


def verdict(answers: Sequence[Answer]) -> list[str]:
    """What broke each system, each beside the first one with the same host memory, and what a reader must know."""
    lines = [answer.broke for answer in answers if answer.broke]
    for answer in answers:
        stock = next(each for each in answers if each.system.host_gb == answer.system.host_gb)
        if stock is answer or not stock.agents or not stock.found.fails_at:
            continue
        ratio = f"{answer.agents / stock.agents:.2g} times the agents of {stock.system.name}"
        lines.append(f"{answer.system.name}: {'at least ' * (not answer.found.fails_at)}{ratio}.")
    lines.extend(
        f"{answer.system.name} also keeps the SLO at {', '.join(map(str, again))}: more seeds would tell."
        for answer in answers
        if (again := answer.found.holds_again)
    )
    return lines


def show(answers: Sequence[Answer], console: Console | None = None) -> None:
    """Print the table."""
    console, slo = console or Console(), answers[0].slo
    table = Table(header_style="bold")
    for place, name in enumerate(_HEADER):
        table.add_column(name, justify="right" if place else "left", no_wrap=place > 0)
    for answer in answers:
        table.add_row(*answer.row())
    console.print(table)
    for line in (_SAYS.format(slo=slo), *verdict(answers)):
        console.print(line)


def as_json(answers: Sequence[Answer]) -> str:
    """The answers with the SLO that they keep."""
    return json.dumps({"slo": asdict(answers[0].slo), "systems": [each.to_json() for each in answers]}, indent=2)


def save(answers: Sequence[Answer], folder: Path, command: Sequence[str]) -> Path:
    """Write ``capacity.json`` and a page beside it; the page's path. Raises ``ConfigError``."""
    write(as_json(answers), folder / "capacity.json")
    page, slo = folder / "capacity.html", answers[0].slo
    html = filled(
        "capacity.html.j2",
        title="Penstock: agents at once",
        verdict=verdict(answers),
        says=_SAYS.format(slo=slo),
        svg=curves_svg(
            [(each.system.name, each.system.preset, list(each.points.values())) for each in answers], slo
        ),
        header=_HEADER,
        rows=[answer.row() for answer in answers],
        command=shlex.join(without_secrets(command)),
    )
    write(html, page)
    return page

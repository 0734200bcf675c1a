"""What is above the programs: the node, its window and pressure over time, rates, findings, engines."""

from collections.abc import Sequence

from rich.cells import cell_len

from controlplane.operate.printing import duration
from controlplane.operate.tables import (
    ENGINE_CELLS,
    engines_line,
    finding_line,
    has_engines,
    kv_parts,
    lead_line,
    phase_word,
    tools_parts,
)
from controlplane.operate.top.columns import BOTH, HEAD_STYLE, Column, Layout
from controlplane.operate.top.history import STEP_S, History
from controlplane.operate.top.lines import Line, bars, begin_of, fitting, padded, wrapped
from controlplane.operate.top.programs import PHASE_STYLE
from controlplane.wire.control import Fields

_LABEL = 9
_NOW = 15  # right of a plot
_GAUGE = 12
_PLOTS = (("window", "limit", "magenta"), ("active", "active", "green"), ("waiting", "waiting", "yellow"))
_TROUBLE = {"bad": "bold red", "look": "red"}
_ENGINE_COLUMNS = (
    Column(name="engine", rank=0, least=20, keeps=BOTH),
    Column(name="address", rank=8),
    Column(name="standing", rank=1),
    Column(name="KV demand", rank=2),
    *(
        Column(name=name, rank=rank, number=True)
        for name, rank in (("free", 6), ("pinned", 7), ("host", 9), ("turns", 4), ("programs", 3), ("waiting", 5))
    ),
    Column(name="heard", rank=6, number=True),
)


def head(status: Fields, phases: Sequence[Fields], history: History, width: int, height: int) -> list[Line]:
    """The node in about ten lines; with much to tell of what is wrong, up to an eighth of ``height`` more."""
    pressure, text = status.pressure, width - _LABEL
    lines = [
        _title(status, width),
        *_plots(status, history, width),
        _row("because", ((begin_of(status.window.reason, text), ""),)),
        _gauge("KV", pressure.kv_use_ratio, kv_parts(pressure), text, is_over=pressure.kv_overloaded),
        _gauge("CPU", pressure.cpu_use_ratio, tools_parts(pressure), text, is_over=pressure.cpu_overloaded),
        _row("minute", ((fitting(_rates(history), text), ""),)),
    ]
    if status.refusals:
        lines.append(_row("refused", (_refused(status, history, text),)))
    lines.append(_row("phases", _phases(phases, text)))
    if has_engines(status):
        lines.append(_row("engines", ((begin_of(engines_line(status.engines), text), ""),)))
    return lines + _findings(status.findings, width, max(2, height // 8))


def _row(label: str, spans: Line) -> Line:
    return ((padded(label, _LABEL), "bold"), *spans)


def _title(status: Fields, width: int) -> Line:
    parts = [f"preset {status.preset}", f"configuration {status.config.version}", lead_line(status)]
    span = f"plots: the last {duration(_plotted(width) * STEP_S * 10**9)}"
    node = begin_of(status.node, width // 3)
    rest = width - cell_len(node) - len(span) - 4
    summary = padded(fitting(filter(None, parts), rest, "  "), rest)
    return ((node, "bold"), ("  " + summary, ""), ("  " + span, "dim"))


def _plotted(width: int) -> int:
    return max(1, width - _LABEL - _NOW)


def _plots(status: Fields, history: History, width: int) -> list[Line]:
    """The window and who is in it have one scale, who waits has another."""
    pressure = status.pressure
    now = {"limit": status.window.limit, "active": pressure.programs_active, "waiting": pressure.queue_length}
    values = {name: history.columns(name, _plotted(width)) for _, name, _ in _PLOTS}
    most = {name: max(now[name], *(value or 0 for value in found)) for name, found in values.items()}
    scale = dict.fromkeys(("limit", "active"), max(most["limit"], most["active"])) | {"waiting": most["waiting"]}
    lines = []
    for label, name, style in _PLOTS:
        words = f" {now[name]:,}" if now[name] or name != "limit" else " no limit"
        highest = f"  most {most[name]:,.0f}" if most[name] else ""
        lines.append(
            _row(label, ((bars(values[name], scale[name]), style), (fitting((words, highest), _NOW, ""), "")))
        )
    return lines


def _gauge(label: str, ratio: float, parts: Sequence[str], width: int, *, is_over: bool) -> Line:
    filled = min(_GAUGE, round(ratio * _GAUGE))
    bar = (("█" * filled, "red" if is_over else "green"), ("░" * (_GAUGE - filled), "dim"))
    return _row(label, (*bar, (" " + fitting(parts, width - _GAUGE - 1), "")))


def _rates(history: History) -> list[str]:
    rates = history.rates()
    if rates is None:
        return ["nothing is known of it yet"]
    return [
        *([] if rates.hit_ratio is None else [f"hit rate {rates.hit_ratio:.0%}"]),
        f"{_short(rates.prompt_per_s)} prompt + {_short(rates.output_per_s)} output tokens/s",
        *([f"{rates.anonymous_ratio:.1%} unnamed turns"] if rates.anonymous_ratio else []),
        f"{rates.turns_per_s:.1f} turns/s",
    ]


def _short(number: float) -> str:
    return f"{number:,.0f}" if number < 10_000 else f"{number / 1000:,.1f}k"


def _refused(status: Fields, history: History, width: int) -> tuple[str, str]:
    rates = history.rates()
    lately = rates.refused if rates else 0
    codes = sorted(status.refusals, key=lambda each: -each.turns)
    first, *others = (f"{each.turns:,} {each.code}" for each in codes)
    total = sum(each.turns for each in codes)
    words = fitting([f"{lately:,} turns in the last minute; {total:,} in all: {first}", *others], width)
    return words, "red" if lately else ""


def _phases(phases: Sequence[Fields], width: int) -> Line:
    spans: list[tuple[str, str]] = []
    for each in phases:
        words = f"{each.programs:,} {phase_word(each.phase)}"
        words += f" ({each.context_tokens:,} tokens)" if each.programs and width >= 120 else ""
        spans.append((words + "   ", PHASE_STYLE.get(each.phase, "")))
    return tuple(spans)


def _findings(findings: Sequence[Fields], width: int, most: int) -> list[Line]:
    """As much as there is room for, each from its begin; of the others how many there are."""
    lines: list[Line] = []
    for number, each in enumerate(findings):
        left = most - len(lines) - (number + 1 < len(findings))
        if left < 1:
            lines.append(((f"and {len(findings) - number} more findings: see `penstock status`", "red"),))
            break
        style = _TROUBLE.get(each.level, "dim")
        lines += [((part, style),) for part in wrapped(finding_line(each), width, min(left, 2))]
    return lines


def engine_places(height: int) -> int:
    """How many engines a screen shows: those in trouble and the fullest come first."""
    return max(2, height // 8)


def engine_lines(listed: Fields, layout: Layout, width: int) -> list[Line]:
    """A row for each engine."""
    told = {name: [text(row) for row in listed.engines] for name, text in ENGINE_CELLS.items()}
    fitted = layout.fit([each for each in _ENGINE_COLUMNS if any(told[each.name])], told, width)
    lines: list[Line] = [((fitted.head(), HEAD_STYLE),)]
    for number, engine in enumerate(listed.engines):
        texts = (told[column.name][number] for column, _ in fitted.columns)
        lines.append(((fitted.line(texts), _engine_style(engine)),))
    left = listed.total - len(listed.engines)
    return [*lines, ((f"and {left:,} more engines: see `penstock engines`", "dim"),)] if left > 0 else lines


def _engine_style(engine: Fields) -> str:
    if engine.standing == "gone" or engine.silent:
        return "red"
    return "yellow" if engine.standing == "draining" or engine.passive else ""

"""The picture of ``penstock top``."""

import io
from dataclasses import fields
from typing import Any

from rich.console import Console

from controlplane.daemon.status.engines import EngineRow
from controlplane.operate.tables import has_engines
from controlplane.operate.top import History, screen
from controlplane.wire.control import METHODS, Fields


def empty(method: str) -> Any:
    """A reply in which nothing is set."""
    return METHODS[method].decode_reply(b"")


def status(**pressure: Any) -> Fields:
    found = empty("GetStatus")
    found.node, found.preset, found.bus_connected = "gpu7", "mars", True
    found.config.version = 3
    found.window.limit, found.window.window, found.window.reason = 4, 4.5, "grew: slack"
    for name, value in pressure.items():
        setattr(found.pressure, name, value)
    return found  # type: ignore[no-any-return]


def program(name: str, phase: str, **more: Any) -> Fields:
    row = {"program_id": name, "status": "active", "phase": phase, "turns": 3, "kv_tier": "hbm"}
    texts = dict.fromkeys(("tool", "replica", "waits_for"), "")
    numbers = dict.fromkeys(("queue_position", "idle_ns", "hold_ns", "retained_ns", "moves"), 0)
    more = {"context_tokens": 12_000, "idleness_ratio": 0.25, "held_by_operator": False, **more}
    return Fields(**{**row, **texts, **numbers, **more})


def drawn(
    seen: Fields,
    programs: list[Fields],
    history: History | None = None,
    height: int = 24,
    more: int = 0,
    engines: Fields | None = None,
    width: int = 120,
) -> list[str]:
    """``more``: programs that the daemon counts and does not list."""
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    phases = [
        Fields(phase=phase, programs=len(them), context_tokens=sum(each.context_tokens for each in them))
        for phase in ("reasoning", "acting", "held")
        if (them := [each for each in programs if each.phase == phase])
    ]
    listed = Fields(programs=programs, total=len(programs) + more, phases=phases)
    console.print(screen(seen, listed, history or History(), engines, width=width, height=height))
    return console.export_text().splitlines()


def test_window_pressures_and_programs_are_there() -> None:
    history = History()
    for active in (0, 2, 4):
        history.add(status(programs_active=active, queue_length=1))
    seen = status(
        programs_active=4, queue_length=1, kv_total_blocks=1000, kv_use_ratio=0.91, cpus=8.0, cpu_use_ratio=0.5
    )
    lines = drawn(
        seen,
        [
            program("acts", "acting", tool="pytest", idle_ns=2_000_000_000, retained_ns=5_000_000_000),
            program("waits", "held", status="waiting", queue_position=1, hold_ns=61_000_000_000),
            program("thinks", "reasoning"),
        ],
        history,
    )
    text = "\n".join(lines)
    assert "gpu7  preset mars  configuration 3" in lines[0]
    assert "▅█ 4" in text  # active: nothing, half, all of it
    assert "91% of 1,000 blocks in demand" in text
    assert "1 reasoning (12,000 tokens)   1 acting (12,000 tokens)   1 held (12,000 tokens)" in text
    names = [line.split()[0] for line in lines if line.startswith(("acts", "waits", "thinks"))]
    assert names == ["thinks", "waits", "acts"]
    assert "waiting #1" in text
    assert "1m01s" in text
    assert "pytest" in text


def engine(place: str, **more: Any) -> Fields:
    row = EngineRow(**{"place": place, "kv_total_blocks": 1000, "kv_use_ratio": 0.5, "heard_ns": 10**9, **more})
    return Fields(**{field.name: getattr(row, field.name) for field in fields(row)})


def test_each_of_several_engines_has_a_row_and_programs_say_where_they_are() -> None:
    seen = status()
    seen.engines.known, seen.engines.serving, seen.engines.gone, seen.engines.moves = 3, 2, 1, 12
    seen.fence = 41
    engines = Fields(
        engines=[
            engine("gpu6/engine-30000", address="10.0.0.6:30000", programs=2),
            engine("gpu7/engine-30000", standing="gone", silent=True, heard_ns=0),
        ],
        total=3,
        moves=[],
    )
    programs = [
        program("a", "acting", replica="gpu6/engine-30000", moves=2),
        program("b", "reasoning", replica="gpu7/engine-30000"),
    ]
    lines = drawn(seen, programs, engines=engines, width=180)
    text = "\n".join(lines)
    assert "3 engines: 2 serving, 1 gone; 12 moves between them  leads, by lease 41" in lines[0]
    assert "gpu6/engine-30000 (10.0.0.6:30000)" in text
    assert "gone, does not answer" in text
    assert "… and 1 more engines" in text
    (row,) = (line for line in lines if line.startswith("a "))
    assert row.split()[-2:] == ["gpu6/engine-30000", "2"]
    assert len(lines) == 24


def test_one_engine_that_serves_has_no_table() -> None:
    seen = status()
    seen.engines.known = seen.engines.serving = 1
    assert not has_engines(seen)
    seen.engines.serving, seen.engines.draining = 0, 1
    assert has_engines(seen)


def test_a_thousand_programs_fit_and_the_rest_is_counted() -> None:
    lines = drawn(status(), [program(f"p{n}", "acting") for n in range(17)], height=30, more=983)
    assert len(lines) == 30
    assert sum(line.startswith("p") for line in lines) == 1 + 17, "the head of the table, and a row each"
    assert any(line.startswith("… and 983 more") for line in lines)

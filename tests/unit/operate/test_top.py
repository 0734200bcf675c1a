"""``penstock top``: its screens, compared with those that lie in ``screens/``, and its keys.

After a change that is meant, write the screens anew, and look at what differs:
``PENSTOCK_WRITE_SCREENS=1 pytest tests/unit/operate/test_top.py``.
"""

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual.pilot import Pilot

from controlplane.core.model.errors import EngineUnavailable
from controlplane.daemon.observe.samples import Sample
from controlplane.daemon.status.engines import EngineRow
from controlplane.operate.top.app import Lines, Top, strip
from controlplane.operate.top.screen import Look, Screen
from controlplane.wire.control import METHODS, Fields

SCREENS = Path(__file__).parent / "screens"
S = 10**9
SIZES = ((80, 24), (200, 50))
NOW_MS = 1_800_000_000_000
TASKS = ("django__django-11820", "scikit-learn__scikit-learn-25973", "matplotlib__matplotlib-26291")


def empty(method: str) -> Any:
    """A reply in which nothing is set."""
    return METHODS[method].decode_reply(b"")


def fill(found: Any, **values: Any) -> Any:
    for name, value in values.items():
        assert hasattr(found, name), name
        setattr(found, name, value)
    return found


def status() -> Any:
    found = fill(empty("GetStatus"), node="gpu7", preset="mars", bus_connected=True)
    found.config.version = 3
    fill(found.window, limit=24, window=24.5, reason="grew by 1: the pool has slack")
    fill(found.pressure, kv_total_blocks=200_000, kv_use_ratio=0.91, kv_free_blocks=1_200, kv_overloaded=True)
    fill(
        found.pressure, kv_evictable_blocks=31_000, kv_retained_blocks=12_400, programs_active=22, queue_length=310
    )
    fill(found.pressure, cpus=16.0, cpu_use_ratio=0.5, tools_active=9, tools_waiting=2, tool_slowdown_ratio=1.25)
    found.refusals = [Fields(code="queue_full", turns=340), Fields(code="draining", turns=2)]
    return found


def finding(name: str, level: str, found: str) -> Fields:
    return Fields(name=name, level=level, found=found, advice="see `penstock doctor`, which says what to do")


def program(number: int, **more: Any) -> Fields:
    """One of many, whose name has more than forty characters."""
    phase = ("reasoning", "acting", "held", "held", "idle")[number % 5]
    kind = METHODS["ListPrograms"]
    row = kind.decode_reply(kind.encode_reply(Fields(programs=[Fields()]))).programs[0]
    fill(row, program_id=f"swe-bench-verified/{TASKS[number % 3]}/attempt-{number}", phase=phase, kv_tier="hbm")
    fill(row, turns=number % 40, context_tokens=1_000 + 937 * number, kv_blocks=60 * number, age_ns=number * 90 * S)
    fill(row, idleness_ratio=number % 10 / 10, status="active")
    if phase == "held":
        why = "no room for what it will grow to" if number % 2 else "all slots are taken"
        fill(row, status="waiting", queue_position=number, hold_ns=number * 7 * S, waits_for=why, kv_tier="none")
    elif phase == "acting":
        fill(row, tool="pytest", idle_ns=number * S, retained_ns=max(0, 90 - number) * S)
    elif phase == "idle":
        fill(row, idle_ns=number * 3 * S)
    return fill(row, **more)


def listed(programs: list[Fields], total: int = 0) -> Fields:
    phases = [
        Fields(phase=phase, programs=len(them), context_tokens=sum(each.context_tokens for each in them))
        for phase in ("reasoning", "acting", "held", "idle")
        for them in [[each for each in programs if each.phase == phase]]
    ]
    return Fields(programs=programs, total=total or len(programs), phases=phases)


def samples() -> list[Fields]:
    """Ten minutes by ten seconds, then five by seconds: the window grows, and who waits comes and goes."""
    ends = [NOW_MS - 900_000 + 10_000 * n for n in range(1, 61)]
    ends += [NOW_MS - 300_000 + 1000 * n for n in range(1, 301)]
    found = []
    for before, at in zip([ends[0] - 10_000, *ends], ends, strict=False):
        minutes = (at - NOW_MS) / 60_000 + 15
        found.append(
            Sample(
                at_ms=at,
                span_s=(at - before) / 1000,
                limit=8 + minutes,
                active=max(0.0, 6 + minutes),
                waiting=310 * abs(minutes % 6 - 3) / 3,
                turns=4,
                anonymous_turns=at // 1000 % 25 == 0,
                prompt_tokens=48_000,
                cached_tokens=36_500,
                output_tokens=900,
                refused=at // 1000 % 20 == 0,
            )
        )
    return [Fields(**{field.name: getattr(each, field.name) for field in fields(Sample)}) for each in found]


def engine(place: str, **more: Any) -> Fields:
    row = EngineRow(**{"place": place, "kv_total_blocks": 100_000, "kv_use_ratio": 0.9, "heard_ns": S, **more})
    return Fields(**{field.name: getattr(row, field.name) for field in fields(row)})


class Daemon:
    """Stands for one that answers: what it is asked is in ``asked``."""

    def __init__(self) -> None:
        self.status, self.programs = status(), [program(number) for number in range(1, 351)]
        self.samples, self.engines = samples(), [engine("gpu7/engine-30000")]
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.gone = ""

    @contextlib.contextmanager
    def connect(self) -> Iterator[Any]:
        yield self

    def call(self, method: str, **asked: Any) -> Fields:
        if self.gone:
            raise EngineUnavailable(self.gone)
        self.asked.append((method, asked))
        if method == "ListPrograms":
            return listed([each for each in self.programs if asked["contains"] in each.program_id])
        if method == "ListSamples":
            return Fields(samples=[each for each in self.samples if each.at_ms > asked["after_ms"]])
        if method == "ListEngines":
            return Fields(engines=self.engines[: asked["limit"]], total=len(self.engines), moves=[])
        return self.status  # type: ignore[no-any-return]


@contextlib.asynccontextmanager
async def shown(daemon: Daemon, width: int = 80, height: int = 24) -> AsyncIterator[Pilot[None]]:
    """``top`` in a terminal of that size, after its first look."""
    app = Top(daemon.connect)
    async with app.run_test(size=(width, height)) as pilot:
        await until(pilot, "because")
        yield pilot


def text(pilot: Pilot[None]) -> list[str]:
    width, height = pilot.app.query_one(Lines).size
    lines = [pilot.app.query_one(Lines).render_line(y) for y in range(height)]
    assert {line.cell_length for line in lines} == {width}
    return [line.text.rstrip() for line in lines]


async def until(pilot: Pilot[None], wanted: str) -> list[str]:
    for _ in range(200):
        lines = text(pilot)
        if any(wanted in line for line in lines):
            return lines
        await pilot.pause(0.02)
    raise AssertionError(f"no {wanted} in\n" + "\n".join(lines))


def same(name: str, lines: list[str]) -> None:
    file = SCREENS / f"{name}.txt"
    if os.environ.get("PENSTOCK_WRITE_SCREENS"):
        file.write_text("\n".join(lines) + "\n")
    assert lines == file.read_text().splitlines()


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_screen(size: tuple[int, int]) -> None:
    async with shown(Daemon(), *size) as pilot:
        same(f"node-{size[0]}x{size[1]}", text(pilot))


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_the_screen_of_a_fleet_in_trouble(size: tuple[int, int]) -> None:
    daemon = Daemon()
    places = [f"gpu{number}.rack-12.cluster.example/engine-30000" for number in range(12)]
    daemon.engines = [engine(place, address=f"10.0.0.{n}:30000", programs=n) for n, place in enumerate(places)]
    fill(daemon.engines[0], standing="gone", silent=True, heard_ns=0)
    fill(daemon.status, node="fleet", fence=41)
    fill(daemon.status.engines, known=12, serving=11, gone=1, silent=1, moves=1_284)
    daemon.status.findings = [
        finding("engine_silent", "bad", f"{places[0]} serves and has not been heard for 3m12s"),
        finding("config_refused", "look", "penstock.toml:3: $.window_max: expected 1 <= window_max"),
        finding("draining", "note", "an operator drains the node"),
    ]
    daemon.programs = [program(n, replica=places[n % 12], tenant=("lab", "web")[n % 2]) for n in range(1, 30)]
    async with shown(daemon, *size) as pilot:
        same(f"fleet-{size[0]}x{size[1]}", text(pilot))


@pytest.mark.parametrize("panel", ["", "details", "keys"])
def test_each_size_is_filled_and_nothing_goes_beyond_it(panel: str) -> None:
    daemon = Daemon()
    fill(daemon.status.engines, known=2, serving=2)
    daemon.status.findings = [finding("engine_silent", "bad", "gpu0 " * 40)] * 7
    screen = Screen(panel=panel, lost="no daemon serves node 'gpu7' here: start one", contains="x" * 50)
    engines = Fields(engines=daemon.engines * 2, total=5, moves=[])
    for width in (0, 1, 2, 7, 20, 33, 79, 120, 301):
        for height in (0, 1, 2, 5, 23, 60):
            screen.take(Look(status=daemon.status, listed=listed(daemon.programs[:30]), engines=engines))
            screen.programs.move(1)
            screen.lost = "no daemon"
            lines = [strip(line, width).text for line in screen.lines(width, height)]
            assert len(lines) == (height if width else 0)
            assert {cell_len(line) for line in lines} <= {width}


def names(pilot: Pilot[None]) -> list[str]:
    """The programs on the screen."""
    return [line.split()[0] for line in text(pilot) if "/attempt-" in line and not line.startswith("program  ")]


async def test_arrows_select_a_program_that_stays_on_its_line_wherever_others_go() -> None:
    daemon = Daemon()
    async with shown(daemon) as pilot:
        assert text(pilot)[-1].endswith("1-12 of 350")
        await pilot.press("pagedown")
        assert names(pilot)[0].endswith("attempt-5")
        await pilot.press("pagedown", "down")
        selected = names(pilot)[-1]
        assert selected.endswith("attempt-125")
        assert text(pilot)[-1].endswith("14-25 of 350")
        daemon.programs = [each for each in daemon.programs if each.turns]  # eight of these end
        await until(pilot, "of 342")
        assert names(pilot)[-1] == selected
        await pilot.press("end")
        assert text(pilot)[-1].endswith("331-342 of 342")
        await pilot.press("home")
        assert text(pilot)[-1].endswith("1-12 of 342")


async def test_enter_shows_all_that_is_known_of_a_program_also_when_it_is_gone() -> None:
    daemon = Daemon()
    daemon.programs = [program(7, parent_id="root", tenant="lab"), program(9)]
    async with shown(daemon) as pilot:
        await pilot.press("down", "enter")
        lines = await until(pilot, "no room for what")
        same("details-80x24", lines)
        daemon.programs = daemon.programs[1:]
        await until(pilot, "it has ended, or is no longer listed")
        await pilot.press("escape")
        assert len(names(pilot)) == 1
        await pilot.press("question_mark")
        same("keys-80x24", await until(pilot, "sort by the next"))


async def test_a_filter_is_the_daemons() -> None:
    daemon = Daemon()
    async with shown(daemon) as pilot:
        await pilot.press("slash")
        await until(pilot, "Enter show programs with this")
        await pilot.press(*"t-35", "enter")
        lines = await until(pilot, "1-2 of 2")
        assert "'t-35'" in lines[-1]
        assert daemon.asked[-2:][0] == ("ListPrograms", {"contains": "t-35"})
        await pilot.press("slash", "q", "enter")
        await until(pilot, "no program has 'q'")
        await pilot.press("escape")
        await until(pilot, "of 350")


async def test_sorted_by_the_columns_on_the_screen_one_after_another() -> None:
    async with shown(Daemon()) as pilot:
        await pilot.press("s")
        assert "program ▲" in text(pilot)[10]
        assert names(pilot)[0].endswith("django__django-11820/attempt-102"[-22:])
        await pilot.press("S", "S")
        assert "idle ▼" in text(pilot)[10]
        assert names(pilot)[0].endswith("attempt-349")
        await pilot.press("greater_than_sign")
        assert "▲" not in text(pilot)[10]


async def test_one_look_a_second_and_only_the_samples_that_are_new() -> None:
    daemon = Daemon()
    async with shown(daemon) as pilot:
        await pilot.pause(2.5)
    asked = [fields for method, fields in daemon.asked if method == "ListSamples"]
    assert [each["after_ms"] for each in asked[:2]] == [0, NOW_MS]
    assert len(asked) <= 4
    assert "ListEngines" not in dict(daemon.asked), "one engine that serves has no table"


async def test_a_daemon_that_goes_is_told_of_and_asked_again() -> None:
    daemon = Daemon()
    async with shown(daemon) as pilot:
        daemon.gone = "no daemon serves node 'gpu7' here"
        lines = await until(pilot, "no daemon serves node 'gpu7' here")
        assert lines[1].startswith("The daemon has not answered for ")
        assert names(pilot), "what was seen last stays"
        daemon.gone = ""
        while "not answered" in text(pilot)[1]:
            await pilot.pause(0.05)


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_it_ends_by_a_key_also_while_a_filter_is_typed(key: str) -> None:
    async with shown(Daemon()) as pilot:
        if key == "ctrl+c":
            await pilot.press("slash")
        await pilot.press(key)
        assert not pilot.app.is_running

"""A question of the page: what of the past it is about, who answers it, and what is told meanwhile."""

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from anyio import create_task_group
from support.daemon_process import eventually
from support.disks import PromptDisk

from controlplane.config import Config, Resolved
from controlplane.core import events as ev
from controlplane.core.errors import ConfigError
from controlplane.core.presets import PRESETS
from controlplane.shell.shadow import Replayer
from controlplane.shell.stretch import Stretch
from controlplane.shell.what_if import BusyError, Question, Recorded, WhatIf, WhatIfView
from controlplane.wire.log import Header, LogWriter

S = 10**9
STRETCH = '{"since_s": 0.0, "until_s": 20.0, "programs": 3}'
ANSWER = f'{{"format": 1, "stretch": {STRETCH}, "change": {{"hit_rate": {{"value": 0.1}}}}}}'
SAYS = f"print({ANSWER!r})"


def command(folder: Path, text: str) -> tuple[str, ...]:
    """A program that stands for `penstock what-if`, and writes down what it was asked."""
    path = folder / "what_if_double.py"
    seen = folder / "seen"
    path.write_text(f"import sys, time\nopen({str(seen)!r}, 'w').write(' '.join(sys.argv[1:]))\n{text}\n")
    return (sys.executable, str(path))


@pytest.fixture
def record(tmp_path: Path) -> Iterator[LogWriter]:
    """A record whose first event came a second after it began."""
    with LogWriter(tmp_path / "run.jsonl", Header(node="test", preset="fcfs", config="")) as writer:
        writer.state("{}", 100 * S)
        writer.event(ev.ProgramEnded(program_id="p"), 101 * S)
        yield writer


@pytest.fixture
def stretch(tmp_path: Path) -> Iterator[Stretch]:
    """The shadow's, whose first event came two seconds after it began."""

    def head(now_ns: int) -> tuple[Header, str]:
        return Header(node="test", preset="fcfs", config=""), "{}"

    made = Stretch(tmp_path / "shadow", 600 * S, head, PromptDisk())
    made.turn(200 * S)
    made.write([(202 * S, [ev.ProgramEnded(program_id="p")])], None)
    yield made
    made.drop()


RESOLVED = Resolved(
    config=Config(preset="fcfs", policies=PRESETS["fcfs"]),
    origins={"admission": "penstock.toml:3", "admission.window": "penstock.toml:4"},
)


def made(folder: Path, recorded: Recorded, text: str = SAYS) -> WhatIf:
    return WhatIf(lambda: recorded, lambda: RESOLVED, lambda: 300 * S, Replayer(command(folder, text)))


@asynccontextmanager
async def answering(what_if: WhatIf) -> AsyncIterator[None]:
    async with create_task_group() as group:
        group.start_soon(what_if.keep)
        yield
        group.cancel_scope.cancel()


async def standing(what_if: WhatIf, wanted: str) -> WhatIfView:
    async def look() -> bool:
        return what_if.view().standing == wanted

    await eventually(look, what=f"{wanted}, but {what_if.view()}")
    return what_if.view()


async def begins(folder: Path) -> None:
    """Return once another process has begun: one that is cancelled as it is made is nobody's to end."""

    async def begun() -> bool:
        return (folder / "seen").exists()

    await eventually(begun, what="the replay's process")
    (folder / "seen").unlink()


def seen(folder: Path) -> list[str]:
    return (folder / "seen").read_text().split()


@pytest.mark.asyncio
async def test_a_stretch_of_the_record_is_replayed_with_what_was_asked(tmp_path: Path, record: LogWriter) -> None:
    what_if = made(tmp_path, Recorded(record=record))
    question = Question(
        since_ns=111 * S,
        until_ns=131 * S,
        preset="penstock",
        settings=("admission.beta=0.6",),
        pool_tokens="+20%",
        engines="-1",
        agents="2x",
    )
    async with answering(what_if):
        what_if.ask(question)
        view = await standing(what_if, "done")
    assert view.answer is not None
    assert view.answer.change["hit_rate"].value == 0.1
    log, *options, json = seen(tmp_path)
    assert (Path(log), json) == (tmp_path / "run.jsonl", "--json")
    assert sorted(options) == [
        "--agents=2x",
        "--engines=-1",
        "--pool-tokens=+20%",
        "--preset=penstock",
        "--set=admission.beta=0.6",
        "--since=10.000",
        "--until=30.000",
    ]
    assert (view.kept_by, view.began_ns, view.how_to) == ("record", 100 * S, "")
    assert view.shadow == [
        "[shadow]",
        'preset = "penstock"',
        'settings = ["admission.beta=0.6","admission.window="]',
    ], "a shadow keeps what the file says of policies, unless that is taken out"


@pytest.mark.asyncio
async def test_what_the_shadow_keeps_is_replayed_where_it_is_the_shorter_whole(
    tmp_path: Path, record: LogWriter, stretch: Stretch
) -> None:
    both = Recorded(record=record, stretch=stretch)
    what_if = made(tmp_path, both)
    async with answering(what_if):
        what_if.ask(Question(since_ns=212 * S, until_ns=232 * S))
        await standing(what_if, "done")
        assert Path(seen(tmp_path)[0]).name == "stretch.jsonl"
        assert seen(tmp_path)[1:3] == ["--since=10.000", "--until=30.000"]
        what_if.ask(Question(since_ns=150 * S, until_ns=232 * S))
        await standing(what_if, "done")
        assert Path(seen(tmp_path)[0]).name == "run.jsonl", "the other one began later than that"
    assert what_if.view().began_ns == 100 * S


@pytest.mark.asyncio
async def test_a_stretch_that_began_before_the_record_is_cut_there(tmp_path: Path, record: LogWriter) -> None:
    what_if = made(tmp_path, Recorded(record=record))
    async with answering(what_if):
        what_if.ask(Question(since_ns=0, until_ns=131 * S))
        await standing(what_if, "done")
    assert "--since=0.000" in seen(tmp_path), "a negative one would count from the end"


def test_without_anything_on_disk_it_says_how_to_have_it(tmp_path: Path) -> None:
    what_if = made(tmp_path, Recorded())
    for words in ("penstock up --record", "[shadow]"):
        assert words in what_if.view().how_to
        with pytest.raises(ConfigError) as told:
            what_if.ask(Question(since_ns=1, until_ns=2))
        assert words in str(told.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"until_ns": 110 * S}, "ends before it begins"),
        ({"since_ns": 1 * S, "until_ns": 50 * S}, "ended 50 s before the first that is on disk"),
        ({"preset": "nobody"}, "no preset 'nobody': expected one of"),
        ({"settings": ("state_dir=/tmp",)}, "expected KEY=VALUE"),
        ({"settings": ("http.listen=off",)}, "expected a key of"),
        ({"settings": ("admission.window=-1",)}, "admission.window"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_at_once(
    tmp_path: Path, record: LogWriter, changes: dict[str, object], said: str
) -> None:
    what_if = made(tmp_path, Recorded(record=record))
    with pytest.raises(ConfigError, match=said):
        what_if.ask(Question(**{"since_ns": 111 * S, "until_ns": 131 * S, **changes}))  # type: ignore[arg-type]
    assert what_if.view().standing == ""


@pytest.mark.asyncio
async def test_one_at_a_time_until_it_is_cancelled(tmp_path: Path, record: LogWriter) -> None:
    what_if = made(tmp_path, Recorded(record=record), "time.sleep(600)")
    question = Question(since_ns=111 * S, until_ns=131 * S)
    async with answering(what_if):
        what_if.ask(question)
        await standing(what_if, "runs")
        await begins(tmp_path)
        with pytest.raises(BusyError, match="cancel it"):
            what_if.ask(question)
        what_if.cancel()
        await standing(what_if, "cancelled")
        what_if.ask(question)
        await standing(what_if, "runs")
        await begins(tmp_path)


@pytest.mark.asyncio
async def test_it_waits_while_another_replay_is_under_way(tmp_path: Path, record: LogWriter) -> None:
    replayer = Replayer(command(tmp_path, "time.sleep(600)"))
    recorded = Recorded(record=record)
    what_if = WhatIf(lambda: recorded, lambda: RESOLVED, lambda: 300 * S, replayer)
    async with create_task_group() as estimate:
        estimate.start_soon(replayer.replay, tmp_path / "other", [])
        await begins(tmp_path)
        async with answering(what_if):
            what_if.ask(Question(since_ns=111 * S, until_ns=131 * S))
            await standing(what_if, "waits")
            estimate.cancel_scope.cancel()
            await standing(what_if, "runs")
            await begins(tmp_path)


@pytest.mark.asyncio
async def test_why_there_is_no_answer_is_told(tmp_path: Path, record: LogWriter) -> None:
    what_if = made(tmp_path, Recorded(record=record), "sys.exit('none of 3 programs was seen')")
    async with answering(what_if):
        what_if.ask(Question(since_ns=111 * S, until_ns=131 * S))
        view = await standing(what_if, "failed")
    assert view.reason == "none of 3 programs was seen"
    assert view.shadow == ()


@pytest.mark.asyncio
async def test_a_record_that_went_is_told(tmp_path: Path, record: LogWriter) -> None:
    what_if = made(tmp_path, Recorded(record=record))
    record.path.unlink()
    async with answering(what_if):
        what_if.ask(Question(since_ns=111 * S, until_ns=131 * S))
        assert "cannot be read" in (await standing(what_if, "failed")).reason


@pytest.mark.asyncio
async def test_of_another_machine_there_is_nothing_to_try_in_the_shadow(tmp_path: Path, record: LogWriter) -> None:
    what_if = made(tmp_path, Recorded(record=record))
    async with answering(what_if):
        what_if.ask(Question(since_ns=111 * S, until_ns=131 * S, agents="2x"))
        assert (await standing(what_if, "done")).shadow == []

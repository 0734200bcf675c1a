"""llama.cpp's server made to obey: on the real one, where it was built, and on the double that stands for it."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from support.llamacpp_double import LONG, LlamaDouble, llama_double
from support.llamacpp_programs import CHAT, MESSAGES, Programs, programs, until_sampled
from support.pickers import until
from support.ports import free_port

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import Tier, seconds
from engine_hooks.llamacpp.api import NAMES_SLOT

MAKE = Path(__file__).resolve().parents[2] / "scripts" / "llamacpp_env.py"
SLOTS = 4
MANY = [f"p{number}" for number in range(SLOTS + 2)]


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder with the real server."""
    looked = subprocess.run([sys.executable, str(MAKE), "--check"], capture_output=True, text=True)
    if looked.returncode:
        pytest.skip("llama.cpp's server was not built: python scripts/llamacpp_env.py (ten minutes, kept)")
    return Path(looked.stdout.strip())


@pytest.fixture(params=["double", "real"])
def kind(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    yield request.getfixturevalue("built") if request.param == "real" else None


@asynccontextmanager
async def server(kind: Path | None, folder: Path, *more: str) -> AsyncIterator[str]:
    """The server's address. It saves slots in ``folder``."""
    if kind is None:
        async with llama_double(LlamaDouble(folder)) as address:
            yield address
        return
    port = free_port()
    command = [str(kind / "bin" / "llama-server"), "--model", str(kind / "tiny.gguf"), "--port", str(port)]
    shape = ["--ctx-size", str(4096 * SLOTS), "--parallel", str(SLOTS), "--threads", "1", "--cache-ram", "0"]
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: ASYNC220  it begins at once
            [*command, *shape, "--slot-save-path", f"{folder}/", *more], stdout=log, stderr=log
        )
    try:
        await is_up(f"127.0.0.1:{port}")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def is_up(address: str) -> None:
    async with asyncio.timeout(120), aiohttp.ClientSession() as http:
        while True:
            try:
                async with http.get(f"http://{address}/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)


async def obeyed(it: Programs, command: cmd.ProgramCommand) -> ev.Event:
    """Tell it, and what it answers."""
    assert it.api is not None
    known = len(it.events)

    def answers() -> list[ev.Event]:
        return [each for each in it.events[known:] if isinstance(each, ANSWERS)]

    it.api.on_command(command)
    await until(answers, "it answers")
    return answers()[0]


ANSWERS = (ev.CommandApplied, ev.CommandRejected)


async def test_alone_it_keeps_nobody_where_programs_are_more_than_slots(kind: Path | None, tmp_path: Path) -> None:
    async with server(kind, tmp_path) as address, programs(address, tmp_path, steered=False) as it:
        for _ in range(3):
            hits = [(await it.turn(name)).hit for name in MANY]
        assert max(hits) < 0.2


async def test_what_is_retained_stays_and_its_next_turn_finds_it(kind: Path | None, tmp_path: Path) -> None:
    async with server(kind, tmp_path) as address, programs(address, tmp_path) as it:
        for name in MANY[:2]:
            await it.turn(name)
            answer = await obeyed(it, cmd.Retain(program_id=name, ttl_ns=seconds(3600)))
            assert isinstance(answer, ev.CommandApplied)
        third = await obeyed(it, cmd.Retain(program_id=MANY[2], ttl_ns=seconds(3600)))
        assert isinstance(third, ev.CommandRejected) and third.reason.startswith("no slot has a context of it")
        for name in MANY[2:]:
            await it.turn(name)
        sample = await it.api.sample() if it.api else None
        assert sample is not None and (sample.total_blocks, sample.retained_blocks, sample.free_blocks) == (4, 2, 0)
        assert [(await it.turn(name)).hit > 0.4 for name in MANY] == [True, True, False, False, False, False]
        assert not it.told(ev.PinReclaimed)


async def test_what_is_demoted_comes_back_before_its_turn(kind: Path | None, tmp_path: Path) -> None:
    async with server(kind, tmp_path) as address, programs(address, tmp_path) as it:
        for number, name in enumerate(MANY, 1):
            await it.turn(name)
            answer = await obeyed(it, cmd.Demote(program_id=name, command_id=number))
            assert isinstance(answer, ev.CommandApplied) and answer.moved_to == Tier.HOST
        assert len(list(tmp_path.glob("penstock-*.slot"))) == len(MANY)
        assert [(await it.turn(name)).hit > 0.4 for name in MANY] == [True] * len(MANY)
        assert not list(tmp_path.glob("penstock-*.slot")), "each context is in one place"


async def test_what_is_prefetched_lies_in_a_slot_and_what_is_discarded_nowhere(
    kind: Path | None, tmp_path: Path
) -> None:
    async with server(kind, tmp_path) as address, programs(address, tmp_path) as it:
        await it.turn("kept")
        await it.turn("gone")
        for name in ("kept", "gone"):
            await obeyed(it, cmd.Demote(program_id=name))
        for name in MANY:
            await it.turn(name)  # their slots are others' now
        answer = await obeyed(it, cmd.Prefetch(program_id="kept"))
        assert isinstance(answer, ev.CommandApplied) and answer.moved_to == Tier.HBM
        answer = await obeyed(it, cmd.Discard(program_id="gone"))
        assert isinstance(answer, ev.CommandApplied) and answer.moved_to == Tier.NONE
        assert not list(tmp_path.glob("penstock-*.slot"))
        assert (await it.turn("kept")).hit > 0.4
        assert (await it.turn("gone")).hit < 0.2


async def test_files_take_no_more_than_their_budget(kind: Path | None, tmp_path: Path) -> None:
    async with server(kind, tmp_path) as address:
        async with programs(address, tmp_path) as it:
            await it.turn("one")
            await obeyed(it, cmd.Demote(program_id="one"))
            (file,) = tmp_path.glob("penstock-*.slot")
            size = file.stat().st_size
        async with programs(address, tmp_path, saved_bytes=int(2.5 * size)) as it:
            assert not list(tmp_path.glob("penstock-*.slot")), "left by an earlier run"
            for name in MANY[:3]:
                await it.turn(name)
                assert isinstance(await obeyed(it, cmd.Demote(program_id=name)), ev.CommandApplied)
            assert len(list(tmp_path.glob("penstock-*.slot"))) == 2
            assert [each.program_id for each in it.told(ev.ContextMoved)] == [MANY[0]]
        async with programs(address, tmp_path, saved_bytes=size // 2) as it:
            await it.turn("large")
            answer = await obeyed(it, cmd.Demote(program_id="large"))
            assert isinstance(answer, ev.CommandRejected) and "saved slots may take" in answer.reason
            assert not list(tmp_path.glob("penstock-*.slot"))


async def test_a_file_that_is_gone_is_told_and_the_turn_runs(kind: Path | None, tmp_path: Path) -> None:
    async with server(kind, tmp_path) as address, programs(address, tmp_path) as it:
        await it.turn("p")
        await obeyed(it, cmd.Demote(program_id="p"))
        for name in MANY:
            await it.turn(name)
        for file in tmp_path.glob("penstock-*.slot"):
            file.unlink()
        answer = await obeyed(it, cmd.Prefetch(program_id="p"))
        assert isinstance(answer, ev.CommandRejected) and "Unable to restore slot" in answer.reason
        assert "p" in [each.program_id for each in it.told(ev.ContextMoved)]
        assert (await it.turn("p")).hit < 0.2


async def test_a_turn_waits_while_every_slot_is_busy_and_none_is_moved_meanwhile(
    kind: Path | None, tmp_path: Path
) -> None:
    """The real server would queue it for a busy slot, and with --cache-ram spoil the turn that runs there."""
    if kind is None:
        double = LlamaDouble(tmp_path)
        async with llama_double(double) as address, programs(address, tmp_path) as it:
            await crowded(it, double.finish)
    else:
        async with server(kind, tmp_path) as address, programs(address, tmp_path) as it:
            await crowded(it, asyncio.Event())


async def crowded(it: Programs, finish: asyncio.Event) -> None:
    assert it.api is not None
    running = [asyncio.create_task(it.turn(name, max_tokens=LONG)) for name in MANY[:SLOTS]]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(it.turn("last"))
    sample = await until_sampled(it.api, lambda sample: sample.turns_waiting > 0, "the last one waits")
    assert (sample.turns_running, sample.turns_waiting, sample.evictable_blocks) == (SLOTS, 1, 0)
    for command in (cmd.Demote(program_id=MANY[0]), cmd.Discard(program_id=MANY[0])):
        answer = await obeyed(it, command)
        assert isinstance(answer, ev.CommandRejected) and answer.reason.startswith("a turn of it runs")
    assert not waiting.done()
    finish.set()
    await asyncio.gather(*running)
    assert (await waiting).cached < 10


async def test_a_slot_that_a_request_names_runs_it_on_each_path(built: Path, tmp_path: Path) -> None:
    async with server(built, tmp_path) as address, aiohttp.ClientSession() as http:
        for turn, path in enumerate(NAMES_SLOT):
            number = turn % SLOTS
            prompt = {"prompt": path, "input": path, "messages": [{"role": "user", "content": path}]}
            more = {"max_tokens": 1, "n_predict": 1, "id_slot": number}
            async with http.post(f"http://{address}{path}", json=prompt | more) as answer:
                assert answer.status == 200, path
            async with http.get(f"http://{address}/slots") as answer:
                latest = max(await answer.json(), key=lambda slot: slot.get("id_task", -1))
            assert latest["id"] == number, path


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
async def test_an_anthropic_turn_is_found_where_the_server_put_it(
    kind: Path | None, tmp_path: Path, path: str
) -> None:
    async with server(kind, tmp_path) as address, programs(address, tmp_path) as it:
        await it.turn("p", path=path)
        assert it.api is not None
        await until_sampled(it.api, lambda sample: sample.free_blocks < SLOTS, "its slot is found")
        assert isinstance(await obeyed(it, cmd.Demote(program_id="p")), ev.CommandApplied)
        for name in MANY:
            await it.turn(name)
        assert (await it.turn("p", path=path)).hit > 0.4


async def test_a_turn_past_the_gate_takes_a_slot_and_the_programs_hear_of_it(
    kind: Path | None, tmp_path: Path
) -> None:
    async with server(kind, tmp_path) as address, programs(address, tmp_path) as it:
        assert it.api is not None
        for name in MANY[:SLOTS]:
            await it.turn(name)
        await it.api.sample()
        async with programs(address, tmp_path / "none", steered=False) as strangers:
            await strangers.turn("stranger")
        sample = await it.api.sample()
        assert sample is not None and sample.free_blocks == 1
        assert [each.program_id for each in it.told(ev.ContextMoved)] == [MANY[0]]


async def test_a_gate_that_starts_again_names_no_slot_in_which_a_turn_runs(
    kind: Path | None, tmp_path: Path
) -> None:
    double = LlamaDouble(tmp_path)
    async with (
        llama_double(double) if kind is None else server(kind, tmp_path) as address,
        programs(address, tmp_path, steered=False) as before,
    ):
        running = asyncio.create_task(before.turn("long", max_tokens=6 * LONG, words=10))
        async with programs(address, tmp_path) as it:
            assert it.api is not None
            await until_sampled(it.api, lambda sample: sample.turns_running == 1, "the turn is seen")
            for name in MANY[: SLOTS - 1]:
                await it.turn(name)
            assert not running.done()
            double.finish.set()
            await running


async def test_who_leaves_while_it_waits_or_is_restored_leaves_nothing_behind(tmp_path: Path) -> None:
    double = LlamaDouble(tmp_path)
    async with llama_double(double) as address, programs(address, tmp_path) as it:
        assert it.api is not None
        await it.turn("saved")
        await obeyed(it, cmd.Demote(program_id="saved"))
        running = [asyncio.create_task(it.turn(name, max_tokens=LONG)) for name in MANY[:SLOTS]]
        await until_sampled(it.api, lambda sample: sample.turns_running == SLOTS, "every slot is busy")
        first, leaves, last = (asyncio.create_task(it.turn(name)) for name in ("saved", "leaves", "last"))
        await until_sampled(it.api, lambda sample: sample.turns_waiting == 3, "three wait")
        leaves.cancel()
        await until_sampled(it.api, lambda sample: sample.turns_waiting == 2, "one has left")
        double.finish.set()
        await asyncio.gather(*running)
        assert (await first).hit > 0.4 and (await last).hit < 0.2
        assert not list(tmp_path.glob("penstock-*.slot"))
        sample = await it.api.sample()
        assert sample is not None and (sample.turns_running, sample.turns_waiting) == (0, 0)


async def test_a_server_that_starts_again_has_nothing_and_one_that_clears_idle_slots_is_left_alone(
    tmp_path: Path,
) -> None:
    double = LlamaDouble(tmp_path)
    async with llama_double(double) as address, programs(address, tmp_path) as it:
        assert it.api is not None
        await it.turn("p")
        double.restart()
        await it.api.sample()
        assert [each.program_id for each in it.told(ev.ContextMoved)] == ["p"] and not it.api.problem
        double.clears_idle = True
        await it.turn("p")
        await it.turn("q")
        sample = await it.api.sample()
        assert sample is not None and "start it with -np N" in sample.reason
        answer = await obeyed(it, cmd.Retain(program_id="q", ttl_ns=1))
        assert isinstance(answer, ev.CommandRejected) and answer.reason == sample.reason
        double.build, double.clears_idle = "another", False
        double.restart(2)
        sample = await it.api.sample()
        assert sample is not None and (sample.total_blocks, sample.reason) == (2, "")

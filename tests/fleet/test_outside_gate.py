"""``penstock gate`` before a server without a plugin: the real command with the real Envoy, daemon and bus.

The server is the engine double without its bus, which shows its pool as vLLM does. What is killed is killed as a
crash is: clients see what the command's help says that they see.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import psutil
import pytest
from support.commands import penstock
from support.daemon_process import eventually, run_python
from support.outside_gates import health_of
from support.ports import free_port, is_listening

from controlplane.fleet import outside
from controlplane.gate import GATED_PATHS, MORE_PATHS
from controlplane.transport.endpoint import read_endpoint

TIMEOUT_S = 240.0  # far more than is needed: the machine may be busy
POOL_TOKENS = 4000
LONG = 400  # tokens of a reply: some seconds of the double
ONE_SLOT = '[admission]\npolicy = "fixed"\nwindow = 1\n'


class Gate:
    """The command, and the double before which it stands."""

    def __init__(self, folder: Path, config: str) -> None:
        self.folder, self.port, self.upstream_port = folder, free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "gate.log"
        double = ("engine-double", "--no-bus", "--port", str(self.upstream_port), "--pool-tokens", str(POOL_TOKENS))
        self.double = run_python(folder / "double.log", "-m", "controlplane", *double)
        (folder / "penstock.toml").write_text(f"# of the test\n{config}")
        options = ("--upstream", f"http://127.0.0.1:{self.upstream_port}", "--listen", f"127.0.0.1:{self.port}")
        more = ("--config", str(folder / "penstock.toml"), "--state-dir", str(folder))
        self.process = run_python(self.log, "-m", "controlplane", "gate", *options, *more)

    def part(self, *words: str) -> psutil.Process:
        """The child whose command line has these words. Raises ``LookupError`` while there is none."""
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                line = child.cmdline()
                if "exec_bound" not in " ".join(line) and all(word in " ".join(line) for word in words):
                    return child
        raise LookupError(words)

    def stop(self) -> None:
        for process in (self.process, self.double):
            process.terminate()
        for process in (self.process, self.double):
            process.wait(TIMEOUT_S)


@asynccontextmanager
async def gate(folder: Path, config: str = "") -> AsyncIterator[tuple[Gate, aiohttp.ClientSession]]:
    made = Gate(folder, config)
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S)) as http:
            await governed(made, http)
            yield made, http
    finally:
        made.stop()


async def governed(made: Gate, http: aiohttp.ClientSession) -> None:
    """Wait until the daemon is heard, and the server's pool is known."""

    async def is_so() -> bool:
        assert made.process.poll() is None, made.log.read_text()[-2000:]
        page = await health_of(http, made.url)
        return page.get("mode") == "governed" and "metrics page of vllm" in str(page["engine"])

    await eventually(is_so, what="a gate that is governed", timeout_s=TIMEOUT_S)


async def ask(made: Gate, http: aiohttp.ClientSession, program: str, tokens: int = 4) -> tuple[int, str]:
    """One turn that streams: its status, and all that came; empty where the stream was cut."""
    body = {"model": "m", "stream": True, "max_tokens": tokens, "stream_options": {"include_usage": True}}
    body["messages"] = [{"role": "user", "content": "word " * 100}]
    headers = {"x-session-id": program}
    try:
        async with http.post(f"{made.url}/v1/chat/completions", json=body, headers=headers) as answer:
            return answer.status, (await answer.read()).decode()
    except aiohttp.ClientError:
        return 0, ""


async def test_programs_are_known_by_what_passes_and_held_by_the_daemons_word(tmp_path: Path) -> None:
    async with gate(tmp_path, ONE_SLOT) as (made, http):
        status, text = await ask(made, http, "first")
        assert status == 200
        assert text.rstrip().endswith("data: [DONE]")

        async def is_told() -> bool:
            listed = await asyncio.to_thread(penstock, "programs", "--state-dir", str(tmp_path), "--json")
            (row,) = json.loads(listed.stdout)
            assert row["program_id"] == "first"
            return bool(row["turns"] == 1 and row["context_tokens"] >= 100)  # as the reply's usage says

        await eventually(is_told, what="the turn's end and size", timeout_s=TIMEOUT_S)
        running = asyncio.create_task(ask(made, http, "first", LONG))
        waiting = asyncio.create_task(ask(made, http, "second"))

        async def is_held() -> bool:
            return bool((await health_of(http, made.url))["held_turns"])

        await eventually(is_held, what="the second program is held", timeout_s=TIMEOUT_S)
        assert not waiting.done()
        assert (await running)[0] == 200
        await asyncio.to_thread(penstock, "hold", "first", "--state-dir", str(tmp_path))  # it keeps its slot else
        assert (await waiting)[0] == 200


async def test_a_folder_too_deep_for_sockets_and_a_proxy_that_speaks_http_1_0(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    async with (
        gate(folder) as (made, _),
        aiohttp.ClientSession(version=aiohttp.HttpVersion10, timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as http,
    ):
        status, text = await ask(made, http, "first")
        assert status == 200
        assert text.rstrip().endswith("data: [DONE]")


async def test_turns_are_known_on_every_path_where_servers_generate(tmp_path: Path) -> None:
    async with gate(tmp_path) as (made, http):
        for path, is_turn in [("/v1/embeddings", False), *((path, True) for path in (*GATED_PATHS, *MORE_PATHS))]:
            async with http.post(f"{made.url}{path}", json={"model": "m", "prompt": "x"}) as answer:
                assert bool(answer.headers.get("x-penstock-turn-id")) == is_turn, path


@pytest.mark.parametrize("streams", [False, True])
async def test_the_tools_that_a_reply_calls_are_read_as_it_passes(tmp_path: Path, streams: bool) -> None:
    async with gate(tmp_path) as (made, http):
        body = {"model": "m", "input": "word " * 50, "stream": streams, "max_output_tokens": 8}
        body["tools"] = [{"type": "function", "name": "shell", "parameters": {}}]
        headers = {"x-session-id": "caller"}
        async with http.post(f"{made.url}/v1/responses", json=body, headers=headers) as answer:
            assert answer.status == 200
            await answer.read()

        async def is_told() -> bool:
            listed = await asyncio.to_thread(penstock, "programs", "--state-dir", str(tmp_path), "--json")
            (row,) = json.loads(listed.stdout)
            return bool(row["tool"] == "true")  # the command that its call of `shell` is to run

        await eventually(is_told, what="the tool that it calls", timeout_s=TIMEOUT_S)


@pytest.mark.parametrize(
    ("words", "is_cut"),
    [
        (("outside_picker",), False),
        (("controlplane", "up"), False),
        (("envoy",), True),
    ],
)
async def test_whichever_part_is_killed_is_there_again(
    tmp_path: Path, words: tuple[str, ...], is_cut: bool
) -> None:
    async with gate(tmp_path) as (made, http):
        running = asyncio.create_task(ask(made, http, "first", LONG))

        async def runs() -> bool:
            return bool((await health_of(http, made.url))["running_turns"])

        await eventually(runs, what="a turn runs", timeout_s=TIMEOUT_S)
        part = made.part(*words)
        part.kill()
        status, text = await running
        assert text.rstrip().endswith("data: [DONE]") != is_cut
        assert status == (0 if is_cut else 200) or is_cut

        async def is_back() -> bool:
            with suppress(LookupError):
                return made.part(*words).pid != part.pid and is_listening(made.port)
            return False

        await eventually(is_back, what=f"{words} is there again", timeout_s=TIMEOUT_S)
        assert (await ask(made, http, "second"))[0] == 200
        await governed(made, http)


async def test_a_picker_that_is_frozen_is_replaced(tmp_path: Path) -> None:
    async with gate(tmp_path) as (made, http):
        await asyncio.sleep(4 * outside._LOOK_S)  # in which Envoy is seen to hear it
        frozen = made.part("outside_picker")
        frozen.suspend()
        assert (await ask(made, http, "first"))[0] == 200

        async def is_replaced() -> bool:
            with suppress(LookupError):
                return made.part("outside_picker").pid != frozen.pid
            return False

        await eventually(is_replaced, what="another picker", timeout_s=TIMEOUT_S)
        await governed(made, http)


async def test_told_to_end_it_takes_no_new_connections_and_ends_what_runs(tmp_path: Path) -> None:
    async with gate(tmp_path) as (made, http):
        running = asyncio.create_task(ask(made, http, "first", LONG))

        async def runs() -> bool:
            return bool((await health_of(http, made.url))["running_turns"])

        await eventually(runs, what="a turn runs", timeout_s=TIMEOUT_S)
        made.process.terminate()
        await eventually(lambda: not is_listening(made.port), what="nobody listens", timeout_s=TIMEOUT_S)
        assert not running.done()
        status, text = await running
        assert (status, text.rstrip().endswith("data: [DONE]")) == (200, True)
        assert await asyncio.to_thread(made.process.wait, TIMEOUT_S) == 0


async def test_a_server_that_died_is_told(tmp_path: Path) -> None:
    async with gate(tmp_path) as (made, http):
        made.double.kill()
        made.double.wait(TIMEOUT_S)
        async with http.post(f"{made.url}/v1/chat/completions", json={"messages": []}) as answer:
            assert (answer.status, bool(answer.headers.get("retry-after"))) == (503, True)

        async def says_so() -> bool:
            done = await asyncio.to_thread(penstock, "doctor", "--engine", made.url, "--state-dir", str(tmp_path))
            return f"127.0.0.1:{made.upstream_port} does not answer" in done.stdout

        await eventually(says_so, what="doctor's word of the server")


async def test_a_bus_that_is_killed_is_there_again(tmp_path: Path) -> None:
    async with gate(tmp_path) as (made, http):
        bus = read_endpoint("local", tmp_path)
        assert bus is not None
        os.kill(bus.pid, signal.SIGKILL)
        assert (await ask(made, http, "first"))[0] == 200

        async def is_back() -> bool:
            now = read_endpoint("local", tmp_path)
            return now is not None and now.pid != bus.pid

        await eventually(is_back, what="another nats-server", timeout_s=TIMEOUT_S)
        await governed(made, http)
        assert (await ask(made, http, "first"))[0] == 200


async def test_all_that_it_started_ends_with_it(tmp_path: Path) -> None:
    made = Gate(tmp_path, "")
    try:
        async with aiohttp.ClientSession() as http:
            await governed(made, http)
        children = psutil.Process(made.process.pid).children(recursive=True)
        assert len(children) >= 3
        made.process.kill()  # the supervisor itself
        made.process.wait(TIMEOUT_S)
        ours = [child for child in children if "nats-server" not in " ".join(_line(child))]  # it waits for a daemon

        async def are_gone() -> bool:
            return not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in ours)

        await eventually(are_gone, what="its children are gone", timeout_s=TIMEOUT_S)
    finally:
        made.stop()
        bus = read_endpoint("local", tmp_path)
        if bus is not None:
            with suppress(ProcessLookupError):
                os.kill(bus.pid, signal.SIGTERM)


def _line(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []

"""A day of a node as it is: six kinds of client at once, beside the same load by clients that say all.

A plain client with a session id, Claude Code with its hooks (real processes: tools of minutes, a person's
permission, a task in the background at ``Stop``), Codex with its headers, requests and items, a voice agent and an
image agent with much in their bodies, and a health checker without a name. They compact and ask for titles by the
same id; each runs out of patience, is refused, hangs up and gets an error in mid-stream once. The daemon, its NATS
and the engine double are real processes; the double stands for a text engine, to which a recording costs nothing
beside its words. A real engine's model knows text alone, and refuses what is not.
"""

import asyncio
import base64
import contextlib
import io
import json
import os
import random
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import nats
from support.daemon_process import NODE
from support.real_engine import RealEngine
from support.whole_loop import Loop

from controlplane.core.model.commands import Discard, Pause
from controlplane.emit.tool_reporter import ToolReporter
from controlplane.transport.endpoint import resolve_url
from controlplane.transport.roles import BusRole
from controlplane.transport.subjects import command_subject
from controlplane.wire.codec import decode_commands

from .apis import CHAT, MADE_CALLS, OUTPUTS, RESPONSES, Api

DOUBLE = "double"
ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "engine_hooks" / "tools" / "claude_code.py"
TURNS = 6
MB = 1_000_000
REFUSED, TIMED_OUT, LEFT, FAILED = "refused", "timed out", "hung up", "failed in mid-stream"
MISHAPS = {1: TIMED_OUT, 2: REFUSED, 3: LEFT, 4: FAILED}  # before the turn of that number
CPU_SIZE = 24  # on a CPU, prompts and replies are so much shorter
_DOUBLE_TOKENS_PER_WORD = 64
_HELD = re.compile(r"^: x-penstock-hold-ms: (\d+)$", re.MULTILINE)  # in a reply that began while its turn was held


@dataclass
class Kind:
    """What one kind of client saw."""

    ended: int = 0
    holds_s: list[float] = field(default_factory=list)
    completions_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


@dataclass
class Day:
    """One run. ``tells_all``: tools are reported by one process that lives, and bodies are text alone."""

    loop: Loop
    seed: int
    tells_all: bool
    arrive_s: float = 240
    model: str = ""  # of a real engine
    kinds: dict[str, Kind] = field(default_factory=lambda: defaultdict(Kind))
    live: set[str] = field(default_factory=set)
    given_away: Counter[str] = field(default_factory=Counter)
    mishaps: Counter[tuple[str, str]] = field(default_factory=Counter)  # by kind of client, and what
    reporter: ToolReporter | None = None
    http: aiohttp.ClientSession | None = None

    async def wait(self, model_s: float) -> None:
        await asyncio.sleep(model_s / self.loop.time_scale)

    def tokens(self, count: int) -> int:
        return -(-count // CPU_SIZE) if self.model else count

    def now_s(self) -> float:
        return asyncio.get_running_loop().time() * self.loop.time_scale

    async def run(self, programs: int) -> None:
        agent = resolve_url(None, NODE, self.loop.folder, role=BusRole.AGENT)
        reader = await nats.connect(resolve_url(None, NODE, self.loop.folder, role=BusRole.READER)())
        await reader.subscribe(command_subject(NODE), cb=self._hear)
        if self.tells_all:
            self.reporter = ToolReporter(url=agent, node=NODE)
        connector = aiohttp.TCPConnector(force_close=True)  # else a server may close one as it is used again
        timeout = aiohttp.ClientTimeout(total=600)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as self.http:
            checking = asyncio.ensure_future(self._check_health())
            rng = random.Random(self.seed)
            runs = [
                self._program(kind, f"{kind}-{number}", rng.uniform(0, self.arrive_s))
                for number in range(programs)
                for kind in CLIENTS
            ]
            await asyncio.gather(*runs)
            checking.cancel()
        if self.reporter is not None:
            await asyncio.to_thread(self.reporter.close)
        await reader.close()

    async def _hear(self, message: Any) -> None:
        for command in decode_commands(message.data):
            root = str(getattr(command, "program_id", "")).partition("/")[0]
            ends = isinstance(command, Pause) and command.reason.startswith("ended")
            if root in self.live and (ends or isinstance(command, Discard)):
                self.given_away[f"{type(command).__name__} of {root}: {command.reason}"] += 1

    async def _check_health(self) -> None:
        checker = Client(self, "health check", "", random.Random())
        while True:
            await checker.ask([CHAT.user("ping")], output_tokens=1)
            await self.wait(10)

    async def _program(self, kind: str, name: str, begins_s: float) -> None:
        await self.wait(begins_s)
        began_s, client = self.now_s(), Client(self, kind, name, random.Random(f"{self.seed}{name}"))
        self.live.add(name)
        try:
            await CLIENTS[kind](client)
        except (aiohttp.ClientError, TimeoutError, AssertionError, KeyError) as error:
            self.kinds[kind].failures.append(f"{name}: {error!r:.200}")
        self.live.discard(name)
        self.kinds[kind].ended += client.turns == TURNS
        self.kinds[kind].completions_s.append(self.now_s() - began_s)


@dataclass
class Client:
    """One program as its client sees it."""

    day: Day
    kind: str
    name: str
    rng: random.Random
    headers: Sequence[str] = ("x-session-id",)  # that name it
    api: Api = CHAT
    messages: list[Any] = field(default_factory=list)
    turns: int = 0
    was_cut: bool = False  # the last reply

    def words(self, count: int) -> str:
        if self.day.model:  # a word is a token or two
            letters = "abcdefghijklmnopqrstuvwxyz"
            return " ".join(
                self.rng.choice(letters) for _ in range(self.day.tokens(count * _DOUBLE_TOKENS_PER_WORD))
            )
        return " ".join(f"{self.name}w{self.rng.randrange(10_000)}" for _ in range(count))

    def request(self, messages: list[Any], output_tokens: int, **more: Any) -> dict[str, Any]:
        """What the HTTP client is to send."""
        limit = {self.api.limit: self.day.tokens(output_tokens)}
        body = {"model": self.day.model or "m", self.api.within: messages, **self.api.more, **limit, **more}
        if self.day.tells_all:
            body.pop("include", None)  # reasoning comes in clear
        data, named = io.BytesIO(json.dumps(body).encode()), {each: self.name for each in self.headers if self.name}
        headers = {"content-type": "application/json", **named}
        return {"url": f"{self.day.loop.url}{self.api.path}", "data": data, "headers": headers}

    async def ask(self, messages: list[Any], *, output_tokens: int = 2000) -> list[Any]:
        """One turn; its hold is noted in the engine's seconds."""
        assert self.day.http is not None
        async with self.day.http.post(**self.request(messages, output_tokens)) as response:
            text = await response.text()
            assert response.status == 200, f"{response.status}: {text:.200}"
            self.was_cut = "response.incomplete" in text
            held = response.headers.get("x-penstock-hold-ms") or _HELD.findall(text)[0]
            self.day.kinds[self.kind].holds_s.append(int(held) / 1000)
        return self.api.read(text)

    async def turn(self, content: Any = None) -> None:
        if not (self.messages and self.messages[-1].get("type", "").endswith("_output")):
            self.messages.append(self.api.user(content or self.words(self.rng.randint(10, 60))))
        if mishap := MISHAPS.get(self.turns):
            await self.fall(mishap)
        self.turns += 1
        self.messages += await self.ask(self.messages)
        if self.turns == TURNS:  # nothing follows
            self.day.live.discard(self.name)

    async def fall(self, mishap: str) -> None:
        """Ask, and get no answer; the client asks again then."""
        assert self.day.http is not None
        name = f"{self.name}-{self.turns}"
        more = {self.api.limit: -1} if mishap == REFUSED else {}
        request = self.request(self.messages, 5000, stream=True, rid=name, request_id=name, **more)
        patience_s = 1 / self.day.loop.time_scale if mishap == TIMED_OUT else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s), self.day.http.post(**request) as response:
                begun = await response.content.read(-1 if mishap == REFUSED else 200)
                while mishap != REFUSED and begun.startswith(b":"):  # it waits yet
                    begun = await response.content.read(200)
                assert b"error" in begun if mishap == REFUSED else response.status == 200, f"{mishap}: {begun!r}"
                if mishap == FAILED:
                    url = f"{self.day.loop.url}/abort_request"
                    async with self.day.http.post(url, json={"rid": name}) as asked:
                        mishap = FAILED if asked.status == 200 else LEFT  # vLLM cannot be asked
                        await response.content.read(-1 if mishap == FAILED else 0)
        self.day.mishaps[self.kind, mishap] += 1

    async def is_refused(self, content: Any) -> None:
        """What the model does not know is no turn; the client goes on with text."""
        with contextlib.suppress(AssertionError):
            await self.ask([*self.messages, self.api.user(content)], output_tokens=1)

    async def title(self) -> None:
        """By the conversation's own id, with another system prompt."""
        system = {"role": "system", "content": "Give a title."}
        await self.ask([system, self.api.user(self.words(5))], output_tokens=64)

    def compact(self) -> None:
        self.messages = [self.messages[0], self.api.user(self.words(20))]

    async def tool(self, tool: str, takes_s: float, permission_s: float = 0.0) -> None:
        """Nobody hears of it, but from those who tell all."""
        reporter, call = self.day.reporter, f"{self.name}-{len(self.messages)}"
        await self.day.wait(permission_s)
        if reporter is not None:
            reporter.tool_started(self.name, call, tool)
        await self.day.wait(takes_s)
        if reporter is not None:
            reporter.tool_ended(self.name, call)

    async def hook(self, event: str, **more: Any) -> None:
        """Claude Code's hook, as it runs it: a process for each."""
        if self.day.reporter is not None:
            return
        said = {"session_id": self.name, "hook_event_name": event, **more}
        environment = {**os.environ, "PENSTOCK_STATE_DIR": str(self.day.loop.folder), "PENSTOCK_NODE": NODE}
        environment.pop("PENSTOCK_NATS_URL", None)
        command = (sys.executable, "-I", "-S", str(HOOK))
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE, env=environment)
        await process.communicate(json.dumps(said).encode())
        assert process.returncode == 0


async def plain(client: Client) -> None:
    for turn in range(TURNS):
        await client.turn()
        if turn == 1:
            await client.title()
        if turn == 3:
            client.compact()
        await client.tool("bash", client.rng.uniform(1, 20))


async def claude_code(client: Client) -> None:
    client.headers = ("x-claude-code-session-id",)
    await client.hook("SessionStart", source="startup")
    for turn in range(TURNS):
        await client.turn()
        took_s = client.rng.uniform(60, 240) if turn == 2 else client.rng.uniform(1, 30)
        waits_s = 60.0 if turn == 3 else 0.0
        asked = {"tool_name": "Bash", "tool_use_id": f"toolu_{turn}", "tool_input": {"command": "make -j test"}}
        await client.hook("PreToolUse", **asked)
        await client.tool("make", took_s, permission_s=waits_s)
        await client.hook("PostToolUse", **asked, duration_ms=round(took_s * 1000), tool_response="x" * 20_000)
        if turn == 4:
            task = {"id": "b1", "type": "shell", "status": "running", "command": "npm run dev"}
            await client.hook("Stop", stop_hook_active=False, background_tasks=[task])
            await client.day.wait(30)
            await client.hook("UserPromptSubmit", prompt="go on")
    client.day.live.discard(client.name)
    await client.hook("SessionEnd", reason="exit")


async def codex(client: Client) -> None:
    client.headers, client.api = ("session-id", "thread-id", "x-client-request-id"), RESPONSES
    for turn in range(TURNS):
        await client.turn()
        if client.was_cut:  # a model that cannot call goes on until it is cut: as if it were within one
            client.messages.append({**MADE_CALLS[turn % 2], "call_id": f"call_{turn}"})
        call = client.messages[-1]
        if call["type"] in OUTPUTS:
            await client.tool(call["type"], client.rng.uniform(0.5, 5))
            answer = {"type": OUTPUTS[call["type"]], "call_id": call["call_id"]}
            client.messages.append({**answer, "output": client.words(client.rng.randint(10, 60))})
        if turn == 3:
            client.compact()


def with_media(part: Callable[[str], dict[str, Any]], size: int) -> Callable[[Client], Coroutine[Any, Any, None]]:
    async def run(client: Client) -> None:
        for turn in range(TURNS):
            text = {"type": "text", "text": client.words(30)}
            medium = part(base64.b64encode(client.rng.randbytes(size)).decode())
            if client.day.model and not (turn or client.day.tells_all):
                await client.is_refused([text, medium])
            alone = client.day.tells_all or client.day.model
            await client.turn([text] if alone else [text, medium])
            await client.tool("wait", client.rng.uniform(2, 15))

    return run


CLIENTS: dict[str, Callable[[Client], Coroutine[Any, Any, None]]] = {
    "plain": plain,
    "Claude Code": claude_code,
    "Codex": codex,
    "voice": with_media(
        lambda blob: {"type": "input_audio", "input_audio": {"data": blob, "format": "mp3"}}, MB // 2
    ),
    "images": with_media(
        lambda blob: {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{blob}"}}, MB // 4
    ),
}


def play(
    folder: Path,
    programs: int,
    seed: int,
    *,
    days: Sequence[bool] = (True, False),
    time_scale: float = 1.0,
    arrive_s: float = 240,
    engine: str = DOUBLE,
) -> list[Day]:
    """Days at the same time, each with a daemon and an engine of its own; ``days``: whether all is told on it."""
    played = []
    try:
        for tells_all in days:
            at = folder / f"tells-all-{tells_all}"
            at.mkdir()
            loop: Loop
            if engine == DOUBLE:
                loop = Loop(at, "penstock", pool_tokens=60_000, time_scale=time_scale)
            else:
                config = at / "penstock.toml"
                config.write_text(
                    "[host]\ncpus = 64\nelsewhere = true\n"
                )  # what runs beside is no part of the load
                loop = RealEngine(at, engine, daemon=("--config", str(config)))
            played.append(Day(loop, seed, tells_all, arrive_s))
            played[-1].model = getattr(loop, "model", "")
            loop.start()

        async def run() -> None:
            await asyncio.gather(*(day.run(programs) for day in played))

        asyncio.run(run())
    finally:
        for day in played:
            day.loop.stop()
    return played


def table(day: Day, control: Day) -> str:
    """By kind of client: what became of it, beside the day on which everybody told all."""
    lines = [f"{'kind':<14}{'ended':>8}{'hold mean':>11}{'p95':>8}{'longest':>9}{'JCT':>8}   of the control's"]
    for kind in [*CLIENTS, "health check"]:
        one, other = day.kinds[kind], control.kinds[kind]
        holds = sorted(one.holds_s)
        jct = statistics.mean(one.completions_s) if one.completions_s else 0.0
        of = jct / statistics.mean(other.completions_s) if jct else 0.0
        ended = f"{one.ended}/{len(one.completions_s)}"
        lines.append(
            f"{kind:<14}{ended:>8}{statistics.mean(holds):>10.1f}s{holds[int(len(holds) * 0.95)]:>7.1f}s"
            f"{holds[-1]:>8.1f}s{jct:>7.0f}s   JCT {of:.2f}, hold {statistics.mean(other.holds_s):.1f} s"
        )
    means = [statistics.mean(h for k in each.kinds.values() for h in k.holds_s) for each in (day, control)]
    jcts = [statistics.mean(c for k in each.kinds.values() for c in k.completions_s) for each in (day, control)]
    lines.append(f"all: hold {means[0]:.2f} s, the control's {means[1]:.2f} s; JCT {jcts[0] / jcts[1]:.2f} of it")
    lines.append(f"mishaps: {dict(Counter(what for _, what in day.mishaps.elements()))}")
    lines += [f"given away: {what} ({count})" for what, count in day.given_away.items()]
    lines += [f"failed: {what}" for kind in day.kinds.values() for what in kind.failures]
    return "\n".join(lines)

"""Programs of several turns at llama.cpp's server, or its double, as a gate outside sends them: with a
``LlamaCpp`` that is asked before each turn, or without any, as the server works alone."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from controlplane.core.model.events import Event, PoolSampled
from controlplane.gate import identify
from controlplane.gate.contexts import Contexts, measured
from controlplane.gate.engine_api import EngineAccess
from controlplane.gate.hints import Asked
from controlplane.gate.requests import new_turn_id, ticket_of
from controlplane.gate.tickets import Ticket
from engine_hooks.llamacpp.api import LlamaCpp

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@dataclass(frozen=True)
class Turn:
    """Tokens of one turn's prompt, and how many of them were cached."""

    prompt: int
    cached: int

    @property
    def hit(self) -> float:
        return self.cached / self.prompt


@dataclass
class Programs:
    """Clients of the server at ``address``."""

    address: str
    http: aiohttp.ClientSession
    api: LlamaCpp | None
    events: list[Event]
    contexts: Contexts = field(default_factory=Contexts)
    messages: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    async def turn(self, program: str, *, path: str = CHAT, words: int = 40, max_tokens: int = 4) -> Turn:
        """The next turn of the program: what was said so far, and so many words more."""
        messages = self.messages.setdefault(program, [])
        source = random.Random(f"{program} {len(messages)}")
        text = " ".join(f"w{source.randrange(300, 2000)}" for _ in range(words))
        messages.append({"role": "user", "content": text})
        body: dict[str, Any] = {"model": "m", "max_tokens": max_tokens, "messages": messages}
        ticket = await self._ticket(program, body)
        try:
            if self.api is not None:
                body |= await self.api.before_turn(ticket, path)
            async with self.http.post(f"http://{self.address}{path}", json=body) as answer:
                told = await answer.json()
                assert answer.status == 200, told
        finally:
            if self.api is not None:
                self.api.turn_ended(ticket)
        usage = told["usage"]
        if path == MESSAGES:
            messages.append({"role": "assistant", "content": told["content"]})
            cached = usage["cache_read_input_tokens"]
            return Turn(usage["input_tokens"] + cached, cached)
        messages.append(told["choices"][0]["message"])
        return Turn(usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])

    async def _ticket(self, program: str, body: dict[str, Any]) -> Ticket:
        """As a gate makes it."""
        identity = identify([(b"x-session-id", program.encode())], body)
        prompt = await measured(body, 0)
        size, change = self.contexts.size(identity, prompt), self.contexts.change(identity.program_id, prompt, ())
        ticket = ticket_of(identity, new_turn_id(), prompt=size, change=change, held_bytes=0, asked=Asked())
        self.contexts.remember(program, ticket.turn_id, prompt)
        return ticket

    def told(self, kind: type[Event]) -> list[Any]:
        """The events of that kind."""
        return [event for event in self.events if type(event) is kind]


async def until_sampled(api: LlamaCpp, is_so: Callable[[PoolSampled], bool], what: str) -> PoolSampled:
    """Sample it until a sample is like that, and return that one."""
    for _ in range(6000):
        if (sample := await api.sample()) is not None and is_so(sample):
            return sample
        await asyncio.sleep(0.01)
    raise AssertionError(f"it never came to pass: {what}")


@asynccontextmanager
async def programs(
    address: str, folder: Path, *, steered: bool = True, saved_bytes: int = 1 << 30
) -> AsyncIterator[Programs]:
    """Clients, and between them and the server what makes it obey, if ``steered``."""
    events: list[Event] = []
    access = EngineAccess(address=address, emit=events.append, saved_path=folder, saved_bytes=saved_bytes)
    api = LlamaCpp(access) if steered else None
    async with aiohttp.ClientSession() as http:
        runs = asyncio.create_task(api.run()) if api is not None else None
        try:
            if api is not None:
                await until_sampled(api, lambda sample: True, "it tells its slots")
            yield Programs(address, http, api, events)
        finally:
            if runs is not None:
                runs.cancel()
                await asyncio.gather(runs, return_exceptions=True)

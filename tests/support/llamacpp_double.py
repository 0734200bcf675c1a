"""A double of llama.cpp's server: slots that hold words, and the replies of the real one (version 11434).

Where the two differ a test that runs against both fails (tests/integration/test_llamacpp_contract.py). A turn with
``max_tokens`` of at least ``LONG`` runs until ``finish`` is set.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from .ports import free_port

LONG = 500
_SIMILAR = 0.1
_BYTES_PER_WORD = 100  # of a saved slot


@dataclass
class SlotDouble:
    """One slot of the server."""

    number: int
    words: list[str] = field(default_factory=list)
    task: int | None = None
    used: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def told(self, slot_tokens: int) -> dict[str, Any]:
        shown = {"id": self.number, "n_ctx": slot_tokens, "speculative": False}
        shown["is_processing"] = not self.idle.is_set()
        if self.task is not None:
            shown |= {"id_task": self.task, "n_prompt_tokens": len(self.words), "n_prompt_tokens_cache": 0}
        return shown


class LlamaDouble:
    """The server, with ``slots`` slots of ``slot_tokens`` words; ``folder`` is its ``--slot-save-path``."""

    def __init__(self, folder: Path, slots: int = 4, slot_tokens: int = 4096) -> None:
        self.folder, self.slot_tokens = folder, slot_tokens
        self.finish = asyncio.Event()
        self.clears_idle = False  # as with --kv-unified
        self.build = "b0-unknown"
        self.tasks = 0
        self.asked: list[str] = []  # actions, in order
        self.restart(slots)

    def restart(self, slots: int = 4) -> None:
        """Its slots are empty; ids of tasks begin anew."""
        self.slots = [SlotDouble(number) for number in range(slots)]
        for slot in self.slots:
            slot.idle.set()

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/props", self._props)
        app.router.add_get("/slots", self._slots)
        app.router.add_post("/slots/{number}", self._act)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/messages", self._messages)
        return app

    async def _props(self, request: web.Request) -> web.Response:
        settings = {"n_ctx": self.slot_tokens, "params": {}}
        own = {"total_slots": len(self.slots), "model_path": "/tiny.gguf", "build_info": self.build}
        return web.json_response({"default_generation_settings": settings, **own})

    async def _slots(self, request: web.Request) -> web.Response:
        return web.json_response([slot.told(self.slot_tokens) for slot in self.slots])

    async def _act(self, request: web.Request) -> web.Response:
        """Of a busy slot it answers once that is idle."""
        action, body = request.query["action"], await request.json()
        slot = self.slots[int(request.match_info["number"]) % len(self.slots)]
        await slot.idle.wait()
        self.asked.append(action)
        file = self.folder / str(body.get("filename"))
        told: dict[str, Any] = {"id_slot": slot.number, "filename": file.name}
        if action == "save":
            size = file.write_text(json.dumps(slot.words).ljust(len(slot.words) * _BYTES_PER_WORD))
            told |= {"n_saved": len(slot.words), "n_written": size, "timings": {"save_ms": 1.0}}
        elif action == "restore" and not file.exists():
            slot.words = []
            message = "Unable to restore slot: No available space in KV cache or invalid slot save file"
            error = {"code": 400, "message": message, "type": "invalid_request_error"}
            return web.json_response({"error": error}, status=400)
        elif action == "restore":
            slot.words = json.loads(file.read_text())
            told |= {"n_restored": len(slot.words), "n_read": file.stat().st_size, "timings": {"restore_ms": 1.0}}
        else:
            told, slot.words = {"id_slot": slot.number, "n_erased": len(slot.words)}, []
        return web.json_response(told)

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        cached, words, answer = await self._run(body, body.get("id_slot", -1))
        usage = {"prompt_tokens": len(words), "completion_tokens": len(answer)}
        usage |= {"prompt_tokens_details": {"cached_tokens": cached}}  # type: ignore[dict-item]
        message = {"role": "assistant", "content": " ".join(answer)}
        return web.json_response({"choices": [{"index": 0, "message": message}], "usage": usage})

    async def _messages(self, request: web.Request) -> web.Response:
        """An Anthropic request, whose ``id_slot`` is not read."""
        cached, words, answer = await self._run(await request.json(), -1)
        usage = {"cache_read_input_tokens": cached, "input_tokens": len(words) - cached}
        content = [{"type": "text", "text": " ".join(answer)}]
        return web.json_response({"content": content, "usage": {**usage, "output_tokens": len(answer)}})

    async def _run(self, body: dict[str, Any], number: int) -> tuple[int, list[str], list[str]]:
        words = [word for message in body["messages"] for word in _text(message["content"]).split()]
        while not (slot := self._slot(words, number)).idle.is_set():
            await slot.idle.wait()
        if self.clears_idle:
            for each in self.slots:
                if each is not slot and each.idle.is_set():
                    each.words = []
        slot.idle.clear()
        self.tasks += 1
        slot.task = slot.used = self.tasks
        cached = min(_shared(slot.words, words), len(words) - 1)
        answer = [f"a{self.tasks}-{index}" for index in range(min(4, body["max_tokens"]))]
        slot.words = [*words, *answer]
        if body["max_tokens"] >= LONG:
            await self.finish.wait()
        slot.idle.set()
        return cached, words, answer

    def _slot(self, words: list[str], number: int) -> SlotDouble:
        """The one that was named, the most similar one, or the one unused for longest."""
        if number >= 0:
            return self.slots[number % len(self.slots)]
        idle = [slot for slot in self.slots if slot.idle.is_set()] or self.slots
        best = max(idle, key=lambda slot: _shared(slot.words, words))
        if _shared(best.words, words) > _SIMILAR * len(words):
            return best
        return min(idle, key=lambda slot: slot.used)


@asynccontextmanager
async def llama_double(double: LlamaDouble) -> AsyncIterator[str]:
    """It listens: its address, ``HOST:PORT``."""
    runner = web.AppRunner(double.app())
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        double.finish.set()
        await runner.cleanup()


def _text(content: Any) -> str:
    return content if isinstance(content, str) else " ".join(part["text"] for part in content)


def _shared(one: list[str], other: list[str]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count

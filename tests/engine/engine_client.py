"""An agent's HTTP client for an engine: chat turns, streamed or not, and what the engine says of itself."""

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
from engine_server import EngineServer
from support.daemon_process import eventually

REQUEST_TIMEOUT_S = 300.0
MODE_TIMEOUT_S = 300.0
LOOK_S = 0.05  # at a page of the engine, which is work for it
FLUSH_TIMEOUT_S = 240.0

Messages = list[dict[str, str]]

_HELD = re.compile(r"^: (x-penstock-hold-ms): (\d+)$", re.MULTILINE)
_SAMPLE = re.compile(r"^(?P<name>[\w:]+)(?P<labels>\{[^}]*\})? (?P<value>\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A turn's outcome. The counts are the engine's own usage; -1: it did not say."""

    status: int
    text: str = ""
    prompt_tokens: int = -1
    output_tokens: int = -1
    cached_tokens: int = -1
    chunks: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None

    @property
    def held_ms(self) -> int:
        """How long the gate held it; -1 without a gate."""
        return int(self.headers.get("x-penstock-hold-ms", -1))


class EngineClient:
    """Speaks to one engine as the programs that a test names, in the header that it takes."""

    def __init__(self, engine: EngineServer, http: aiohttp.ClientSession) -> None:
        self.url = engine.url
        self._session_header = engine.session_header
        self._http = http
        self.programs: set[str] = set()

    async def chat(
        self,
        program_id: str,
        text: str | Messages,
        *,
        output_tokens: int = 8,
        stream: bool = False,
        path: str = "/v1/chat/completions",
        **more: Any,
    ) -> Reply:
        """One turn of exactly ``output_tokens``; ``more`` goes into the body."""
        messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
        body = {
            "model": "tiny",
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
        body |= {"messages": messages} if path.endswith("chat/completions") else {"prompt": messages[0]["content"]}
        if stream:
            body["stream_options"] = {"include_usage": True}
        return await self.post(path, {**body, **more}, program_id)

    async def post(self, path: str, body: Mapping[str, Any], program_id: str = "", **more: str) -> Reply:
        """POST ``body`` as a turn of the program; of none without ``program_id``. ``more``: of its headers."""
        headers = {name.replace("_", "-"): value for name, value in more.items()}
        if program_id:
            headers[self._session_header] = program_id
        if program_id:
            self.programs.add(program_id)
        async with self._http.post(f"{self.url}{path}", json=body, headers=headers) as response:
            if response.content_type == "text/event-stream":
                return _streamed(response, (await response.read()).decode())
            return _whole(response, await response.read())

    async def json(self, path: str) -> Any:
        """GET, as JSON."""
        async with self._http.get(f"{self.url}{path}") as response:
            assert response.status == 200, f"{path}: {response.status}"
            return await response.json(content_type=None)

    async def metrics(self, labelled: str = "") -> dict[str, float]:
        """The engine's Prometheus counters and gauges, summed over their labels; 0 for one not there yet.

        ``labelled``: only of those that have this label, as the page has it: ``mode="decode"``.
        """
        async with self._http.get(f"{self.url}/metrics") as response:
            text = await response.text()
        totals: defaultdict[str, float] = defaultdict(float)
        for sample in _SAMPLE.finditer(text):
            if labelled not in (sample["labels"] or ""):
                continue
            name = sample["name"].removeprefix("sglang:").removeprefix("vllm:")
            totals[name] += float(sample["value"])
        return totals

    async def penstock(self) -> Any:
        """The plugin's health."""
        return await self.json("/penstock/health")

    async def mode(self, wanted: str) -> Any:
        """The plugin's health once its gate is in that mode."""

        async def look() -> Any:
            health = await self.penstock()
            return health if health["mode"] == wanted else None

        return await eventually(look, what=f"gate that is {wanted}", timeout_s=MODE_TIMEOUT_S, every_s=LOOK_S)

    async def boot_id(self) -> str:
        """The daemon that the plugin's gate heard last; empty before the first."""
        return str((await self.penstock())["daemon"]["boot_id"])

    async def governed_anew(self, before: str) -> Any:
        """The plugin's health once its gate is governed by another daemon than ``before``.

        The lease of a daemon that is gone goes on for a while, so that the mode alone does not tell.
        """

        async def look() -> Any:
            health = await self.penstock()
            return health if health["mode"] == "governed" and health["daemon"]["boot_id"] != before else None

        return await eventually(
            look, what="gate that is governed by another daemon", timeout_s=MODE_TIMEOUT_S, every_s=LOOK_S
        )

    async def turns_done(self) -> float:
        """Turns that ended, as the engine itself counts."""
        counts = await self.metrics()
        return counts["num_requests_total"] + counts["request_success_total"]  # SGLang's, and vLLM's

    async def flush(self) -> None:
        """Empty the engine's cache; nothing may run, and an engine may be a step behind its last reply."""

        async def flushed() -> bool:
            for path in ("/flush_cache", "/reset_prefix_cache"):  # SGLang's, and vLLM's
                async with self._http.post(f"{self.url}{path}") as response:
                    if response.status == 200:
                        return True
            return False

        await eventually(
            flushed, what="idle engine whose cache can be flushed", timeout_s=FLUSH_TIMEOUT_S, every_s=LOOK_S
        )


def _streamed(response: aiohttp.ClientResponse, text: str) -> Reply:
    lines = [line.strip() for line in text.splitlines()]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]  # some name the event, too
    chunks = [json.loads(each) for each in data if each != "[DONE]"]
    failed = [chunk for chunk in chunks if "error" in chunk]
    texts = [_text(choice) for chunk in chunks for choice in chunk.get("choices", ())]
    usages = (chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage"))
    usage = next((each for each in usages if "prompt_tokens" in each), None)  # OpenAI's chats and completions
    status = response.status if not failed else 500
    reply = _reply(response, status, "".join(texts), usage, failed or None, len(chunks))
    told = dict(_HELD.findall(text))  # where the reply began while its turn was held
    return replace(reply, headers={**reply.headers, **told})


def _whole(response: aiohttp.ClientResponse, data: bytes) -> Reply:
    try:
        body = json.loads(data)
    except ValueError:
        body = data.decode(errors="replace")
    if not isinstance(body, dict) or "choices" not in body:
        return _reply(response, response.status, "", None, body, 1)
    return _reply(response, response.status, _text(body["choices"][0]), body["usage"], body, 1)


def _text(choice: Any) -> str:
    """What a choice says: a chat's message or a piece of one, or a completion's text."""
    said = choice.get("message") or choice.get("delta") or {}
    return said.get("content") or choice.get("text") or ""


def _reply(response: aiohttp.ClientResponse, status: int, text: str, usage: Any, body: Any, chunks: int) -> Reply:
    counts = {}
    if usage is not None:
        counts = {
            "prompt_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0),
        }
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Reply(status=status, text=text, chunks=chunks, headers=headers, body=body, **counts)

"""``penstock gate`` before a double of llama.cpp's server: the real command, Envoy, daemon and bus."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
from support.commands import penstock
from support.daemon_process import eventually
from support.llamacpp_double import LlamaDouble, llama_double
from support.outside_gates import gate_outside, health_of

TIMEOUT_S = 240.0  # far more than is needed: the machine may be busy
PROGRAMS = [f"p{number}" for number in range(6)]


async def turn(http: aiohttp.ClientSession, url: str, program: str, messages: list[dict[str, Any]]) -> float:
    """The next turn of the program: what share of its prompt was cached."""
    said = " ".join(f"{program}-{len(messages)}-{word}" for word in range(40))
    messages.append({"role": "user", "content": said})
    body = {"model": "m", "max_tokens": 4, "messages": messages}
    async with http.post(f"{url}/v1/chat/completions", json=body, headers={"x-session-id": program}) as answer:
        assert answer.status == 200, await answer.text()
        told = await answer.json()
    messages.append(told["choices"][0]["message"])
    return float(told["usage"]["prompt_tokens_details"]["cached_tokens"] / told["usage"]["prompt_tokens"])


async def test_programs_find_their_contexts_and_the_daemons_commands_are_obeyed(tmp_path: Path) -> None:
    """InferCept keeps each context for a moment after its turn, and discards what stays away."""
    async with llama_double(LlamaDouble(tmp_path)) as address, aiohttp.ClientSession() as http:
        log, options = tmp_path / "gate.log", ("--preset", "infercept", "--slot-save-path", str(tmp_path))
        with gate_outside(f"http://{address}", tmp_path, log, *options) as (url, process):

            async def obeys() -> bool:
                assert process.poll() is None, log.read_text()[-2000:]
                told = await health_of(http, url)
                if told.get("mode") != "governed" or told["outside"]["scheduler"] != "obeys by its API":
                    return False
                return bool(told["engine"]["pool"] == "its API")

            await eventually(obeys, what="a gate whose engine obeys", timeout_s=TIMEOUT_S)
            spoken: dict[str, list[dict[str, Any]]] = {name: [] for name in PROGRAMS}
            for name in PROGRAMS:
                assert await turn(http, url, name, spoken[name]) < 0.2
                assert await turn(http, url, name, spoken[name]) > 0.4

            def outcomes() -> str:
                return "".join(path.read_text() for path in tmp_path.glob("*/decisions.jsonl"))

            await eventually(lambda: '"kind":"discard"' in outcomes().replace(" ", ""), what="a discard")
            kinds = [json.loads(line).get("kind") for line in outcomes().splitlines()]
            assert {"admit", "retain", "discard"} <= set(kinds)
            assert "no plugin" not in outcomes()
            status = await asyncio.to_thread(penstock, "status", "--state-dir", str(tmp_path))
            assert "of 4 blocks" in status.stdout, status

"""A prefill engine, a decode engine, and what their router does with a turn, of each of both kinds.

The engines are real, the router is a double. SGLang's KV goes nowhere (``sglang_handoff``), vLLM's through files.
"""

import asyncio
import json
import random
import shutil
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from engine_client import EngineClient, Messages, Reply
from engine_scene import Scene
from engine_server import ROOT, STARTUP, EngineServer, Launch
from engine_versions import KIND
from vllm_server import VllmServer

_STANDIN = Path(__file__).parent / "sglang_handoff"


class _Sglang(EngineServer):
    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        own = super()._own_variables((*plugins, "penstock_handoff"))
        # What is cached is sent early, at a time that only a GPU tells.
        early = {"SGLANG_DISAGG_PREFILL_EARLY_SEND_CACHED_PREFIX": "0"}
        return {**own, **early, "PYTHONPATH": f"{ROOT}:{STARTUP}:{_STANDIN}"}


class _SglangPrefill(_Sglang):
    has_gate = False


class Apart:
    """Both engines. ``folder``: through which vLLM's hand KV over."""

    def __init__(self, prefill: EngineServer, decode: EngineServer, folder: Path) -> None:
        self.prefill, self.decode = prefill, decode
        self._folder = folder

    def forget_files(self) -> None:
        """Nothing that was handed over is found again there."""
        shutil.rmtree(self._folder)
        self._folder.mkdir()

    async def turn(self, scene: Scene, program_id: str, text: str | Messages, tokens: int = 8) -> list[Reply]:
        """What both engines reply: SGLang's router asks them at once, vLLM's one after the other."""
        decoder = EngineClient(self.decode, scene._http)
        if KIND.name == "sglang":
            same = _room()
            asked = (each.chat(program_id, text, output_tokens=tokens, **same) for each in (scene, decoder))
            return list(await asyncio.gather(*asked))
        same = {"request_id": str(uuid.uuid4())}
        params = {"do_remote_decode": True, "do_remote_prefill": False}
        first = await scene.chat(program_id, text, output_tokens=1, kv_transfer_params=params, **same)
        return [first, await decoder.chat(program_id, text, output_tokens=tokens, **same)]

    @asynccontextmanager
    async def router(self, http: Any) -> AsyncIterator[str]:
        """SGLang's as a server, which hands on few headers: its URL."""

        async def pass_on(request: web.Request) -> web.Response:
            body, names = {**await request.json(), **_room()}, ("authorization", "x-request-id")
            headers = {name: request.headers[name] for name in names if name in request.headers}

            async def ask(engine: EngineServer) -> web.Response:
                async with http.post(f"{engine.url}{request.path}", json=body, headers=headers) as answer:
                    data = await answer.read()
                    return web.Response(status=answer.status, body=data, content_type=answer.content_type)

            return (await asyncio.gather(ask(self.prefill), ask(self.decode)))[1]

        app = web.Application()
        app.router.add_post("/v1/chat/completions", pass_on)
        async with TestServer(app) as server:
            yield str(server.make_url("")).rstrip("/")


def _room() -> dict[str, Any]:
    return {"bootstrap_host": "127.0.0.1", "bootstrap_room": random.getrandbits(62)}


def apart(launch: Launch, folder: Path) -> Iterator[Apart]:
    """Started together."""
    classes: Sequence[type[EngineServer]] = (_SglangPrefill, _Sglang)
    # A decode server backs retracted turns up on the host, which it wants 10 GiB of if nothing is said.
    same = ("--disaggregation-transfer-backend", "nixl", "--hicache-ratio", "1")
    forms = [("--disaggregation-mode", mode, *same) for mode in _MODES]
    if KIND.name == "vllm":
        classes = (VllmServer, VllmServer)
        forms = [("--kv-transfer-config", _transfer(role, folder)) for role in ("kv_producer", "kv_consumer")]
    starts = [
        launch(mode, *form, server_class=each) for mode, form, each in zip(_MODES, forms, classes, strict=True)
    ]
    try:
        with ThreadPoolExecutor(len(starts)) as pool:
            yield Apart(*pool.map(next, starts), folder)
    finally:
        for start in starts:
            start.close()


_MODES = ("prefill", "decode")


def _transfer(role: str, folder: Path) -> str:
    extra = {"shared_storage_path": str(folder)}
    return json.dumps({"kv_connector": "ExampleConnector", "kv_role": role, "kv_connector_extra_config": extra})

"""Misses that a client causes, on the real engine: told with their cause, and spared by the gate's repairs."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_client import Messages
from engine_scene import FCFS, NODE, Bus, Scene, playing
from engine_server import EngineServer, serving
from engine_versions import KIND
from tiny_model import VOCABULARY, words, write_tiny_model

from controlplane.core.model.causes import Cause
from controlplane.core.model.events import TurnEnded, TurnSubmitted

TURNS, OUTPUT_TOKENS = 5, 8
TOOLS, TOOL_TOKENS, SYSTEM_TOKENS, STEP_TOKENS = 6, 20, 300, 60
CLIENT = "claude-cli/2.1.197 (external, cli)"
TEMPLATE = (
    "{% for t in tools or [] %}{% set f = t.function if t.function is defined else t %}"
    "{{ f['name'] }} {{ f['description'] }} {% endfor %}{% for m in messages %}{{ m['content'] }} {% endfor %}"
)
ARGUMENTS = {"vllm": ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")}
TELL_CACHED = ("--enable-cache-report", "--enable-prompt-tokens-details")
SPARED = "with repairs"


@pytest.fixture(scope="module")
def model_with_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its template writes tools before messages, and it knows the times of day that turns are asked for at."""
    folder = write_tiny_model(tmp_path_factory.mktemp("with-tools") / "tiny", KIND.head_dim)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    for turn in range(TURNS):
        del vocabulary[f"w{VOCABULARY - 1 - turn}"]
        vocabulary[time_of(turn)] = VOCABULARY - 1 - turn
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture(scope="module", params=["as it comes", SPARED])
def engine(
    request: pytest.FixtureRequest,
    engine_env: Path,
    model_with_tools: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[EngineServer, bool]]:
    repairs = request.param == SPARED
    folder = tmp_path_factory.mktemp("misses")
    server = KIND.server_class(
        folder,
        environment=engine_env,
        model=model_with_tools,
        plugins=("penstock",),
        variables={
            "PENSTOCK_NODE": NODE,
            "PENSTOCK_STATE_DIR": str(folder),
            "PENSTOCK_REPAIR": "tools,heads" if repairs else "",
        },
        arguments=ARGUMENTS.get(KIND.name, ()),
    )
    server.command = [each for each in server.command if each not in TELL_CACHED]  # the plugin has it told
    for started in serving(server):
        yield started, repairs


def time_of(turn: int) -> str:
    return f"10:00:0{turn}"


def tools_at(turn: int) -> list[Any]:
    """Another order each time, as a client has that keeps them in a set."""
    functions = [{"name": f"w{100 + at}", "description": words(700 + at, TOOL_TOKENS)} for at in range(TOOLS)]
    return [{"type": "function", "function": each} for each in functions[turn:] + functions[:turn]]


async def again_tokens(scene: Scene, name: str, *, timed: bool, turned: bool) -> int:
    """A program of several turns: the tokens that were computed for it again, as the engine's usage says."""
    messages: Messages = [{"role": "system", "content": ""}]
    known = again = 0
    for turn in range(TURNS):
        head = (
            f"{words(601, SYSTEM_TOKENS // 2)}\n{time_of(turn if timed else 0)}\n{words(602, SYSTEM_TOKENS // 2)}"
        )
        messages[0]["content"] = head
        messages.append({"role": "user", "content": words(610 + turn, STEP_TOKENS)})
        body = {
            "model": "tiny",
            "max_tokens": OUTPUT_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
            "messages": messages,
            "tools": tools_at(turn if turned else 0),
        }
        reply = await scene.post("/v1/chat/completions", body, name, user_agent=CLIENT)
        assert reply.status == 200, reply.body
        again += max(0, known - reply.cached_tokens)
        known = reply.prompt_tokens + reply.output_tokens
        messages.append({"role": "assistant", "content": reply.text})
        await scene.until(TurnEnded, count=turn + 1, program_id=name)
    return again


async def test_a_clients_misses_are_named_or_spared(engine: tuple[EngineServer, bool], bus: Bus) -> None:
    """A time in the system prompt, and tools in another order each turn, each by itself."""
    server, repairs = engine
    async with playing(server, bus, FCFS) as scene:
        found = {}
        for name, cause in (("timed", Cause.VOLATILE), ("turned", Cause.TOOLS_REORDERED), ("still", Cause.NONE)):
            await scene.flush()
            again = await again_tokens(scene, f"{name}-{repairs}", timed=name == "timed", turned=name == "turned")
            told = scene.heard(TurnSubmitted, program_id=f"{name}-{repairs}")
            found[name] = again
            assert {each.client for each in told} == {"claude-cli 2.1.197"}
            if not repairs:
                assert [each.change for each in told[1:]] == [cause] * (TURNS - 1)
        logging.getLogger(__name__).info("%s, repairs %s: computed again %s", KIND.name, repairs, found)
        head = TOOLS * TOOL_TOKENS + SYSTEM_TOKENS
        assert found["still"] <= (TURNS - 1) * (OUTPUT_TOKENS + 2 * server.block_tokens), "but for the replies"
        if not repairs:
            assert min(found["timed"], found["turned"]) > (TURNS - 1) * head / 2
        else:
            assert found["turned"] == found["still"], "as if the client had kept their order"
            # The second turn shows that the line changes, and the third is the first without it.
            assert found["timed"] < 2 * (head + 3 * STEP_TOKENS) + (TURNS - 3) * 2 * STEP_TOKENS

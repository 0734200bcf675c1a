"""``penstock gate``: a gate before any server that speaks OpenAI's or Anthropic's API."""

import os
import sys
from typing import Annotated

import typer

from controlplane.cli.options import ConfigFile, PresetName, about_to_serve
from controlplane.cli.run import NatsUrl, Node, StateDir


def gate(
    upstream: Annotated[str, typer.Option("--upstream", help="The server: http://HOST:PORT.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT where agents reach the gate.")] = "127.0.0.1:8080",
    pool_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that its KV memory holds, where its metrics page does not tell.")
    ] = 0,
    slot_save_path: Annotated[
        str, typer.Option(help="llama.cpp's own --slot-save-path: contexts are demoted to files there.")
    ] = "",
    slot_save_gib: Annotated[
        float, typer.Option(min=0, help="What those files may take together; the oldest go first.")
    ] = 8.0,
    config: ConfigFile = None,
    preset: PresetName = None,
    node: Node = None,
    nats: NatsUrl = None,
    state_dir: StateDir = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Stand before any server that speaks OpenAI's or Anthropic's API, and hold turns as `penstock up` decides.

    For vLLM's Rust front end, SGLang with several tokenizer workers, TensorRT-LLM, llama.cpp, Ollama, LMDeploy, MLX
    and whatever else has no place for Penstock's plugin. Point agents at the gate in place of the server.

    One command: it starts Envoy, which carries the turns, and a daemon where this node has none yet and `--nats`
    names no bus. The server is known by what passes and by its metrics page; where the plugin's scheduler side
    works in it, by that. SIGTERM lets running turns go on for 20 s, Ctrl-C ends all at once. What clients see when
    something dies:

    - **Envoy**: what runs is cut, and clients ask again; it listens again within a second.

    - **The picker**, which Envoy asks: what runs goes on, what is held is asked again.

    - **The daemon or the bus**: held turns go on waiting for half a minute at most, then are let in step by step.
    """
    about_to_serve(log_level, reloads=False)
    from controlplane.fleet.outside import GateOptions, run_gate
    from controlplane.transport.endpoint import URL_VARIABLE

    if nats:
        os.environ[URL_VARIABLE] = nats  # not in the picker's command line, which everybody sees
    options = GateOptions(
        upstream=upstream,
        listen=listen,
        node=node or "local",
        state_dir=state_dir or "",
        pool_tokens=pool_tokens,
        slot_save_path=slot_save_path,
        slot_save_bytes=int(slot_save_gib * (1 << 30)),
        log_level=log_level,
    )
    daemon = [sys.executable, "-m", "controlplane", "up", "--log-level", log_level]
    for name, value in (
        ("--config", config and str(config)),
        ("--preset", preset),
        ("--node", node),
        ("--state-dir", state_dir),
    ):
        daemon += [name, value] if value else []
    run_gate(options, daemon)

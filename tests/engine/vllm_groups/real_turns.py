"""Programs' turns on a real vLLM in this process, with tiny models of several kinds of attention, under pressure.

    python real_turns.py [--turns 3] FOLDER [MODEL ...]

It runs in vLLM's environment; models are written into FOLDER, and have no weights. More programs take turns, one
after the other, than the pool has room for: first as vLLM does it, then with their contexts retained; in the end a
few turns at once need all of the pool. It prints a line of JSON for each model.

    alone       tokens that a program's returns find in the cache where there is no other
    stock       the same, of each program, with the others between its turns and nothing retained
    pinned      the same, with each context retained for which the budget has room
"""

import argparse
import gc
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind"
)
os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_HOST_IP="127.0.0.1")
os.environ.update(
    PENSTOCK_PLUGIN_LABELS="penstock",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_PLUGINS="",
    PENSTOCK_PLUGIN_PORT="8000",
    PENSTOCK_PLUGIN_BOARD="",
)

from models import MODELS, write_model
from vllm import LLM, SamplingParams
from vllm.config.scheduler import SchedulerConfig
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2

from controlplane.core.model.commands import Discard, Retain
from controlplane.core.model.types import seconds
from controlplane.emit.emitter import Emitter
from engine_hooks.engine.settings import Settings
from engine_hooks.vllm.attached import Attached
from engine_hooks.vllm.scheduler_side import SchedulerSide

PROGRAMS, FIRST_TOKENS, NEW_TOKENS, OUTPUT_TOKENS = 8, 700, 90, 24
MOST_TOKENS, AT_ONCE = 2048, 4
VOCABULARY = range(10, 2000)


class Engine:
    """One model on one engine with the plugin."""

    def __init__(self, name: str, folder: Path) -> None:
        self.side = side = SchedulerSide(Settings(pin_budget_ratio=0.6))
        choose = SchedulerConfig.get_scheduler_cls
        SchedulerConfig.get_scheduler_cls = lambda self: side.wraps(choose(self))
        try:
            self.llm = LLM(
                model=str(write_model(folder / name, name)),
                skip_tokenizer_init=True,
                load_format="dummy",
                dtype="bfloat16",
                enforce_eager=True,
                max_model_len=MOST_TOKENS,
                max_num_batched_tokens=512,
                num_gpu_blocks_override=MODELS[name].blocks,
                block_size=32,
                enable_prefix_caching=True,
                distributed_executor_backend="uni",
            )
        finally:
            SchedulerConfig.get_scheduler_cls = choose
        assert side.attached is not None, side.passive_because
        self.attached: Attached = side.attached
        self.told: list[str] = []
        self.attached._probe._send = self.attached._send = lambda event: self.told.append(type(event).__name__)

    def turns(self, prompts: Mapping[str, list[int]]) -> list[tuple[list[int], int]]:
        """A turn of each program, at once: the answers, and how many tokens of the prompts were in the cache."""
        params = [
            SamplingParams(
                temperature=0,
                max_tokens=OUTPUT_TOKENS,
                ignore_eos=True,
                detokenize=False,
                extra_args={"penstock": {"program_id": program}},
            )
            for program in prompts
        ]
        asked = [{"prompt_token_ids": tokens} for tokens in prompts.values()]
        done = self.llm.generate(asked, params, use_tqdm=False)  # type: ignore[arg-type]
        return [(list(each.outputs[0].token_ids), int(each.num_cached_tokens or 0)) for each in done]

    def say(self, command: Any) -> None:
        self.attached.on_command(command)
        self.attached.idle()

    def rounds(self, programs: int, turns: int, *, retained: bool = False) -> tuple[Counter[str], list[list[int]]]:
        """What each program's returns found, and all answers. Each round is a turn of every program."""
        assert self.llm.reset_prefix_cache()
        rng, found, answers = random.Random(1), Counter[str](), []
        contexts = {f"p{number}": rng.choices(VOCABULARY, k=FIRST_TOKENS) for number in range(programs)}
        for turn in range(turns):
            for name, context in contexts.items():
                ((answer, cached),) = self.turns({name: context})
                found[name] += cached if turn else 0
                answers.append(answer)
                contexts[name] = context + answer + rng.choices(VOCABULARY, k=NEW_TOKENS)
                if retained:
                    self.say(Retain(command_id=1, program_id=name, ttl_ns=seconds(600)))
        return found, answers


def report(name: str, folder: Path, turns: int) -> dict[str, Any]:
    """Run one model."""
    began = time.process_time()
    engine = Engine(name, folder)
    scheduler, pins = engine.attached.scheduler, engine.attached._pins
    pool = scheduler.kv_cache_manager.block_pool
    alone, _ = engine.rounds(1, turns)
    stock, said = engine.rounds(PROGRAMS, turns)
    pinned, said_with_pins = engine.rounds(PROGRAMS, turns, retained=True)
    held = [len(pin.lock.receipt) for pin in pins._held.values()]
    rng = random.Random(2)
    large = {f"large-{n}": rng.choices(VOCABULARY, k=MOST_TOKENS - OUTPUT_TOKENS) for n in range(AT_ONCE)}
    answered = [len(answer) for answer, _ in engine.turns(large)]
    engine.say(Discard(command_id=2, program_id="large-0"))
    for program in list(pins.programs):
        pins.release(program)
    return {
        "model": name,
        "groups": engine.attached.groups,
        "alone": alone["p0"],
        "stock": list(stock.values()),
        "pinned": list(pinned.values()),
        "same answers": said == said_with_pins,
        "blocks of each pin": held,
        "blocks": pool.num_gpu_blocks - 1,
        "tokens a block stands for": engine.attached._view.page_tokens,
        "large turns answered": answered,
        "pins reclaimed for them": engine.told.count("PinReclaimed"),
        "blocks lost": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
        "hooks that failed": dict(engine.side.guard.failures),
        "cpu s": round(time.process_time() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--turns", type=int, default=3)
    args = parser.parse_args()
    Emitter.start = lambda emitter, *more: None  # type: ignore[method-assign, assignment]
    # Its scan on a CPU returns no states from within a chunk, which this asks for: no block is reserved for one.
    MambaMixer2.get_kv_cache_spec = MambaBase.get_kv_cache_spec
    for name in args.models:
        sys.stdout.write(json.dumps(report(name, args.folder, args.turns)) + "\n")
        sys.stdout.flush()
        gc.collect()
        cleanup_dist_env_and_memory()


if __name__ == "__main__":
    main()

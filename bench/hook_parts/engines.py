"""What the benchmark has to know of each engine: its scheduler's process, its hooks, how it is asked for tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ab.kinds import KINDS, SGLANG, VLLM, Kind

from engine_hooks.engine.settings import Settings
from engine_hooks.guard import Guard
from engine_hooks.vllm.scheduler_side import SchedulerSide

Call = Callable[[], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooked:
    """One engine.

    ``process``: what the command line of its scheduler's process has in it. ``step``: a hook that runs once in each
    step. ``telling``: the hooks that make events. ``path`` and ``body``: where and how so many tokens are asked for
    behind a prompt of token ids. ``empty``: a function, and the same with a hook around it that does nothing.
    """

    kind: Kind
    process: str
    step: str
    telling: Sequence[str]
    path: str
    body: Callable[[Sequence[int], int, bool], dict[str, Any]]
    empty: Callable[[], tuple[Call, Call]]


def _sglang_body(prompt: Sequence[int], output_tokens: int, stream: bool) -> dict[str, Any]:
    sampling = {"max_new_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling, "stream": stream}


def _vllm_body(prompt: Sequence[int], output_tokens: int, stream: bool) -> dict[str, Any]:
    asked = {"max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
    return {"model": "tiny", "prompt": prompt, "stream": stream, **asked}


def _nothing(*args: object) -> None:
    return None


def _sglang_empty() -> tuple[Call, Call]:
    """SGLang's wrapper, ours and the guard."""
    hook = Guard().around("nothing", before=lambda: None)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return hook(_nothing, *args, **kwargs)

    return _nothing, wrapped


def _vllm_empty() -> tuple[Call, Call]:
    """An override that calls our part and then the engine's own method."""
    side = SchedulerSide(Settings())
    side.attached = object()  # type: ignore[assignment]  # a part runs only where something is attached

    class Plain:
        def step(self) -> None:
            return None

    class Observed(Plain):
        def step(self, *args: Any, **kwargs: Any) -> None:
            side.part("nothing", _nothing)
            return super().step(*args, **kwargs)

    return Plain().step, Observed().step


HOOKED: Mapping[str, Hooked] = {
    SGLANG: Hooked(
        kind=KINDS[SGLANG],
        process="sglang::scheduler",
        step="process_batch_result",
        telling=(
            "_add_request_to_queue",
            "get_new_batch_prefill",
            "process_batch_result",
            "release_kv_cache",
        ),
        path="/generate",
        body=_sglang_body,
        empty=_sglang_empty,
    ),
    VLLM: Hooked(
        kind=KINDS[VLLM],
        process="EngineCore",
        step="schedule",
        telling=("add_request", "schedule", "without_token", "update_from_output", "before_free", "_free_request"),
        path="/v1/completions",
        body=_vllm_body,
        empty=_vllm_empty,
    ),
}

"""SGLang's functions as doubles that note their calls, with the plugin's hooks around them."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_double import RequestDouble, SchedulerDouble, ViewDouble
from sglang_double import SglangDouble
from support.hooked import emitted

from controlplane.core.model.types import seconds
from controlplane.core.policies.engine_policies import EnginePolicies
from controlplane.core.policies.memory.opportunistic import Opportunistic
from controlplane.core.policies.priority.mlfq import Mlfq
from engine_hooks.engine.settings import PluginMode, Settings
from engine_hooks.sglang import attached, scheduler_side
from engine_hooks.sglang.attached import Attached
from engine_hooks.sglang.scheduler_side import RELEASE
from engine_hooks.sglang.targets import CHECK_PREFILL, CHUNK_TOKENS, RETRACTION, SCHEDULER, TREE

EVICT = TREE + "evict_for_alloc"
MARS = EnginePolicies(priority=Mlfq(), memory=Opportunistic())


@dataclass
class EvictParamsDouble:
    """SGLang's."""

    num_tokens: int = 0
    swa_num_tokens: int = 0
    mamba_num: int = 0


@dataclass
class EvictResultDouble:
    """SGLang's."""

    num_tokens_evicted: int = 0


class Engine:
    """SGLang's functions as doubles that note their calls, with the plugin's hooks around them."""

    def __init__(self, sglang: SglangDouble, monkeypatch: pytest.MonkeyPatch, mode: PluginMode) -> None:
        self.calls: list[Any] = []
        self.verdict: Any = (False, None)
        self.limit: Any = 777
        self.evict_result: Any = EvictResultDouble(5)
        self._sglang, engine = sglang, self  # SGLang's own functions have a self, too
        sglang.set(EVICT, lambda self, params: engine._called(params, engine.evict_result))
        sglang.set(CHECK_PREFILL, lambda self, req, **sizes: engine._called(sizes, engine.verdict))
        sglang.set(CHUNK_TOKENS, lambda self, chunk_limit: engine._called(chunk_limit, engine.limit))
        sglang.set(RETRACTION, lambda reqs: self._called(reqs, list(range(len(reqs)))[::-1]))
        self.scheduler = SchedulerDouble()
        self.view = ViewDouble(self.scheduler)
        self.sent = emitted(monkeypatch)
        monkeypatch.setattr(attached, "EngineView", lambda scheduler: self.view)
        self.side = scheduler_side.install(Settings(mode=mode))
        sglang.registry.apply_hooks()
        self.call(f"{SCHEDULER}__init__", self.scheduler)

    def _called(self, given: Any, result: Any) -> Any:
        self.calls.append(given)
        return result

    @property
    def attached(self) -> Attached:
        assert self.side.attached is not None
        return self.side.attached

    def call(self, target: str, *args: Any, **kwargs: Any) -> Any:
        """One of SGLang's functions, as SGLang calls it."""
        return self._sglang.find(target)(*args, **kwargs)

    # What goes on in the scheduler

    def step(self) -> None:
        self.call(f"{SCHEDULER}get_next_batch_to_run", self.scheduler)

    def steered(self, policies: EnginePolicies = MARS) -> "Engine":
        """A heartbeat with policies has come."""
        self.beat(policies.dumps())
        return self

    def beat(self, text: str) -> None:
        heard = self.attached.emitter._options.on_heartbeat
        assert heard is not None
        heard(SimpleNamespace(engine_policies=text, lease_ttl_ns=seconds(60)))  # type: ignore[arg-type]
        self.step()

    def command(self, command: Any) -> None:
        self.attached.on_command(command)
        self.step()

    def queued(self, request: RequestDouble) -> RequestDouble:
        self.call(f"{SCHEDULER}_add_request_to_queue", self.scheduler, request)
        return request

    def prefilled(self, batch: Any) -> None:
        """The scheduler planned this prefill."""
        hook = self.side.hooks[f"{SCHEDULER}get_new_batch_prefill"]
        assert hook(lambda scheduler: batch, self.scheduler) is batch

    def ran(self, program: str, tokens: int) -> None:
        """A turn of the program came, ended and left a context."""
        request = self.queued(RequestDouble(f"turn of {program}", tokens, program=program))
        request.is_finished = True
        self.call(RELEASE, request, "tree")
        self.view.cached[program] = tokens

    def evict(self, tokens: int) -> Any:
        return self.call(EVICT, "tree", EvictParamsDouble(tokens, swa_num_tokens=3))

    def check_prefill(self, request: RequestDouble, *, rem_chunk_tokens: int | None = 1000, **adder: Any) -> Any:
        made = SimpleNamespace(
            rem_chunk_tokens=rem_chunk_tokens,
            new_chunked_req=adder.get("new_chunked_req"),
            memory_budget=SimpleNamespace(current_offset=0),
            can_run_list=[],
            ceil_paged_tokens=lambda tokens: -(-tokens // 16) * 16,
        )
        wanted = len(request.origin_input_ids)
        return self.call(
            CHECK_PREFILL, made, request, extend_input_len=wanted, total_tokens=wanted + 100, swa_host_hit_length=0
        )

    def chunk_tokens(self, chunk_limit: int = 1000) -> Any:
        return self.call(CHUNK_TOKENS, SimpleNamespace(current_offset=0), chunk_limit)

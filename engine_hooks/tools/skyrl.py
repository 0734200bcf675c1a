"""SkyRL (0.4): importing this module names each rollout and its GRPO group, and tells of ends and of new weights.

    import engine_hooks.tools.skyrl      # in the process that runs the trainer, before it begins

A trajectory is a program, the environment's step is its tool, and the samples of one prompt are a group. SkyRL
sends a session id by itself (``x-session-id``), but that is a row of its data: another epoch has it, too.
"""

import contextvars
import itertools
import logging
import threading
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from controlplane.emit.tool_reporter import ToolReporter
from engine_hooks.tools.patching import Adapter, Hook, Seam, argument
from engine_hooks.tools.shared import PROGRAM_HEADER, guard

log = logging.getLogger("penstock")

_GROUP_HEADER = "x-penstock-group-id"
_GROUP_SIZE_HEADER = "x-penstock-group-size"
_STEP = "step"  # of an environment: what it does with a reply
_TRAJECTORY_AT = 7  # among the arguments of ``agent_loop``
_HEADERS_AT = 3  # and of ``_post``
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class _Group:
    """The samples of one prompt in one batch."""

    group_id: str
    size: int


@dataclass(frozen=True, slots=True)
class _Rollout:
    program_id: str
    environment: str
    group: _Group | None
    steps: Iterator[int] = field(default_factory=itertools.count)

    @property
    def headers(self) -> dict[str, str]:
        named = {PROGRAM_HEADER: self.program_id}
        if self.group is not None:
            named |= {_GROUP_HEADER: self.group.group_id, _GROUP_SIZE_HEADER: str(self.group.size)}
        return named


_groups: contextvars.ContextVar[Mapping[str, _Group]] = contextvars.ContextVar(
    "penstock_groups", default=MappingProxyType({})
)
_rollout: contextvars.ContextVar[_Rollout | None] = contextvars.ContextVar("penstock_rollout", default=None)


class Reports:
    """What to report at each seam. Arguments have SkyRL's names."""

    def __init__(self, to: ToolReporter) -> None:
        self._to = to

    def hooks(self) -> list[Hook]:
        """All seams and what to do there. Raises ``ImportError`` without SkyRL."""
        from skyrl.backends.skyrl_train.inference_servers import remote_inference_client as clients
        from skyrl.train.generators import SkyRLGymGenerator, SkyRLVLMGymGenerator

        client, names = clients.RemoteInferenceClient, ("env_class", "trajectory_id")
        return [
            Hook(Seam(SkyRLGymGenerator, "generate", ("input_batch",)), self.batch_begins, self.batch_ends),
            Hook(Seam(SkyRLGymGenerator, "agent_loop", names), self.rollout_begins, self.rollout_ends),
            Hook(Seam(SkyRLVLMGymGenerator, "agent_loop", names), self.rollout_begins, self.rollout_ends),
            Hook(
                Seam(SkyRLGymGenerator, "_run_in_executor_if_available", ("func",)),
                self.step_begins,
                self.step_ends,
            ),
            Hook(Seam(clients.RemoteGenerateClient, "_post", ("url", "headers")), self.name_the_request),
            Hook(Seam(client, "increment_weight_version"), after=self.weights_updated),
        ]

    def batch_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        ids = argument(args, kwargs, 1, "input_batch").get("trajectory_ids") or ()
        sizes = Counter(each.instance_id for each in ids)
        return _groups.set({prompt: _Group(_new_name(), size) for prompt, size in sizes.items()})

    def batch_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        if saved is not None:
            _groups.reset(saved)

    def rollout_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sample = args[_TRAJECTORY_AT] if len(args) > _TRAJECTORY_AT else kwargs.get("trajectory_id")
        group, program = None, _new_name()
        if sample is not None and (group := _groups.get().get(sample.instance_id)) is not None:
            program = f"{group.group_id}-{sample.repetition_id}"
        rollout = _Rollout(program, str(argument(args, kwargs, 2, "env_class")), group)
        self._to.program_started(program)
        return _rollout.set(rollout), program

    def rollout_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        if saved is None:
            return
        token, program = saved
        _rollout.reset(token)
        self._to.program_ended(program, type(error).__name__ if error else "finished")

    def name_the_request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if (rollout := _rollout.get()) is not None and len(args) <= _HEADERS_AT:
            kwargs["headers"] = {**(kwargs.get("headers") or {}), **rollout.headers}

    def step_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str] | None:
        rollout, work = _rollout.get(), argument(args, kwargs, 1, "func")
        if rollout is None or getattr(work, "__name__", "") != _STEP:
            return None
        call = f"{_STEP}-{next(rollout.steps)}"
        self._to.tool_started(rollout.program_id, call, rollout.environment)
        return rollout.program_id, call

    def step_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        if saved is not None:
            self._to.tool_ended(*saved, ok=error is None)

    def weights_updated(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """Tell the gate in a thread of its own: the trainer's loop goes on. The process ends no sooner."""
        url = f"{args[0].proxy_url}/weights_updated"
        threading.Thread(target=guard.run, args=("weights", _tell, url)).start()


def _new_name() -> str:
    return f"skyrl-{uuid.uuid4().hex}"


def _tell(url: str) -> None:
    """Where no gate answers, those in the engines see what the trainer asks of them."""
    request = urllib.request.Request(url, b"{}", {"content-type": "application/json"}, method="POST")
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=_PATIENCE_S).close()
    except urllib.error.HTTPError as refused:
        refused.close()
    except OSError as problem:
        log.warning("penstock: %s was not told: %s", url, problem)


_adapter = Adapter("SkyRL", lambda to: Reports(to).hooks())
install, uninstall = _adapter.install, _adapter.uninstall

install()

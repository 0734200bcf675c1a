"""mini-swe-agent (2.4): importing this module reports every run and every command of this process.

    import engine_hooks.tools.mini_swe_agent

mini-swe-agent names no session to its model. Each run gets an identity here, which its requests carry if the model
is a ``LitellmModel`` (header ``x-penstock-program-id``).
"""

import contextvars
import uuid
from typing import Any

from controlplane.emit.tool_reporter import ToolReporter
from controlplane.tool_calls.calls import called_name
from engine_hooks.tools.hygiene import Hygiene
from engine_hooks.tools.patching import Adapter, Hook, Seam, argument
from engine_hooks.tools.shared import PROGRAM_HEADER

TOOL = "bash"
_ENVIRONMENTS = (
    ("local", "LocalEnvironment"),
    ("docker", "DockerEnvironment"),
    ("singularity", "SingularityEnvironment"),
)

_program: contextvars.ContextVar[str] = contextvars.ContextVar("penstock_program", default="")


class Reports:
    """What to report at each seam. Arguments have mini-swe-agent's names."""

    def __init__(self, to: ToolReporter) -> None:
        self._to = to
        self._hygiene = Hygiene.of()

    def hooks(self) -> list[Hook]:
        """All seams and what to do there. Raises ``ImportError`` without mini-swe-agent."""
        from minisweagent.agents.default import DefaultAgent
        from minisweagent.models.litellm_model import LitellmModel

        run = Hook(Seam(DefaultAgent, "run", ("task",)), self.run_begins, self.run_ends)
        batch = Hook(Seam(DefaultAgent, "execute_actions", ("message",)), self.batch_begins, self.batch_ends)
        asks = Hook(Seam(LitellmModel, "_query", ("messages", "kwargs")), self.name_the_request)
        clean = (1, "action", self._hygiene.cleaned) if self._hygiene.clean else None
        tools = [
            Hook(Seam(kind, "execute", ("action",)), self.tool_begins, self.tool_ends, clean)
            for kind in environments()
        ]
        return [run, batch, asks, *tools]

    def run_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        program = f"mini-swe-agent-{uuid.uuid4().hex}"
        self._to.program_started(program, parent_id=_program.get())
        return _program.set(program), program

    def run_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        if saved is None:
            return
        token, program = saved
        _program.reset(token)
        status = type(error).__name__ if error else (result or {}).get("exit_status", "")
        self._to.program_ended(program, str(status))

    def name_the_request(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if program := _program.get():
            configured = args[0].config.model_kwargs.get("extra_headers") or {}
            kwargs["extra_headers"] = {**configured, **(kwargs.get("extra_headers") or {}), PROGRAM_HEADER: program}

    def batch_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        message = argument(args, kwargs, 1, "message")
        program, calls = _program.get(), []
        for action in message.get("extra", {}).get("actions", []):
            calls.append(call_of(action))
            self._to.tool_enqueued(program, calls[-1], tool_of(action))
        return calls

    def batch_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """Report calls as ended that never ran because of a submission or an earlier error."""
        for call in saved or ():
            self._to.tool_ended(_program.get(), call, ok=False)

    def tool_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        action = argument(args, kwargs, 1, "action")
        call, tool = call_of(action), tool_of(action)
        self._to.wait_for_slot(_program.get(), call, tool)
        self._to.tool_started(_program.get(), call, tool)
        return call

    def tool_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """Report a tool's end. A submission raises an exception but is no failure."""
        submitted = type(error).__name__ == "Submitted"
        failed = (error is not None and not submitted) or bool((result or {}).get("exception_info"))
        self._to.tool_ended(_program.get(), saved or "", ok=not failed)


def environments() -> list[type]:
    """The environments in which commands run, as far as they can be imported here."""
    import importlib

    found = []
    for module, name in _ENVIRONMENTS:
        try:
            found.append(getattr(importlib.import_module(f"minisweagent.environments.{module}"), name))
        except (ImportError, AttributeError):
            continue
    return found


def call_of(action: dict[str, Any]) -> str:
    """The call's ``gen_ai.tool.call.id``, or the action's identity if the model writes a block instead."""
    return str(action.get("tool_call_id") or f"action-{id(action):x}")


def tool_of(action: dict[str, Any]) -> str:
    """The program that the command runs: ``pytest``, not ``bash``, since durations of ``bash`` say nothing."""
    return called_name(TOOL, action)


_adapter = Adapter("mini-swe-agent", lambda to: Reports(to).hooks())
install, uninstall = _adapter.install, _adapter.uninstall

install()

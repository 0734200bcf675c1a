"""OpenHands: importing this module reports every run and every tool of this process.

    import engine_hooks.tools.openhands                                            # a program of your own
    python -m openhands.agent_server --import-modules engine_hooks.tools.openhands     # the agent server

The agent itself is not edited. If the SDK's private functions differ from those of 1.58, a warning says so, and the
agent runs as if this module were not there.

A conversation is a program, named as the SDK names it to the engine (header ``x-litellm-session-id``). A
conversation that a tool of another starts is its child. A run that finishes, fails or is stuck ends the program,
whose slot and KV may go; the next message begins it again. A paused run, or one that waits for a person's consent,
has not ended. Requests for a title do not share the conversation's prompt, so they are programs of their own.
"""

import contextvars
from typing import Any

from controlplane.emit.latest import Latest
from controlplane.emit.tool_reporter import ToolReporter
from controlplane.tool_calls.calls import called_name
from engine_hooks.tools.hygiene import Hygiene
from engine_hooks.tools.patching import Adapter, Hook, Seam, argument
from engine_hooks.tools.shared import PARENT_HEADER, PROGRAM_HEADER

_ENDED = ("finished", "error", "stuck")
_TITLE = "title"

_running_tool_of: contextvars.ContextVar[str] = contextvars.ContextVar("penstock_running_tool_of", default="")
"""The program whose tool this thread runs: what it starts is a child of that."""
_aside: contextvars.ContextVar[str] = contextvars.ContextVar("penstock_aside", default="")
"""What a request is for that is no turn of the conversation."""


class Reports:
    """What to report at each seam. Arguments have the SDK's names."""

    def __init__(self, to: ToolReporter) -> None:
        self._to = to
        self._hygiene = Hygiene.of()
        self._parents: Latest[str, str] = Latest()  # by child, until its run begins

    def hooks(self) -> list[Hook]:
        """All seams and what to do there. Raises ``ImportError`` without the SDK."""
        from openhands.sdk.agent.agent import Agent
        from openhands.sdk.conversation import title_utils
        from openhands.sdk.conversation.impl.local_conversation import LocalConversation
        from openhands.sdk.llm.llm import LLM
        from openhands.sdk.tool.tool import ToolDefinition

        batch = ("conversation", "action_events")
        called = Hook(Seam(ToolDefinition, "__call__", ("action",)), exchange=(1, "action", self.bounded))
        return [
            *([called] if self._hygiene.on else []),
            Hook(Seam(LocalConversation, "__init__", ("agent",)), after=self.made),
            Hook(Seam(LocalConversation, "run"), self.run_begins, self.run_ends),
            Hook(Seam(LocalConversation, "arun"), self.run_begins, self.run_ends),
            Hook(Seam(Agent, "_execute_actions", batch), self.batch_begins, self.batch_ends),
            Hook(Seam(Agent, "_aexecute_actions", batch), self.batch_begins, self.batch_ends),
            Hook(
                Seam(Agent, "_execute_action_event", ("conversation", "action_event")),
                self.tool_begins,
                self.tool_ends,
            ),
            Hook(Seam(title_utils, "generate_title_with_llm", ("llm",)), self.title_begins, self.title_ends),
            Hook(Seam(LLM, "_transport_call", ("messages", "kwargs")), self.name_the_aside),
            Hook(Seam(LLM, "_atransport_call", ("messages", "kwargs")), self.name_the_aside),
        ]

    # Runs

    def made(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """Make a conversation that a tool makes a child, whichever thread runs it later."""
        parent = _running_tool_of.get()
        if parent and error is None:
            self._parents[program_of(args[0])] = parent

    def run_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        program = program_of(args[0])
        parent = self._parents.pop(program, "") or _running_tool_of.get()
        self._to.program_started(program, parent_id=parent if parent != program else "")
        return program

    def run_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        status = getattr(args[0].state.execution_status, "value", "")
        if isinstance(error, Exception):
            status = "error"
        if saved and status in _ENDED:
            self._to.program_ended(saved, status)

    # Tools

    def batch_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[str, str]]:
        program, calls = program_of(argument(args, kwargs, 1, "conversation")), []
        for event in argument(args, kwargs, 2, "action_events"):
            calls.append((program, call_of(event)))
            self._to.tool_enqueued(*calls[-1], tool_of(event))
        return calls

    def batch_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        """Report calls as ended that never ran because of a hook or a cancellation."""
        for program, call in saved or ():
            self._to.tool_ended(program, call, ok=False)

    def tool_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        event = argument(args, kwargs, 2, "action_event")
        program, call = program_of(argument(args, kwargs, 1, "conversation")), call_of(event)
        tool = tool_of(event)
        self._to.wait_for_slot(program, call, tool)
        token = _running_tool_of.set(program)
        self._to.tool_started(program, call, tool)
        return token, program, call

    def tool_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        if saved is None:
            return
        token, program, call = saved
        _running_tool_of.reset(token)
        self._to.tool_ended(program, call, ok=error is None and not _is_error(result))

    def bounded(self, action: Any) -> Any:
        """Bound the tool's arguments; the event in the conversation's log keeps what the model wrote."""
        fields = {name: getattr(action, name) for name in type(action).model_fields}
        changed = {name: new for name, old in fields.items() if (new := self._hygiene.cleaned(old)) is not old}
        if self._hygiene.timeout_s and "timeout" in fields and fields["timeout"] is None:
            changed["timeout"] = self._hygiene.timeout_s
        return action.model_copy(update=changed) if changed else action

    # Requests that are no turns

    def title_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _aside.set(_TITLE)

    def title_ends(self, saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        if saved is not None:
            _aside.reset(saved)

    def name_the_aside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Send the request under its own name, announced as a child of the conversation so that it is not held."""
        aside = _aside.get()
        if not aside:
            return
        headers = dict(kwargs.get("extra_headers") or {})
        if session := headers.get("x-litellm-session-id", ""):
            headers[PROGRAM_HEADER] = f"{session}/{aside}"
            headers[PARENT_HEADER] = session
            kwargs["extra_headers"] = headers
            self._to.program_started(headers[PROGRAM_HEADER], parent_id=session, aside=True)


def program_of(conversation: Any) -> str:
    """The name under which the conversation's requests reach the engine."""
    return str(conversation.get_llm_call_context().session_id or conversation.id)


def call_of(event: Any) -> str:
    """The call's ``gen_ai.tool.call.id``, or the action's own id if the model gave none."""
    return str(event.tool_call_id or event.id)


def tool_of(event: Any) -> str:
    """The program that a terminal's command runs; for other tools and typed keys the tool's own name."""
    action = getattr(event, "action", None)
    if getattr(action, "is_input", False):
        return str(event.tool_name)
    return called_name(str(event.tool_name), {"command": getattr(action, "command", "")})


def _is_error(events: Any) -> bool:
    return any(
        type(event).__name__ == "AgentErrorEvent" or getattr(getattr(event, "observation", None), "is_error", False)
        for event in events or ()
    )


_adapter = Adapter("the OpenHands SDK", lambda to: Reports(to).hooks())
install, uninstall = _adapter.install, _adapter.uninstall

install()

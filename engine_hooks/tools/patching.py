"""Wrap a framework's functions, if they still are the ones that the adapter was written for.

A wrapper's own parts run under the guard. The framework's function is called exactly once, with its arguments (or
with what a hook's ``exchange`` makes of them), and what it returns or raises is passed on.
"""

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.emit.tool_reporter import ToolReporter
from engine_hooks.tools.shared import guard, is_on, reporter

log = logging.getLogger("penstock")

_MARK = "__penstock__"

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""Called with the arguments, whose keyword part it may change; what it returns is kept for ``After``."""
After = Callable[[Any, tuple[Any, ...], Any, BaseException | None], None]
"""Called with what was kept, the arguments, the result (None after an exception) and the exception."""
Exchange = Callable[[Any], Any]
"""Called with one argument; what it returns is passed in its place."""


@dataclass(frozen=True, slots=True)
class Seam:
    """A function to wrap: where it is, and the parameters that it must have."""

    owner: Any
    name: str
    parameters: Sequence[str] = ()

    @property
    def label(self) -> str:
        return f"{getattr(self.owner, '__name__', self.owner)}.{self.name}"

    @property
    def problem(self) -> str:
        """Why the function cannot be wrapped; empty if it can."""
        function = getattr(self.owner, self.name, None)
        if not callable(function):
            return f"no {self.label}"
        try:
            known = inspect.signature(function).parameters
        except (TypeError, ValueError):
            return f"{self.label} has no signature"
        lost = [name for name in self.parameters if name not in known]
        return f"{self.label} takes no {', '.join(lost)}" if lost else ""


@dataclass(frozen=True, slots=True)
class Hook:
    """What to do around one seam."""

    seam: Seam
    before: Before | None = None
    after: After | None = None
    exchange: tuple[int, str, Exchange] | None = None  # position and name of the argument, and what becomes of it


class Adapter:
    """What importing an adapter's module installs. ``hooks`` raises ``ImportError`` without the framework."""

    def __init__(self, framework: str, hooks: Callable[[ToolReporter], Sequence[Hook]]) -> None:
        self._framework = framework
        self._hooks = hooks
        self._installed: Sequence[Hook] = ()

    def install(self, to: ToolReporter | None = None) -> bool:
        """Start reporting; True if that worked. ``to`` replaces this process's reporter."""
        if not is_on():
            return False
        try:
            hooks = self._hooks(to or reporter())
        except ImportError as error:
            log.warning("penstock: no %s, nothing is reported: %s", self._framework, error)
            return False
        if problems := [problem for hook in hooks if (problem := hook.seam.problem)]:
            text = "penstock: %s is not what it was, nothing is reported: %s"
            log.warning(text, self._framework, "; ".join(problems))
            return False
        self.uninstall()
        for hook in hooks:
            setattr(hook.seam.owner, hook.seam.name, _wrapped(hook))
        self._installed = hooks
        return True

    def uninstall(self) -> None:
        for hook in self._installed:
            original = getattr(getattr(hook.seam.owner, hook.seam.name, None), _MARK, None)
            if original is not None:
                setattr(hook.seam.owner, hook.seam.name, original)
        self._installed = ()


def argument(args: Sequence[Any], kwargs: Mapping[str, Any], position: int, name: str) -> Any:
    """The argument of that name, however it was passed."""
    return args[position] if position < len(args) else kwargs[name]


def _wrapped(hook: Hook) -> Callable[..., Any]:
    function, name = getattr(hook.seam.owner, hook.seam.name), hook.seam.label

    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return guard.run(f"{name} before", hook.before, args, kwargs) if hook.before is not None else None

    def exchanged(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if hook.exchange is None:
            return args, kwargs
        position, named, exchange = hook.exchange
        new = guard.run(f"{name} argument", exchange, argument(args, kwargs, position, named))
        if new is None:  # the hook failed
            return args, kwargs
        if position < len(args):
            return (*args[:position], new, *args[position + 1 :]), kwargs
        return args, kwargs | {named: new}

    def end(saved: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        if hook.after is not None:
            guard.run(f"{name} after", hook.after, saved, args, result, error)

    async def awaited(saved: Any, args: tuple[Any, ...], waiting: Awaitable[Any]) -> Any:
        try:
            result = await waiting
        except BaseException as error:
            end(saved, args, None, error)
            raise
        end(saved, args, result, None)
        return result

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        saved = begin(args, kwargs)
        args, kwargs = exchanged(args, kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            end(saved, args, None, error)
            raise
        if inspect.iscoroutine(result):  # a decorator may hide that the function is asynchronous
            return awaited(saved, args, result)
        end(saved, args, result, None)
        return result

    @functools.wraps(function)
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        saved = begin(args, kwargs)
        args, kwargs = exchanged(args, kwargs)
        return await awaited(saved, args, function(*args, **kwargs))

    chosen = call_async if inspect.iscoroutinefunction(function) else call
    setattr(chosen, _MARK, function)
    return chosen

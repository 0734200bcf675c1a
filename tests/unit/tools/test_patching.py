"""Wrapping a framework's functions: what they get, return and raise is theirs, whatever our parts do."""

import asyncio
import inspect
import logging
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from controlplane.emit.tool_reporter import ToolReporter
from engine_hooks.tools import shared
from engine_hooks.tools.patching import Adapter, Hook, Seam


class Framework:
    """A double of an agent framework."""

    def work(self, amount: int, *, loud: bool = False) -> str:
        """Does it."""
        if amount < 0:
            raise ValueError("less than nothing")
        return f"{amount}{'!' if loud else ''}"

    async def work_later(self, amount: int) -> str:
        await asyncio.sleep(0)
        return ORIGINAL(self, amount)

    def work_hidden(self, amount: int) -> Coroutine[Any, Any, str]:
        """A decorator made it look synchronous."""
        return self.work_later(amount)


TO = ToolReporter(url="", node="test", enabled=False)
ORIGINAL = Framework.work


@pytest.fixture(autouse=True)
def no_failures() -> Iterator[None]:
    shared.guard.failures.clear()
    yield
    shared.guard.failures.clear()


class Noted:
    """Hooks that note what they are given; ``broken``: and then raise."""

    def __init__(self, broken: bool = False) -> None:
        self.said: list[Any] = []
        self._broken = broken
        seams = (Seam(Framework, "work", ("amount", "loud")), Seam(Framework, "work_later", ("amount",)))
        self.hooks = [Hook(seam, self.before, self.after) for seam in seams]
        self.adapter = Adapter("the framework", lambda to: self.hooks)

    def before(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        self.said.append((args[1:], dict(kwargs)))
        if self._broken:
            raise RuntimeError("ours")
        return "kept"

    def after(self, kept: Any, args: tuple[Any, ...], result: Any, error: BaseException | None) -> None:
        self.said.append((kept, result, type(error).__name__))
        if self._broken:
            raise RuntimeError("ours")


@contextmanager
def installed(*hooks: Hook) -> Iterator[Adapter]:
    adapter = Adapter("the framework", lambda to: hooks)
    assert adapter.install(TO)
    try:
        yield adapter
    finally:
        adapter.uninstall()
        assert Framework.work is ORIGINAL


@pytest.fixture
def noted() -> Iterator[Noted]:
    noted = Noted()
    with installed(*noted.hooks) as noted.adapter:
        yield noted


async def test_both_parts_see_the_call(noted: Noted) -> None:
    assert Framework().work(2, loud=True) == "2!"
    assert await Framework().work_later(3) == "3"
    assert noted.said[:2] == [((2,), {"loud": True}), ("kept", "2!", "NoneType")]
    assert noted.said[2:] == [((3,), {}), ("kept", "3", "NoneType")]
    assert inspect.signature(Framework.work) == inspect.signature(ORIGINAL)
    assert Framework.work.__doc__ == "Does it."


async def test_what_only_looks_synchronous_ends_when_it_has_been_awaited() -> None:
    said: list[Any] = []
    hook = Hook(
        Seam(Framework, "work_hidden", ("amount",)),
        lambda args, kwargs: said.append("begun"),
        lambda kept, args, result, error: said.append((result, type(error).__name__)),
    )
    with installed(hook):
        waiting = Framework().work_hidden(4)
        assert said == ["begun"]
        assert await _await(waiting) == "4"
        assert said == ["begun", ("4", "NoneType")]
        with pytest.raises(ValueError, match="less than nothing"):
            await _await(Framework().work_hidden(-1))
        assert said[-1] == (None, "ValueError")


async def _await(waiting: Coroutine[Any, Any, str]) -> str:
    return await waiting


def test_what_it_raises_is_raised(noted: Noted) -> None:
    with pytest.raises(ValueError, match="less than nothing"):
        Framework().work(-1)
    assert noted.said[-1] == ("kept", None, "ValueError")


def test_installed_twice_it_tells_once(noted: Noted) -> None:
    assert noted.adapter.install(TO)
    Framework().work(1)
    assert len(noted.said) == 2


def test_parts_that_fail_are_counted_and_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with installed(*Noted(broken=True).hooks), caplog.at_level(logging.CRITICAL):
        assert Framework().work(2) == "2"
        assert shared.guard.failures == {"Framework.work before": 1, "Framework.work after": 1}


def test_a_framework_that_moved_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    hooks = [
        Hook(Seam(Framework, "work", ("amount",)), lambda *_: None, lambda *_: None),
        Hook(Seam(Framework, "work", ("quantity",)), lambda *_: None, lambda *_: None),
        Hook(Seam(Framework, "play"), lambda *_: None, lambda *_: None),
    ]
    assert not Adapter("the framework", lambda to: hooks).install(TO)
    assert Framework.work is ORIGINAL
    assert "Framework.work takes no quantity; no Framework.play" in caplog.text


def test_a_framework_that_is_not_there_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def hooks(to: ToolReporter) -> list[Hook]:
        raise ImportError("No module named 'framework'")

    assert not Adapter("framework", hooks).install(TO)
    assert "no framework, nothing is reported" in caplog.text


@pytest.mark.parametrize(("text", "on"), [("", True), ("on", True), ("OFF", False), ("maybe", False)])
def test_the_environment_switches_adapters_off(text: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(shared.MODE_VARIABLE, text)
    noted = Noted()
    assert noted.adapter.install(TO) is on
    noted.adapter.uninstall()


@pytest.mark.parametrize("name", ["work", "work_later"])
async def test_an_argument_is_exchanged_wherever_it_stands(name: str) -> None:
    hook = Hook(Seam(Framework, name, ("amount",)), exchange=(1, "amount", lambda amount: amount + 1))
    with installed(hook):
        done = [getattr(Framework(), name)(1), getattr(Framework(), name)(amount=1)]
        assert [await one if inspect.iscoroutine(one) else one for one in done] == ["2", "2"]


def test_an_exchange_that_fails_leaves_the_argument() -> None:
    hook = Hook(Seam(Framework, "work", ("amount",)), exchange=(1, "amount", lambda amount: amount / 0))
    with installed(hook):
        assert Framework().work(1) == "1"
        assert Framework().work(amount=1) == "1"
        assert sum(shared.guard.failures.values()) == 2

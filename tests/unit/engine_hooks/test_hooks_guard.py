"""A hook that fails never reaches the engine."""

import logging

import pytest

from engine_hooks.guard import Guard


def broken(*args: object) -> None:
    raise RuntimeError("a bug in a hook")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="penstock")


def test_after_sees_the_result_and_what_before_kept() -> None:
    seen: list[object] = []
    hook = Guard().around("f", before=lambda value: value + 1, after=lambda *args: seen.append(args))
    assert hook(lambda value: value * 2, 5) == 10
    assert seen == [(10, 6, 5)]


def test_an_error_of_the_engine_stays_the_engines() -> None:
    guard = Guard()
    with pytest.raises(RuntimeError, match="a bug"):
        guard.around("f", after=lambda *args: None)(broken)
    assert guard.failures == {}


def test_a_hook_that_keeps_failing_is_given_up_and_the_engines_call_runs_once_each_time() -> None:
    guard = Guard()
    tries: list[int] = []
    calls: list[int] = []

    def fails(*args: object) -> None:
        tries.append(1)
        raise RuntimeError

    hook = guard.around("f", before=fails, after=fails)
    for value in range(100):
        assert hook(lambda value: calls.append(value) or 2 * value, value) == 2 * value  # type: ignore[func-returns-value]
    assert calls == list(range(100))
    assert len(tries) == guard.failures["f"] == 20

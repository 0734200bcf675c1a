"""What the doctor says of an engine behind a front end without a place for a gate."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.pages import one_page

from controlplane.core.model.errors import EngineUnavailable
from controlplane.core.model.events import PLUGINLESS
from controlplane.core.model.types import seconds
from controlplane.operate.finding import Finding, State
from controlplane.operate.scheduler_check import check_scheduler, front_end_of
from controlplane.wire.control import Fields

URL = "http://127.0.0.1:8000"


def row(place: str = "n/engine-8000", heard_s: float = 0.4, passive: str = "") -> Fields:
    return Fields(place=place, heard_ns=seconds(heard_s), passive=passive)


def found(rows: Sequence[Any] | None) -> dict[str, Finding]:
    """By what it is about; None: no daemon answers."""

    def engines() -> Sequence[Any]:
        if rows is None:
            raise EngineUnavailable("nobody")
        return rows

    return {each.what: each for each in check_scheduler(URL, "vLLM's Rust front end", "n", engines)}


@pytest.mark.parametrize(
    ("rows", "state", "said"),
    [
        (
            [row(), row("n/engine-8001", passive="other")],
            State.OK,
            "at work (events, pins, order): n/engine-8000, ",
        ),
        ([row("n/engine-8000-dp0"), row("n/engine-8000-dp1")], State.OK, "n/engine-8000-dp0, n/engine-8000-dp1"),
        ([row(passive="no room")], State.BAD, "n/engine-8000 is passive: no room"),
        *(([row(passive=told)], State.BAD, "tells the daemon of n nothing") for told in PLUGINLESS),
        ([row(heard_s=60)], State.BAD, "tells the daemon of n nothing"),
        ([row(heard_s=0)], State.BAD, "tells the daemon of n nothing"),
        ([row("n/engine-80")], State.BAD, "tells the daemon of n nothing"),
        (None, State.LOOK, "does not answer"),
    ],
)
def test_which_half_is_at_work(rows: Sequence[Any] | None, state: State, said: str) -> None:
    findings = found(rows)
    assert (findings["scheduler"].state, said in findings["scheduler"].found) == (state, True), findings
    assert findings["gate"].state is State.LOOK
    assert findings["gate"].found == "none in this server: vLLM's Rust front end has no place for one"
    assert f"penstock gate --upstream {URL}" in findings["gate"].advice


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"version":"0.32.0","rust_frontend_version":"0.32.0"}', "vLLM's Rust front end"),
        (b'{"version":"0.32.0"}', ""),
        (b'{"version":"0.5.23","tokenizer_worker_num":1}', ""),
        (b'{"version":"0.5.23","tokenizer_worker_num":2}', "SGLang with several tokenizer workers"),
        (b"[]", ""),
        (b"7", ""),
        (b"<html>", ""),
    ],
)
def test_a_front_end_is_known_by_its_page_of_versions(body: bytes, told: str) -> None:
    with one_page(body) as url:
        assert front_end_of(url, 60) == told


def test_nobody_is_no_front_end() -> None:
    assert front_end_of("http://127.0.0.1:1", 60) == ""

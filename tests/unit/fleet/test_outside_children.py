"""The processes that ``penstock gate`` keeps alive."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.daemon_process import eventually

from controlplane.core.model.errors import EngineUnavailable
from controlplane.fleet import outside

FAILS = [sys.executable, "-c", "raise SystemExit(3)"]


async def test_one_that_another_does_the_work_of_is_started_once_that_one_stays_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "_LOOK_S", 0.01)
    monkeypatch.setattr(outside, "_BACK_WITHIN_S", 0.05)
    there, runs = [True], tmp_path / "runs"
    command = [sys.executable, "-c", f"open({str(runs)!r}, 'a').write('x'); raise SystemExit(3)"]
    keeping = asyncio.create_task(outside.Child("it", command, another=lambda: there[0]).keep())
    try:
        await asyncio.sleep(0.2)
        assert not runs.exists()
        there[0] = False

        async def again() -> bool:
            return runs.exists() and len(runs.read_text()) > 1  # its failure ends nothing: all went on without it

        await eventually(again, what="it is started, and again", timeout_s=60)
    finally:
        keeping.cancel()
        with suppress(asyncio.CancelledError):
            await keeping


async def test_one_that_cannot_start_says_so() -> None:
    with pytest.raises(EngineUnavailable, match="it ended at once, with status 3; it has said why above"):
        await asyncio.wait_for(outside.Child("it", FAILS).keep(), 60)

"""Each preset in the daemon, over a real bus, with the engine double: programs run to their end, by its rules."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.whole_loop import Loop

from controlplane.core.presets import PRESETS
from controlplane.wire.log import CommandRecord, read_log

PROGRAMS = 12
# What a preset's daemon says under such a load beside grants and windows; no other of these does another's.
SAYS = {
    "continuum": {"Retain"},
    "continuum-static-ttl": {"Retain"},
    "infercept": {"Retain"},
    "thunderagent": {"Pause"},
    "mori": {"Pause", "Label"},
}
TELLING = {"Retain", "Label", "Demote"}


@pytest.fixture(params=sorted(PRESETS))
def loop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Loop]:
    made = Loop(
        tmp_path, request.param, pool_tokens=24_000, rate=1.0, time_scale=60, engine=("--tier", "dram:40000:50")
    )
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_a_saturating_load_is_served_to_its_end(loop: Loop) -> None:
    result = loop.run(PROGRAMS)
    assert (result.summary.programs_ended, result.summary.programs_failed) == (PROGRAMS, 0)
    preset = loop.daemon.arguments[1]
    loop.daemon.stop()
    said = Counter(
        type(record.command).__name__
        for record in read_log(loop.folder / "run.jsonl")
        if isinstance(record, CommandRecord)
    )
    assert SAYS.get(preset, set()) <= said.keys(), said
    if preset not in SAYS and not preset.startswith(("mars", "penstock")):
        assert not TELLING & said.keys(), said

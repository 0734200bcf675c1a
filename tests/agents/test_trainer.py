"""SkyRL's own rollout loop against the engine double behind its gate, with the real daemon and bus.

Its trainer has nothing to train: after each step it syncs weights that are the same.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from support.agent_runs import python_of, run_agent
from support.daemon_process import NODE, eventually, running
from support.governed_double import governed_double
from support.heard import Heard

from controlplane.core.model.events import (
    CacheFlushed,
    ProgramEnded,
    ToolEnded,
    TurnEnded,
    TurnQueued,
)

PROMPTS, SAMPLES, TURNS = 3, 4, 3
TOLD = {"prompts": PROMPTS, "samples": SAMPLES, "turns": TURNS, "tool_s": 0.2, "servers": [], "model": "default"}
TOLD |= {"until": PROMPTS}  # one group goes on only with the weights of the others' last step
ROLLOUTS = PROMPTS * SAMPLES


@pytest.mark.slow
async def test_skyrl_names_its_rollouts_their_groups_and_ends_and_tells_new_weights(tmp_path: Path) -> None:
    python = python_of("trainer")
    with running(tmp_path) as daemon:
        bus_url = await daemon.url()
        heard = Heard(bus_url, NODE)
        async with governed_double(bus_url) as (client, _, bus):
            told = TOLD | {"url": client.url}
            more = {"PENSTOCK_NODE": NODE, "SKYRL_GENERATE_CONCURRENCY_PER_ENGINE": "0"}
            said = await asyncio.to_thread(run_agent, python, "skyrl_run.py", told, bus_url, **more)
            ends = await eventually(lambda: len(ended := heard.of(ProgramEnded)) == ROLLOUTS and ended, what="ends")
            await eventually(lambda: len(heard.of(CacheFlushed)) == said["syncs"], what="word of each sync")
            status = await bus.status_where(lambda now: not now["programs"], "no program that is left")
        events = heard.events
        heard.close()

    queued = {event.program_id: event for event in heard.of(TurnQueued)}
    groups = Counter((event.group_id, event.group_size) for event in queued.values())
    assert list(groups.values()) == [SAMPLES] * PROMPTS
    assert {size for _, size in groups} == {SAMPLES}
    for kind in (TurnEnded, ToolEnded):
        assert Counter(event.program_id for event in heard.of(kind)) == dict.fromkeys(queued, TURNS)
    assert all(event.tool == "lookout" and event.duration_ns > 0.2e9 for event in heard.of(ToolEnded))
    assert {event.program_id: event.reason for event in ends} == dict.fromkeys(queued, "finished")
    assert status["queue"] == []
    last = {(type(event), event.program_id): at for at, event in enumerate(events) if hasattr(event, "program_id")}
    assert all(last[TurnEnded, program] < last[ProgramEnded, program] for program in queued)
    syncs = [at for at, event in enumerate(events) if isinstance(event, CacheFlushed)]
    assert said["syncs"] == 1 + PROMPTS
    begun = {event.program_id: at for at, event in reversed([*enumerate(events)]) if isinstance(event, TurnQueued)}
    assert any(begun[program] < at < last[TurnEnded, program] for program in queued for at in syncs), "amid a run"

"""Tab in a real bash: commands, presets, and the programs of a running daemon."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon_process import BusClient, DaemonProcess
from support.terminals import Terminal, with_commands_of

from controlplane.core import events as ev


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[Terminal]:
    variables = {"PENSTOCK_STATE_DIR": str(tmp_path / "state"), "PENSTOCK_NODE": "test"}
    shell = Terminal(
        "exec bash --norc --noprofile -i",
        folder=tmp_path,
        environment=with_commands_of(sys.executable, **variables),
    )
    shell.until_said(r"[#$] ")
    shell.type('source <(penstock --show-completion bash) && echo "so""urced"\n')
    shell.until_said("sourced")
    yield shell
    shell.type("exit\n")
    shell.wait()
    shell.close()


def completed(bash: Terminal, typed: str, whole: str) -> None:
    bash.type(f"{typed}\t")
    bash.until(lambda: any(line.rstrip().endswith(whole) for line in bash.screen), whole)
    bash.type("\x15")  # the line is not run


def test_commands_and_presets_are_offered(bash: Terminal) -> None:
    completed(bash, "penstock set-p", "penstock set-preset")
    completed(bash, "penstock set-preset infer", "penstock set-preset infercept")
    completed(bash, "penstock up --preset mor", "penstock up --preset mori")


@pytest.mark.asyncio
async def test_programs_of_the_daemon_are_offered(bash: Terminal, tmp_path: Path) -> None:
    completed(bash, "penstock hold agent-", "penstock hold agent-")  # nobody is there to ask: nothing, and no error
    daemon = DaemonProcess(tmp_path / "state")
    daemon.start()

    try:
        bus = await BusClient.connect(await daemon.url())
        await bus.status()
        await bus.publish(
            "test/gate/one", 1, [ev.TurnQueued(program_id="agent-seven", turn_id="1", prompt_tokens=9)]
        )
        await bus.status_where(lambda s: "agent-seven" in s["programs"], "a program")
        await bus.close()
        completed(bash, "penstock hold agent-", "penstock hold agent-seven")
        completed(bash, "penstock explain ag", "penstock explain agent-seven")
    finally:
        daemon.clean_up()
    assert "Traceback" not in bash.said

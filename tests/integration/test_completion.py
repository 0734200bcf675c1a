"""Tab in a real bash: commands, presets, and the programs of a running daemon."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon_process import bus_of, queued, running
from support.terminals import Terminal, with_commands_of


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


async def test_programs_of_the_daemon_are_offered(bash: Terminal, tmp_path: Path) -> None:
    completed(bash, "penstock hold agent-", "penstock hold agent-")  # nobody is there to ask: nothing, and no error
    with running(tmp_path) as daemon:
        async with bus_of(daemon) as bus:
            await bus.publish("test/gate/one", 1, queued("agent-seven"))
            await bus.status_where(lambda s: "agent-seven" in s["programs"], "a program")
        completed(bash, "penstock hold agent-", "penstock hold agent-seven")
        completed(bash, "penstock explain ag", "penstock explain agent-seven")
    assert "Traceback" not in bash.said

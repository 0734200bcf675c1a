"""``penstock top`` on a terminal, with a real daemon that goes and comes back."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.daemon_process import DaemonProcess, bus_of, listening, queued, running
from support.terminals import Terminal, with_commands_of

NAMES = [f"swe-bench-verified/django__django-11820/attempt-{number}" for number in range(1, 4)]
CONFIG = (
    'preset = "fcfs"\n[admission]\nwindow = 2\n[control]\nstall_s = 3600\n[control.silence]\nunused_slot_s = 600\n'
)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with running(tmp_path, config=CONFIG) as process:
        yield process


def top(daemon: DaemonProcess) -> Terminal:
    line = f"{sys.executable} -m controlplane top --node test --state-dir {daemon.folder}"
    return Terminal(line, folder=daemon.folder, environment=with_commands_of(sys.executable))


def shows(terminal: Terminal, text: str, *, gone: bool = False) -> None:
    terminal.until(lambda: (text in "\n".join(terminal.screen)) is not gone, f"{text} ({gone=})")


@pytest.mark.asyncio
async def test_programs_are_there_and_again_after_the_daemon_was_away(daemon: DaemonProcess) -> None:
    await listening(daemon)
    async with bus_of(daemon) as bus:
        await bus.publish("test/gate/one", 1, queued(*NAMES))
    terminal = top(daemon)
    try:
        for name in NAMES:
            shows(terminal, name)
        shows(terminal, "waiting #1")
        assert daemon.stop() == 0
        shows(terminal, "The daemon has not answered for")
        shows(terminal, "no daemon serves node 'test' here")
        shows(terminal, NAMES[0])
        daemon.start()
        shows(terminal, "The daemon has not answered for", gone=True)
        terminal.type("q")
        assert terminal.wait() == 0
    finally:
        terminal.close()


def test_it_starts_with_a_daemon_and_a_terminal_or_says_what_is_missing(tmp_path: Path) -> None:
    done = DaemonProcess(tmp_path).penstock("top")
    assert done.returncode == 1
    assert done.stderr.startswith("penstock: no daemon serves node 'test' here: there is no ")

"""Every command in the documents runs, or says why it cannot: ``support.documents`` has the ways."""

import io
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer
from support.documents import PAGES, ROOT, blocks, name, without_blocks, words
from support.nats import NatsServer
from support.ports import free_port
from support.terminals import Terminal, Terminals, end_group, with_commands_of

from controlplane.cli.app import app
from controlplane.cli.examples import EXAMPLES

_RECORDS = "CHANGELOG.md"  # it says what was, and is not rewritten
# Commands that go on until Ctrl-C, and what they say once they are there.
_SERVE = {"up": r'"event": "up"|\bup\b.*preset', "engine-double": "listens on", "top": "window"}
# A reader whose machine is busy waits longer.
_PATIENT = """sleep() { command sleep "$(awk -v s="$1" '{ print s * (1 + ($1 > 5 ? 5 : $1)) }' /proc/loadavg)"; }"""
_CODE = re.compile(r"`([^`\n]+)`")
# What is long for a reader is short here: fewer programs, and faster than the clock.
_PROGRAMS, _FEW = re.compile(r"((?:(?<!tail) -n|--programs|\bprograms =) )\d+"), 3
_FASTER = {
    "up": "--time-scale 50",
    "engine-double": "--time-scale 50 --tokens-per-word 64",
    "replay": "-n 2 --arrival poisson:1 --time-scale 50 --tokens-per-word 64",
}


def subcommand(line: str) -> str:
    """Of ``penstock``; else empty."""
    found = words(line)
    return found[1] if len(found) > 1 and found[0] == "penstock" else ""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a page's commands run: what they read of the checkout is there."""
    here = tmp_path / "checkout"
    here.mkdir()
    for room in ("bench", "examples"):
        (here / room).symlink_to(ROOT / room)
    return here


def environment(folder: Path) -> dict[str, str]:
    return with_commands_of(sys.executable, PENSTOCK_STATE_DIR=str(folder / "state"))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_has_who_runs_it(page: Path) -> None:
    if name(page).startswith(_RECORDS):
        return
    for block in (each for each in blocks(page) if each.commands):
        way, _, what = block.marker.partition(": ")
        assert way in ("run", "run by", "not run"), f"{name(page)}: nobody runs\n{block.text}"
        if way == "run by":
            assert (ROOT / what).is_file(), f"{name(page)}: {what}"
            assert "def test_" in (ROOT / what).read_text(), f"{name(page)}: {what}"
        elif way == "run":
            assert what in ("", "live"), f"{name(page)}: {block.marker}"


def run_in_one_shell(lines: list[str], folder: Path) -> None:
    said = folder / "said"
    few = [_PROGRAMS.sub(rf"\g<1>{_FEW}", line) for line in lines]
    with said.open("w") as output:
        shell = subprocess.Popen(
            ["bash", "-euc", "\n".join([_PATIENT, *few])],
            cwd=folder,
            env=environment(folder),
            stdout=output,
            stderr=output,
            start_new_session=True,  # what it left in the background goes with it
        )
    try:
        status = shell.wait(600)
    finally:
        end_group(shell.pid)
    assert status == 0, said.read_text()[-2000:]
    assert "Traceback" not in said.read_text()


class Reader:
    """Types a page's lines, with what is said there of other machines put right for this one."""

    def __init__(self, terminals: Terminals, nats_url: str) -> None:
        self.terminals = terminals
        self.load: Terminal | None = None
        self.name = ""  # of the program that the page calls PROGRAM
        self._port = free_port()
        self._instead = {
            "nats://nats.example:4222": nats_url,
            "http://127.0.0.1:30000": f"http://127.0.0.1:{self._port}",
            "traces/mine.jsonl.gz": "mine.jsonl",
        }

    def type(self, line: str) -> None:
        fitted = self._fit(line)
        if said := _SERVE.get(subcommand(line)):
            self.terminals.start(fitted).until_said(said)
            return
        try:
            self.terminals.run(fitted)
        except AssertionError as failed:
            if not self.name or f"no program '{self.name}'" not in str(failed):
                raise
            self.name = ""  # it ended before the line was typed: a reader takes another
            self.type(line)

    def begin_on_a_node(self) -> None:
        """A daemon and an engine, with programs that are at it for a while."""
        self.type("penstock up")
        self.type("penstock engine-double")
        load = self._fit("penstock replay synthetic:swe-bench").replace("-n 2 --arrival poisson:1", "-n 40")
        self.load = self.terminals.start(f"{load} --arrival poisson:0.1 --scale-tools 300")
        self.load.until(lambda: len(self._programs()) > 1, "programs")

    def end(self) -> None:
        """Ctrl-C in each terminal; all end well."""
        if self.load:
            self.load.interrupt()
        self.terminals.interrupt()

    def _programs(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = json.loads(self.terminals.run("penstock programs --json"))
        return listed

    def _fit(self, line: str) -> str:
        line = re.sub(r"\s+# .*", "", line)
        for written, meant in self._instead.items():
            line = line.replace(written, meant)
        if "PROGRAM" in line:
            if not self.name:  # the youngest has the most left to do
                self.name = min(self._programs(), key=lambda each: int(each["age_ns"]))["program_id"]
            line = line.replace("PROGRAM", self.name)
        which = subcommand(line)
        if which == "engine-double":
            line += f" --port {self._port}"
        if which == "replay" and "--url" not in line:
            line += f" --url http://127.0.0.1:{self._port}"
        return f"{line} {_FASTER[which]}" if which in _FASTER else line


@pytest.fixture
def reader(folder: Path, nats_server: NatsServer) -> Iterator[Reader]:
    example = next(block.text for block in blocks(ROOT / "docs" / "reference" / "trace-format.md"))
    (folder / "mine.jsonl").write_text(example.replace("\n", ""))
    terminals = Terminals(folder, environment(folder))
    yield Reader(terminals, nats_server.url)
    terminals.close()


RUN = [page for page in PAGES if any(block.marker == "run" for block in blocks(page))]
LIVE = [(page, block.commands) for page in PAGES for block in blocks(page, "run: live")]
BESIDE = [line for _, lines in LIVE if subcommand(lines[0]) != "up" for line in lines]
# What several pages start in the same way is started once.
STARTED = {tuple(lines): page for page, lines in LIVE if subcommand(lines[0]) == "up"}


def shell_lines(page: Path) -> list[str]:
    return [line for block in blocks(page, "run") for line in block.commands]


@pytest.mark.parametrize("page", RUN, ids=name)
def test_what_a_reader_types_into_a_shell_runs(page: Path, folder: Path) -> None:
    run_in_one_shell(shell_lines(page), folder)


@pytest.mark.parametrize(
    ("lines", "page"), STARTED.items(), ids=lambda each: name(each) if each in PAGES else each[0]
)
def test_what_a_reader_starts_runs(lines: tuple[str, ...], page: Path, folder: Path, reader: Reader) -> None:
    if files := [line for line in shell_lines(page) if " > " in line and "--config" in lines[0]]:
        run_in_one_shell(files, folder)  # the configuration that the page begins with
    for line in lines:
        reader.type(line)
    reader.end()


def test_what_a_reader_types_beside_a_node_runs(reader: Reader) -> None:
    """The pages one after the other, on one node."""
    reader.begin_on_a_node()
    for line in BESIDE:
        reader.type(line)
    reader.end()


def command_of(asked: list[str]) -> tuple[Any, list[str]]:
    """The command that ``penstock asked`` would run, and the words that are left for it."""
    command: Any = typer.main.get_command(app)
    while asked and asked[0] in getattr(command, "commands", {}):
        command, asked = command.commands[asked[0]], asked[1:]
    return command, asked


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_penstock_command_exists_with_its_options(page: Path) -> None:
    lines = [line for block in blocks(page) for line in block.commands]
    lines += [code for code in _CODE.findall(without_blocks(page)) if code.startswith("penstock ")]
    for line in lines:
        asked = words(line)
        if asked and Path(asked[0]).name == "penstock":
            assert_exists(line, asked[1:])


def assert_exists(line: str, asked: list[str]) -> None:
    command, rest = command_of(asked)
    assert not hasattr(command, "commands") or not rest or rest[0].startswith("-"), line
    known = {option for parameter in command.params for option in parameter.opts} | {"--help", "-h"}
    for word in rest:
        if re.match(r"--?[a-z]", word):
            assert word.partition("=")[0] in known, f"{line}: {word}"


def test_every_command_ends_its_help_with_two_examples_of_itself() -> None:
    def without_groups(command: Any, above: str) -> Iterator[str]:
        inner = getattr(command, "commands", None)
        if inner is None:
            assert "Examples:" in (command.epilog or ""), above
            yield above.strip()
        for word, each in (inner or {}).items():
            yield from without_groups(each, f"{above} {word}")

    assert set(EXAMPLES) == set(without_groups(typer.main.get_command(app), ""))
    for command, lines in EXAMPLES.items():
        for line in lines:
            assert line.startswith(f"penstock {command}")
            assert_exists(line, words(line)[1:])


WITH_COMMANDS = ("bench/ab_engine.py", "bench/ab_gpu.py")


def benchmark_of(line: str) -> tuple[str, str] | None:
    """The script and its command, where it has some; None for a line that runs no benchmark."""
    if not re.match(r"(\S*/)?python bench/", line):
        return None
    _, script, *rest = words(line)
    has_command = script in WITH_COMMANDS and rest and not rest[0].startswith("-")
    return script, rest[0] if has_command else ""


BENCH = sorted({
    found
    for page in PAGES
    for block in blocks(page)
    for line in block.commands
    if (found := benchmark_of(line)) is not None
})  # fmt: skip


@pytest.mark.parametrize(("script", "command"), BENCH)
def test_every_option_of_a_benchmark_exists(script: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "bench")
    told = io.StringIO()
    words_of_it = [script, *([command] if command else []), "--help"]
    with patch.object(sys, "argv", words_of_it), redirect_stdout(told), pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / script), run_name="__main__")
    known = set(re.findall(r"--?[a-z][\w-]*", told.getvalue()))
    for page in PAGES:
        for block in blocks(page):
            for line in block.commands:
                if benchmark_of(line) == (script, command):
                    used = {word.partition("=")[0] for word in words(line) if re.match(r"--[a-z]", word)}
                    assert used <= known, f"{name(page)}: {line}"

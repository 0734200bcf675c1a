"""Sessions that other tools keep: read as a count by hand makes of them, with what was guessed and refused."""

import gzip
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from support.documents import ROOT
from support.session_files import MADE, Programs, lines, text
from typer.testing import CliRunner

from controlplane.cli.app import app
from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.imports.formats import Report, read_programs
from controlplane.lab.workload.named import Wanted, named_workload
from controlplane.lab.workload.trace_lines import ProgramLine

SESSIONS = ROOT / "examples" / "sessions"


def read(*paths: Path) -> tuple[list[ProgramLine], list[str], Report]:
    report = Report()
    found = list(read_programs(paths, report))
    programs = [each for each in found if isinstance(each, ProgramLine)]
    return programs, [each for each in found if isinstance(each, str)], report


def counted(programs: list[ProgramLine]) -> Programs:
    return [
        (
            program.program_id,
            program.parent_id or "",
            program.spawn_turn or 0,
            [(turn.input_tokens, turn.output_tokens, turn.tool or "", turn.tool_ms) for turn in program.turns],
        )
        for program in programs
    ]


@pytest.mark.parametrize("name", MADE)
def test_a_session_of_each_format_has_the_turns_that_a_count_by_hand_has(name: str, tmp_path: Path) -> None:
    content, expected = MADE[name]
    path = tmp_path / "file.json"
    path.write_text(content)
    programs, _, _ = read(path)
    assert counted(programs) == expected

    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode()))
    assert counted(read(path)[0]) == expected, "with a byte order mark, CRLF, gzipped, and without an ending for it"

    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(b"".join(msgspec.json.encode(program) + b"\n" for program in programs))
    direct, written = named_workload(str(path), Wanted()), named_workload(str(trace), Wanted())
    assert direct.programs == written.programs, "a simulation takes the file as it takes the trace made of it"


def test_sessions_that_real_harnesses_wrote() -> None:
    """A shell call of ``sleep 1``, a sub-agent, and an end; the n-th reply was told 1000 n and 10 n tokens."""
    programs, refused, report = read(SESSIONS)
    assert counted(programs) == [
        ("id-1", "", 0, [(1000, 10, "sleep", 1686.0), (2000, 20, "Agent", 75.0), (4000, 40, "", None)]),
        ("id-1/a9ca12c0dd3085a96", "id-1", 1, [(3000, 30, "", None)]),
        ("id-13", "", 0, [(1000, 10, "sleep", 1699.0), (2000, 20, "spawn_agent", 20.0), (4000, 40, "", None)]),
        ("ses_id-29", "", 0, [(2000, 20, "sleep", 7837.0), (3000, 30, "task", 635.0), (5000, 50, "", None)]),
        ("ses_id-28", "ses_id-29", 1, [(4000, 40, "", None)]),
    ]
    assert refused == [f"{SESSIONS / 'codex-agent.jsonl'}: session 'id-14' has no model call"]
    assert report.tally.programs == {"Claude Code": 2, "Codex": 1, "opencode": 2}


REFUSED = {
    "a line that is cut": (
        lambda made: made + '{"type": "user", "sess',
        "Claude Code",
        "15: Input data was truncated",
    ),
    "a field of another kind": (
        lambda made: made.replace('"input_tokens": 93', '"input_tokens": "93"', 1),
        "Claude Code",
        "3: message.usage.input_tokens: Expected `int`, got `str`",
    ),
    "a count below 0": (
        lambda made: made.replace(": 93", ": -1", 1),
        "Claude Code",
        "3: message.usage.input_tokens: Expected",
    ),
    "a time that is none": (
        lambda made: made.replace("2026-01-01T00:00:04.5Z", "noon"),
        "Claude Code",
        "5: timestamp: expected",
    ),
    "a reply of unknown length": (lambda made: made, "aiperf", r"2: turns\[\].output_length: without it"),
    "an empty conversation": (lambda made: made, "ShareGPT", " session 'none' has no model call"),
    "an array that breaks off": (lambda made: made[:-4], "ShareGPT", "item 2: JSON is malformed"),
    "a document that breaks off": (lambda made: made[:-40], "mini-swe-agent", r"\d+: Input data was truncated"),
    "a request without a session": (
        lambda made: made.replace('"session_id": "child"', '"x": 1'),
        "Dynamo",
        "3: agent_context: without a session",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_malformed_is_refused_with_its_place_and_the_reason(name: str, tmp_path: Path) -> None:
    change, of, problem = REFUSED[name]
    path = tmp_path / "file"
    path.write_text(change(MADE[of][0]))
    _, refused, _ = read(path)
    assert any(re.match(f"{path}:{problem}", line) for line in refused), refused


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "BurstGPT"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens", "Azure"),
    ],
)
def test_single_requests_are_told_to_be_none_of_agents(head: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(f"{head}\n5,ChatGPT,472,18,490,Conversation log\n")
    with pytest.raises(ConfigError, match=rf"{name}.* single requests, so that there is nothing to schedule"):
        read(path)


def test_guesses_and_gaps_are_told(tmp_path: Path) -> None:
    for name in ("Claude Code", "Mooncake", "ShareGPT"):
        (tmp_path / name).write_text(MADE[name][0])
    (tmp_path / "notes.md").write_text("# none\n")
    _, _, report = read(tmp_path)
    assert report.notes() == [
        "prompts whose tokens are guessed from their text: 3",
        "replies whose tokens are guessed from their text: 3",
        "gaps in which a person thinks: 2",
        "gaps of unknown length, taken for none: 1",
        "gaps that hold the reply's own time, as nothing tells its end: 2",
        "sub-agents: 1",
        f"files of no known format, as {tmp_path / 'notes.md'}: 1",
    ]


def test_the_command_writes_a_trace_and_what_if_takes_sessions(tmp_path: Path) -> None:
    out = tmp_path / "mine.jsonl.gz"
    ran = CliRunner().invoke(app, ["trace", "import", str(SESSIONS), "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert "11 turns of programs: 2 Claude Code, 1 Codex, 2 opencode; 1 refused" in ran.stderr
    assert len(read(out)[0]) == 5

    ran = CliRunner().invoke(app, ["trace", "import", str(out), "--out", str(out)])
    assert isinstance(ran.exception, ConfigError)
    none = tmp_path / "none.json"
    none.write_text("{}")
    assert CliRunner().invoke(app, ["trace", "import", str(none)]).exit_code == 1
    asked = CliRunner().invoke(app, ["what-if", str(SESSIONS), "--preset", "penstock", "--repeat", "1"])
    assert asked.exit_code == 0, asked.output
    assert "has sessions and no engine" in asked.stderr


def _claude_code(count: int, size: int) -> Iterator[str]:
    usage = {"input_tokens": 9, "output_tokens": 1}
    for number in range(count):
        result = [{"type": "tool_result", "content": text(size)}]
        yield lines({"type": "user", "sessionId": "s", "message": {"content": result}})
        message = {"id": f"m{number}", "content": "ok", "usage": usage}
        yield lines({"type": "assistant", "sessionId": "s", "message": message})


def _share_gpt(count: int, size: int) -> Iterator[str]:
    said = [{"from": "human", "value": text(size)}, {"from": "gpt", "value": "ok"}]
    for number in range(count):
        yield "[,"[bool(number)] + json.dumps({"id": str(number), "conversations": said})
    yield "]"


@pytest.mark.parametrize("made", [_claude_code, _share_gpt])
def test_a_long_file_is_read_in_the_memory_of_a_record(
    made: Callable[[int, int], Iterator[str]], tmp_path: Path
) -> None:
    path = tmp_path / "long"
    with path.open("w") as file:
        file.writelines(made(600, 10_000))
    assert path.stat().st_size > 24_000_000
    tracemalloc.start()
    try:
        turns = sum(len(each.turns) for each in read_programs([path], Report()) if isinstance(each, ProgramLine))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert turns == 600
    assert peak < 4_000_000

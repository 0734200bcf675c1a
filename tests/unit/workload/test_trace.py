"""Reading traces: what is valid is read, what is not is described and counted."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.errors import ConfigError
from controlplane.lab.workload import trace_lines
from controlplane.lab.workload.trace import Turn, gap_ns, read_trace, reusable_tokens


def turn(**changes: Any) -> dict[str, Any]:
    return {
        "input_tokens": 10,
        "output_tokens": 2,
        "tool": "bash",
        "tool_ms": 5.0,
        "cached_prefix_tokens": None,
    } | changes


def program(name: str = "p", *turns: dict[str, Any]) -> dict[str, Any]:
    return {"program_id": name, "source": "s", "turns": list(turns) or [turn()]}


def write(path: Path, *lines: object) -> Path:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_reads_programs_in_order(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, program("a", turn(), turn(tool=None, tool_ms=None)), "", program("b"))
    trace = read_trace(path)
    assert [p.program_id for p in trace.programs] == ["a", "b"]
    assert (trace.turns, trace.rejected, trace.name) == (3, [], "t")
    assert trace.programs[0].turns[1] == Turn(input_tokens=10, output_tokens=2)
    assert trace.programs[0].tokens == 24
    assert trace.programs[0].context_tokens == 12


BAD = [
    (program("x", turn(), turn(output_tokens=0)), "turns[1].output_tokens: expected >= 1, got 0"),
    (program("x", turn(input_tokens=-3)), "turns[0].input_tokens: expected >= 1, got -3"),
    (program("x", turn(input_tokens="9")), 'turns[0].input_tokens: expected a whole number, got "9"'),
    (program("x", turn(input_tokens=True)), "turns[0].input_tokens: expected a whole number, got true"),
    (program("x", turn(input_tokens=1.5)), "turns[0].input_tokens: expected a whole number, got 1.5"),
    (program("x", {"input_tokens": 1}), "turns[0].output_tokens: missing"),
    (program("x", turn(tool_ms=-1)), "turns[0].tool_ms: expected >= 0, got -1"),
    (program("x", turn(tool_ms="1")), 'turns[0].tool_ms: expected milliseconds or null, got "1"'),
    (program("x", turn(tool=7)), "turns[0].tool: expected text, got 7"),
    (program("x", turn(cached_prefix_tokens=-1)), "turns[0].cached_prefix_tokens: expected >= 0, got -1"),
    (program("x", turn(input_tokens=90)), "prompt and output of <= 50 tokens, got 92"),
    ({"program_id": "x", "source": "s", "turns": []}, "turns: expected a list of at least one turn, got []"),
    ({"program_id": "x", "source": "s", "turns": [3]}, "turns[0]: expected an object, got 3"),
    ({"program_id": "x", "source": "s"}, "turns: missing"),
    ({"program_id": "", "source": "s", "turns": [turn()]}, "program_id: expected a name"),
    ({"turns": [turn()]}, "program_id: missing"),
    ([1], "expected an object, got [1]"),
    ("{half", "not JSON"),
    ("[" * 100_000, "not JSON"),
    (
        '{"program_id": "x", "turns": [{"input_tokens": 1, "output_tokens": 1, "tool_ms": NaN}]}',
        "tool_ms: expected >= 0",
    ),
]


@pytest.mark.parametrize(("line", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_program_is_described_with_its_line_and_the_rest_is_read(
    tmp_path: Path, line: object, message: str
) -> None:
    path = write(tmp_path / "t.jsonl", program("good"), line, program("fine"))
    trace = read_trace(path, max_context_tokens=50)
    assert [p.program_id for p in trace.programs] == ["good", "fine"]
    (rejected,) = trace.rejected
    assert rejected.startswith(f"{path}:2: ")
    assert message in rejected
    with pytest.raises(ConfigError) as error:
        read_trace(path, max_context_tokens=50, on_bad="error")
    assert str(error.value) == rejected


def test_a_repeated_program_id_is_rejected(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path / "t.jsonl", program("a"), program("a", turn(), turn())))
    assert trace.turns == 1
    assert "occurs twice" in trace.rejected[0]


def test_max_programs_counts_valid_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", "?", program("a"), program("b"), program("c"))
    assert [p.program_id for p in read_trace(path, max_programs=2).programs] == ["a", "b"]


def test_a_truncated_gzip_keeps_what_it_held(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl.gz"
    lines = "".join(
        json.dumps(program(f"p{i}", *[turn(input_tokens=i + k + 1) for k in range(9)])) + "\n" for i in range(500)
    )
    data = gzip.compress(lines.encode())
    path.write_bytes(data[: len(data) * 2 // 3])
    trace = read_trace(path)
    assert 0 < len(trace.programs) < 500
    assert "the gzip file breaks off here" in trace.rejected[-1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b"", "no valid program: the file is empty"),
        ("t.jsonl.gz", b"", "no valid program"),
        ("t.jsonl.gz", b"plain text", "not a gzip file"),
        ("t.jsonl", b"\xff\xfe\n", "not UTF-8 text"),
        ("t.jsonl", b"{}\n", "no valid program; the first of 1 problems"),
    ],
)
def test_a_file_without_a_program_is_an_error(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_trace(path)


def test_a_file_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl: cannot read the trace: No such file"):
        read_trace(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_trace(tmp_path)


def test_think_time_is_a_gap_without_a_tool() -> None:
    think = Turn(input_tokens=1, output_tokens=1, tool="human", tool_ms=1500.0)
    assert not think.calls_tool
    assert gap_ns(think) == 1_500_000_000
    assert Turn(input_tokens=1, output_tokens=1, tool="bash", tool_ms=0.0).calls_tool
    assert not Turn(input_tokens=1, output_tokens=1, tool="bash").calls_tool


def test_how_much_of_a_prompt_the_last_turn_held() -> None:
    first = Turn(input_tokens=100, output_tokens=20)
    assert reusable_tokens(None, first) == 0
    assert reusable_tokens(first, Turn(input_tokens=120, output_tokens=1)) == 120
    assert reusable_tokens(first, Turn(input_tokens=119, output_tokens=1)) == 100, "the reply was not kept whole"
    assert reusable_tokens(first, Turn(input_tokens=99, output_tokens=1)) == 0, "a compaction"


def test_a_tool_that_takes_longer_than_a_year_is_no_tool(tmp_path: Path) -> None:
    good = program("b", turn(tool_ms=366 * 86_400_000.0))
    trace = read_trace(write(tmp_path / "t.jsonl", program("a", turn(tool_ms=1e300)), good))
    assert [one.program_id for one in trace.programs] == ["b"]
    assert "turns[0].tool_ms: expected at most a year, 3.16224e+10, got 1e+300" in trace.rejected[0]


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_lines, "MOST_LINE_BYTES", 1000)
    fits = json.dumps(program("a", turn()))
    fits += " " * (999 - len(fits))
    path = write(tmp_path / name, fits, fits.replace('"a"', '"b"'))
    assert len(read_trace(path).programs) == 2
    path = write(tmp_path / name, fits, fits + "  ")
    with pytest.raises(ConfigError, match=rf"{name}:2: expected lines of at most 1000 bytes"):
        read_trace(path)

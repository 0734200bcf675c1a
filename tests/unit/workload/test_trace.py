"""Reading traces: what is valid is read, what is not is described and counted."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.imports import records
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
    (program("x", turn(), turn(output_tokens=0)), "turns[1].output_tokens: Expected `int` >= 1"),
    (program("x", turn(input_tokens="9")), "turns[0].input_tokens: Expected `int`, got `str`"),
    (program("x", turn(input_tokens=True)), "turns[0].input_tokens: Expected `int`, got `bool`"),
    (program("x", {"input_tokens": 1}), "turns[0]: Object missing required field `output_tokens`"),
    (program("x", turn(tool_ms=-1)), "turns[0].tool_ms: Expected `float` >= 0.0"),
    (program("x", turn(tool_ms=1e300)), "turns[0].tool_ms: Expected `float` <= 31622400000.0"),
    (program("x", turn(tool=7)), "turns[0].tool: Expected `str | null`, got `int`"),
    (program("x", turn(cached_prefix_tokens=-1)), "turns[0].cached_prefix_tokens: Expected `int` >= 0"),
    (program("x", turn(), turn(input_tokens=90)), "turns[1].input_tokens: expected a prompt and output of <= 50"),
    ({"program_id": "x", "source": "s", "turns": []}, "turns: Expected `array` of length >= 1"),
    ({"program_id": "", "source": "s", "turns": [turn()]}, "program_id: Expected `str` of length >= 1"),
    ({"turns": [turn()]}, "Object missing required field `program_id`"),
    ([1], "Expected `object`, got `array`"),
    ("{half", "JSON is malformed"),
    ('{"a":' + "[" * 100_000, "recursion depth"),
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


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_RECORD_BYTES", 1000)
    fits = json.dumps(program("a", turn()))
    fits += " " * (999 - len(fits))
    path = write(tmp_path / name, fits, fits.replace('"a"', '"b"'))
    assert len(read_trace(path).programs) == 2
    path = write(tmp_path / name, fits, fits + "  ")
    with pytest.raises(ConfigError, match=rf"{name}:2: expected lines of at most 1000 bytes"):
        read_trace(path)


def test_a_repeated_program_is_rejected_and_only_valid_ones_are_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", "?", program("a"), program("a", turn(), turn()), program("b"), program("c"))
    trace = read_trace(path, max_programs=2)
    assert [p.program_id for p in trace.programs] == ["a", "b"]
    assert trace.turns == 2
    assert "occurs twice" in trace.rejected[1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b"", "no valid program: the file is empty"),
        ("t.jsonl.gz", b"plain text", "not a gzip file"),
        ("t.jsonl", b"\xff\xfe\n", "not UTF-8 text"),
        ("t.jsonl", b"{}\n", "no valid program; the first of 1 problems"),
        ("none.jsonl", None, r"none\.jsonl: cannot read it: No such file"),
    ],
)
def test_a_file_without_a_program_is_an_error(tmp_path: Path, name: str, content: Any, message: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        read_trace(path)

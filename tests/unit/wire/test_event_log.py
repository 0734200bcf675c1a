"""The event log reads back what was written, and says where a bad one is bad."""

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_strategies import commands, events

from controlplane.core.model.commands import Admit, Command
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import Event, ToolStarted
from controlplane.wire.log import (
    CommandRecord,
    ConfigRecord,
    EventRecord,
    Header,
    LogWriter,
    Record,
    TickRecord,
    Truncated,
    read_log,
)

HEADER = Header(node="n", preset="mars", created="2026-01-01T00:00:00Z", config="[admission]\n")
TOOL = ToolStarted(publisher="n/t/b", sequence=1, at_ns=5, program_id="p", call_id="c", tool="bash")


def write_sample(path: Path) -> list[Record]:
    with LogWriter(path, HEADER) as log:
        log.config("preset = 'mars'", 1)
        log.event(TOOL, 2)
        log.tick(3)
        log.command(Admit(command_id=1, program_id="p", reason="first"), 3)
    return [
        HEADER,
        ConfigRecord(now_ns=1, text="preset = 'mars'"),
        EventRecord(now_ns=2, event=TOOL),
        TickRecord(now_ns=3),
        CommandRecord(now_ns=3, command=Admit(command_id=1, program_id="p", reason="first")),
    ]


@pytest.mark.parametrize("name", ["run.jsonl", "deep/er/run.jsonl.gz"])
def test_a_log_reads_back_as_written(tmp_path: Path, name: str) -> None:
    expected = write_sample(tmp_path / name)
    assert list(read_log(tmp_path / name)) == expected


@settings(deadline=None)
@given(st.lists(st.one_of(events(), commands()), max_size=6), st.integers(0, 2**63 - 1))
def test_every_event_and_command_reads_back_exactly(items: list[Event | Command], now_ns: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        with LogWriter(path, HEADER) as log:
            expected: list[Record] = [HEADER]
            for item in items:
                if isinstance(item, Event):
                    log.event(item, now_ns)
                    expected.append(EventRecord(now_ns=now_ns, event=item))
                else:
                    log.command(item, now_ns)
                    expected.append(CommandRecord(now_ns=now_ns, command=item))
        assert list(read_log(path)) == expected


def test_flush_makes_the_lines_readable_by_others(tmp_path: Path) -> None:
    with LogWriter(tmp_path / "log.jsonl", HEADER) as log:
        log.tick(7)
        log.flush()
        assert list(read_log(tmp_path / "log.jsonl")) == [HEADER, TickRecord(now_ns=7)]


def test_a_cut_last_line_ends_the_log_and_loses_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    expected = write_sample(path)
    path.write_bytes(path.read_bytes()[:-20])
    *records, last = read_log(path)
    assert records == expected[:-1]
    assert isinstance(last, Truncated)
    assert f"{path}:5: the last line is cut" in last.message


def test_a_cut_compressed_log_ends_likewise(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    with LogWriter(path, HEADER) as log:
        for n in range(20_000):
            log.tick(n * 7919)
    path.write_bytes(path.read_bytes()[:-1000])
    header, *records, last = read_log(path)
    assert header == HEADER
    assert len(records) > 1000
    assert records == [TickRecord(now_ns=n * 7919) for n in range(len(records))]
    assert isinstance(last, Truncated)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{nonsense}\n", ":3: "),
        (b'{"record":"tick"}\n', "missing required field `now_ns`"),
        (b'{"record":"dance","now_ns":1}\n', "dance"),
        (b'{"record":"event","now_ns":1,"kind":"dance","body":{}}\n', "no event of kind 'dance'"),
        (b'{"record":"event","now_ns":1,"kind":"tool_started","body":{"tool":3}}\n', "$.tool"),
        (b'{"record":"command","now_ns":1,"kind":"retain","body":{"program_id":"p"}}\n', "ttl_ns"),
        (b'{"record":"tick","now_ns":1.5}\n', "$.now_ns"),
        (b'{"record":"event","now_ns":1,"kind":"tool_started"}\n', ":3: "),
    ],
)
def test_a_bad_line_in_the_middle_is_named(tmp_path: Path, line: bytes, problem: str) -> None:
    path = tmp_path / "log.jsonl"
    write_sample(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[2:]]))
    with pytest.raises(ConfigError) as caught:
        list(read_log(path))
    assert str(caught.value).startswith(f"{path}:3: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the event log is empty"),
        (b'{"record":"tick","now_ns":1}\n', ":1: expected the header of an event log"),
        (b'{"format":"other","version":1,"node":"n","preset":"p"}\n', "expected format 'penstock-event-log'"),
        (b'{"format":"penstock-event-log","version":9,"node":"n","preset":"p"}\n', "version 9 of the format"),
        (b"\xff\xfe\x00", ":1: expected the header"),
    ],
)
def test_a_file_that_is_no_log_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        list(read_log(path))


def test_files_that_cannot_be_opened_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl: cannot read the event log: No such file"):
        list(read_log(tmp_path / "nowhere.jsonl"))
    with pytest.raises(ConfigError, match="cannot write the event log"):
        LogWriter(tmp_path, HEADER)
    (tmp_path / "no.jsonl.gz").write_bytes(b"not compressed\n")
    with pytest.raises(ConfigError, match=r"no\.jsonl\.gz: cannot read the event log: Not a gzipped"):
        list(read_log(tmp_path / "no.jsonl.gz"))
    (tmp_path / "bad.jsonl.gz").write_bytes(gzip.compress(b"x" * 5000)[:12] + b"\x00garbage" * 20)
    with pytest.raises(ConfigError, match=r"bad\.jsonl\.gz: cannot read the event log: Error -3"):
        list(read_log(tmp_path / "bad.jsonl.gz"))

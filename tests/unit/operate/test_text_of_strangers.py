"""What prints for operators shows strangers' text as text, even where an earlier daemon or log let it through.

Each view is given replies in which every text is such a name: it ends in no error, nothing is obeyed, and there are
as many rows as without.
"""

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import structlog
from hypothesis import given, settings
from support import strangers
from support.decisions import decided, ran
from typer.testing import CliRunner

from controlplane import clocks
from controlplane.cli.app import app
from controlplane.core.model import commands as cmd
from controlplane.daemon.observe.engine_metrics import EngineTokens, exposed
from controlplane.daemon.process import logs
from controlplane.daemon.status.engines import EngineRow
from controlplane.operate import gain, tables
from controlplane.operate import shadow_report as shadow
from controlplane.operate.decisions import show_decisions
from controlplane.operate.doctor import of_status
from controlplane.operate.printing import echo, print_json
from controlplane.operate.top.app import strip
from controlplane.operate.top.screen import Look, Screen
from controlplane.wire.control import METHODS, Fields
from controlplane.wire.decisions import Alternative, OutcomeRecord

ENUMS = {"phase": "acting", "status": "active", "level": "bad", "standing": "serving"}


def filled(value: Any, name: str) -> Any:
    """A reply with that name wherever it has a text."""
    if isinstance(value, Fields):
        return Fields(**{key: ENUMS.get(key, filled(each, name)) for key, each in vars(value).items()})
    if isinstance(value, list):
        return [filled(each, name) for each in value]
    return name if isinstance(value, str) else value


def reply(method: str, name: str) -> Any:
    """A reply in which every list has an entry."""
    return filled(_fields(METHODS[method].decode_reply, method), name)


def _fields(decode: Callable[[bytes], Fields], method: str) -> Fields:
    found = decode(b"")
    samples: dict[str, Any] = {"GetStatus": STATUS, "ListEngines": ENGINES, "ListPrograms": PROGRAMS}
    return Fields(**{**vars(found), **samples.get(method, {})})


def entry(method: str, *path: str) -> Fields:
    """One entry of a list of that method's reply, of its defaults."""
    from controlplane.wire._generated import control_pb2
    from controlplane.wire.control import _fields as of_message

    kind = control_pb2.DESCRIPTOR.services_by_name["Control"].methods_by_name[method].output_type
    for name in path:
        kind = kind.fields_by_name[name].message_type
    from google.protobuf.message_factory import GetMessageClass

    return of_message(GetMessageClass(kind)())


STATUS = {name: [entry("GetStatus", name)] * 2 for name in ("findings", "refusals", "tenants", "forecasts")} | {
    "passive_engines": [""]
}
ENGINES = {"engines": [entry("ListEngines", "engines")] * 2, "moves": [entry("ListEngines", "moves")], "total": 3}
PROGRAMS = {
    "programs": [entry("ListPrograms", "programs")] * 2,
    "phases": [entry("ListPrograms", "phases")],
    "total": 3,
}


def top(name: str) -> None:
    """Each of its screens, drawn as Textual draws it."""
    screen = Screen(contains=name, lost=name)
    look = Look(
        status=reply("GetStatus", name), listed=reply("ListPrograms", name), engines=reply("ListEngines", name)
    )
    screen.take(look)
    screen.programs.move(1)
    screen.lost = name
    for panel in ("", "details", "keys"):
        screen.panel = panel
        for line in screen.lines(100, 60):
            drawn = strip(line, 100)
            assert drawn.cell_length == 100


def doctor(name: str) -> None:
    for each in of_status(reply("GetStatus", name)):
        echo(f"{each.what} {each.found} {each.advice}")


def decision(name: str, *, as_json: bool) -> None:
    command = cmd.Place(command_id=1, program_id=name, replica=name, leaves=name, reason=name)
    show_decisions([Fields(missed=0, at_ns=1, command=command)], json=as_json)


def promote(name: str) -> None:
    for line in shadow.before_promoting(reply("GetStatus", name)):
        echo(line)


VIEWS: dict[str, Callable[[str], None]] = {
    "status": lambda name: tables.show_status(reply("GetStatus", name), json=False),
    "status, JSON": lambda name: tables.show_status(reply("GetStatus", name), json=True),
    "engines": lambda name: tables.show_engines(reply("ListEngines", name), json=False),
    "engines, JSON": lambda name: tables.show_engines(reply("ListEngines", name), json=True),
    "programs": lambda name: tables.show_programs(reply("ListPrograms", name), json=False),
    "programs, JSON": lambda name: tables.show_programs(reply("ListPrograms", name), json=True),
    "queue": lambda name: tables.show_programs(reply("ListPrograms", name), json=False, waits=True),
    "tenants": lambda name: tables.show_tenants(reply("GetStatus", name), json=False),
    "orders": lambda name: tables.show_orders(reply("Hold", name), json=False),
    "reload": lambda name: tables.show_config(reply("Reload", name), json=False),
    "decisions": lambda name: decision(name, as_json=False),
    "decisions, JSON": lambda name: decision(name, as_json=True),
    "gain": lambda name: gain.show_gain(reply("GetStatus", name), json=False),
    "promote": promote,
    "doctor": doctor,
    "top": top,
    "JSON": lambda name: print_json({name: [name]}),
}


def shown(view: Callable[[str], None], name: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        view(name)
    return out.getvalue()


@pytest.mark.parametrize("view", VIEWS)
@given(name=strangers.names)
@settings(max_examples=20)
def test_a_view_shows_it_as_text(view: str, name: str) -> None:
    text = shown(VIEWS[view], name)
    assert strangers.stray(text) == ""
    assert text.count("\n") == shown(VIEWS[view], "p").count("\n"), "a row for each, and none that is forged"
    if "JSON" in view:
        json.loads(text)


@contextlib.contextmanager
def logged(*, as_json: bool) -> Iterator[io.StringIO]:
    """Give all that is logged meanwhile, however long the thread that writes it takes."""
    before = structlog.get_config()
    try:
        with patch.object(logs, "_PATIENCE_S", 600.0), contextlib.redirect_stderr(io.StringIO()) as out:
            logs.configure(json=as_json)
            yield out
    finally:
        structlog.configure(**before)


@given(name=strangers.names)
@settings(max_examples=20)
def test_a_log_line_is_one_line(name: str) -> None:
    for as_json in (True, False):
        with logged(as_json=as_json) as out:
            logs.logger("test").warning(name, program=name, error=name)
        lines = out.getvalue().replace("\x1b[", "")  # its own colours
        assert lines.count("\n") == 1
        assert strangers.stray(lines) == ""


@given(name=strangers.names)
@settings(max_examples=20)
def test_a_label_stays_within_its_sample(name: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    text = b"".join(exposed([EngineRow(place=name)], EngineTokens())).decode("utf-8", "replace")
    for family in text_string_to_metric_families(text):
        assert {sample.name for sample in family.samples} <= {family.name, f"{family.name}_total"}


def test_lines_that_strangers_bring_about_do_not_fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(clocks, "awake_s", lambda: now_s)
    with logged(as_json=True) as out:
        for _ in range(1000):
            logs.logger("test").warning("refused")
        logs.logger("test").warning("another")
        now_s = 60.0
        logs.logger("test").warning("refused")
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) == 102
    assert lines[-1]["left_out"] == 900


@pytest.mark.parametrize("case", strangers.NAMES)
def test_an_old_log_is_explained_in_lines(case: str, tmp_path: Path) -> None:
    name = strangers.NAMES[case].encode("utf-8", "replace").decode()
    texts = {
        "reason": name,
        "rule": name,
        "values": {"leaves": name},
        "tool": name,
        "engine": name,
        "turns": [name],
    }
    others = [Alternative(program_id=name, blocks=1, waited_ns=1)]
    records: list[msgspec.Struct] = [
        decided(name, **texts, context_tokens=9, alternatives=others),
        OutcomeRecord(at="", number=1, program_id=name, outcome=name, after_ns=1, turn_id=name, engine=name),
        ran("child", name, 1, 2, turns=1),
        ran(name, "", 0, 3, turns=2),
    ]
    log = tmp_path / "decisions.jsonl"
    log.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    rarely = (([], 2), (["--", "nobody"], 0)) if case in ("clear screen", "row") else ()
    for arguments, lines in ((["--", name], 13), (["--json", "--", name], 2), *rarely):
        said = CliRunner().invoke(app, ["explain", "--log", str(log), *arguments])
        assert strangers.stray(said.stdout) == ""
        assert not lines or said.stdout.count("\n") == lines, said.stdout


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_reports_of_the_laboratory_show_it_as_text(tmp_path: Path) -> None:
    names = [*strangers.NAMES.values(), "\ud800 half a pair"]
    trace, runs, fits = (
        tmp_path / "[/nope]\x1b[2J.jsonl".replace("/", "|"),
        tmp_path / "runs",
        tmp_path / "fits.json",
    )
    turns = [{"input_tokens": 9, "output_tokens": 2, "tool_ms": 1.0}] * 2
    lines = [
        {"program_id": f"{name}{part}", "source": name, "turns": [{**turn, "tool": name} for turn in turns[part:]]}
        for name in names
        for part in (0, 1, 2)  # the last one has no turn
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for command in (
        ["tools", "fit", str(trace), "--out", str(fits)],
        ["tools", "show", str(fits)],
        ["simulate", str(trace), "-p", "fcfs", "--out", str(runs)],
    ):
        said = CliRunner().invoke(app, command)
        assert said.exit_code == 0, said.output
        assert strangers.stray(said.output) == "", command
    run = next(runs.glob("*.json"))
    saved = json.loads(run.read_text())
    name = "[/nope][link=http://x]p[/link]\x1b]0;pwned\x07p\u202egnp<script>"
    texts = {"label": name, "preset": name, "arrival": name, "facts": {"telemetry": name, name: name}}
    (runs / "strange.json").write_text(json.dumps({**saved, **texts}))
    report = tmp_path / "report.html"
    said = CliRunner().invoke(app, ["report", *map(str, runs.glob("*.json")), "--out", str(report)])
    assert said.exit_code == 0, said.output
    assert strangers.stray(said.output + report.read_text().replace("\xa0", " ")) == ""


def test_operators_commands_print_in_one_place() -> None:
    folder = Path(sys.modules["controlplane.operate.printing"].__file__ or "").parent
    others = [file for file in folder.rglob("*.py") if file.name != "printing.py"]
    assert [
        file.name for file in others if re.search(r"typer\.echo|\bprint\(|Console\(|sys\.stdout", file.read_text())
    ] == []

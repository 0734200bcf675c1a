"""Simulated tools: drawn times, a contended host, and what the controller makes of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from experiments import experiment
from typer.testing import CliRunner
from worlds import TWO_TURNS, ControllerDouble, spec, trace_of, world_of

from controlplane.cli.app import app
from controlplane.core.model import events as ev
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import seconds
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.sim.contention import Contention, parse_contention
from controlplane.lab.sim.ideal_time import IdealTimes
from controlplane.lab.simulate import run_of, simulate
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.synthetic import synthesize
from controlplane.lab.workload.tool_fits import fit_tools
from controlplane.lab.workload.trace import ProgramTrace, Trace, Turn

MS = 1_000_000
EACH = Contention()


def took_ns(control: ControllerDouble) -> dict[str, int]:
    return {event.program_id: event.duration_ns for _, event in control.of(ev.ToolEnded)}


def one_call(name: str, tool_ms: float, tool: str = "make") -> ProgramTrace:
    """A turn of 20 us, a tool, a turn."""
    first = Turn(input_tokens=10, output_tokens=1, tool=tool, tool_ms=tool_ms)
    return trace_of(first, Turn(input_tokens=11, output_tokens=1), name=name)


def ran(*programs: ProgramTrace, **options: Any) -> ControllerDouble:
    control = ControllerDouble()
    world_of(*programs, control=control, **options).run()
    starts = {event.program_id: now_ns for now_ns, event in control.of(ev.ToolStarted)}
    for now_ns, event in control.of(ev.ToolEnded):
        assert event.duration_ns == now_ns - starts[event.program_id]
    return control


# Contention


@pytest.mark.parametrize(
    ("options", "took", "waited"),
    [
        ({"cpus": 1.0}, 5, 0),  # what the trace says
        ({"cpus": 2.0, "contention": EACH}, 10, 0),  # their turns are one batch, so that they start at one time
        ({"cpus": 1.0, "contention": EACH, "tool_slots": 2}, 10, 10),  # two share it, then the other two do
        ({"cpus": 4.0, "tool_slots": 2}, 5, 5),
    ],
)
def test_four_tools_wait_for_slots_and_share_the_cpus(options: dict[str, Any], took: int, waited: int) -> None:
    control = ran(*(one_call(f"p{k}", 5.0) for k in range(4)), **options)
    assert set(took_ns(control).values()) == {took * MS}
    starts = [now_ns for now_ns, _ in control.of(ev.ToolStarted)]
    assert [start_ns - starts[0] for start_ns in starts] == [0, 0, waited * MS, waited * MS]
    assert len(control.of(ev.ToolEnqueued)) == 4


def test_waiting_is_not_slowed() -> None:
    """A quarter of 8 ms is computed, at half speed; what only waits takes its time; four CPUs' worth: a fifth."""
    shares = Contention(named=(("sleep", 0.0), ("curl", 0.25), ("make -j*", 4.0)))
    sleep, curl = one_call("sleep", 8.0, "sleep"), one_call("curl", 8.0, "curl")
    alone = ran(sleep, curl, cpus=1.0, contention=shares)
    assert took_ns(alone) == {"sleep": 8 * MS, "curl": 8 * MS}
    other = one_call("curl too", 8.0, "curl")
    assert took_ns(ran(sleep, curl, other, cpus=1.0, contention=shares)) == {
        "sleep": 8 * MS,
        "curl": 10 * MS,
        "curl too": 10 * MS,
    }
    wide = ran(one_call("wide", 8.0, "make -j4"), one_call("one", 1.0), cpus=1.0, contention=shares)
    # Speed 1/5 until the small one has its 1 ms, at 5 ms; then 1/4 for the 7 ms that are left.
    assert took_ns(wide) == {"one": 5 * MS, "wide": (5 + 28) * MS}


def test_the_host_is_sampled_every_second() -> None:
    control = ran(*(one_call(f"p{k}", 2000.0) for k in range(3)), cpus=2.0, contention=EACH)
    samples = control.of(ev.HostSampled)
    assert [now_ns for now_ns, _ in samples] == [seconds(k) for k in range(4)]
    assert [round(event.cpu_use_ratio, 3) for _, event in samples] == [0.0, 1.0, 1.0, 1.0]
    # As the kernel does it: 1 - exp(-1/10) of the way each second.
    assert [round(event.cpu_stall_ratio, 3) for _, event in samples] == [0.0, 0.095, 0.181, 0.259]
    assert {event.cpus for _, event in samples} == {2.0}


def test_every_program_ends_on_a_crowded_host() -> None:
    fits = fit_tools(run_of(spec()).trace.programs, "mine")
    ideal = IdealTimes(run_of(spec()).engine.build)
    crowded = spec(contention=True, cpu_shares=("0.7",), cpus=1.0, tools=fits, scale_tools=5.0)
    result, plain = simulate(crowded, ideal=ideal), simulate(spec())
    assert result == simulate(crowded, ideal=ideal)
    assert result.summary.programs_ended == 12
    assert result.summary.tool_slowdown_ratio > 1.0 > plain.summary.tool_slowdown_ratio
    assert result.facts["tool contention"] == "CPUs shared; a tool uses 0.7"
    assert result.facts["tool times"] == f"drawn, fitted to {fits.pool.calls} calls of mine"
    assert (plain.facts["tool times"], plain.facts["tool contention"]) == ("the trace's", "none")
    assert (result.scale, result.facts["scale"]) == (Scale(tools=5.0), "tokens x1, outputs x1, tools x5")
    assert all(program.completion_ns >= program.ideal_ns > 0 for program in result.programs)


def builds(programs: int, calls: int) -> Trace:
    """Agents that build and test all the time, for 2 s each."""
    turns = tuple(
        Turn(
            input_tokens=100 + 20 * k,
            output_tokens=10,
            tool="make" if k < calls else "",
            tool_ms=2000.0 if k < calls else None,
        )
        for k in range(calls + 1)
    )
    made = (ProgramTrace(program_id=f"p{n}", source="s", turns=turns) for n in range(programs))
    return Trace(programs=tuple(made), rejected=[], name="builds")


def test_mars_admits_fewer_programs_than_fcfs_when_tools_starve_each_other() -> None:
    """Ten CPUs' worth of agents on four. The first ones meet an idle host: calls to compare with (ADR 0007)."""
    options: dict[str, Any] = {
        "trace": builds(40, 20),
        "arrival": Poisson(0.2),
        "seed": 1,
        "pool_tokens": 1_000_000,
        "cpus": 4.0,
        "contention": True,
    }
    stock, mars = (simulate(experiment(**options, preset=PRESETS[name])) for name in ("fcfs", "mars"))
    assert max(stock.series.active) > 25
    assert max(mars.series.active) < 20
    assert any(mars.series.cpu_overloaded)
    assert max(mars.series.cpu_use_ratio) == pytest.approx(1.0)
    assert mars.summary.tool_slowdown_ratio < 0.6 * stock.summary.tool_slowdown_ratio
    # Shared by all, the CPUs make all end late; the work is the same.
    assert mars.summary.jct_mean_s < 0.85 * stock.summary.jct_mean_s
    assert mars.summary.makespan_s < 1.05 * stock.summary.makespan_s


# Drawn times


def test_drawn_times_differ_with_the_seed_and_the_copy_and_not_with_the_preset() -> None:
    trace = synthesize("swe-bench", programs=4, seed=2)
    fits = fit_tools(trace.programs, trace.name)

    def times(**changes: Any) -> list[list[float | None]]:
        chosen = run_of(spec(**({"trace": trace, "tools": fits, "programs": 8} | changes))).programs
        return [[turn.tool_ms for turn in program.turns] for program in chosen]

    assert times() == times(preset="fcfs", arrival=Poisson(9.0))
    assert times() != times(seed=1)
    assert times()[:4] != times()[4:]
    assert times(tools=None)[:4] == times(tools=None)[4:]
    doubled = times(scale_tools=2.0)
    assert doubled == [[None if ms is None else 2.0 * ms for ms in program] for program in times()]


# What a user writes


def test_shares_are_read() -> None:
    read = parse_contention(True, ["Bash:git=0.1", "0.5", "Bash:*=2", "a=b=1"])
    assert read == Contention(share=0.5, named=(("Bash:git", 0.1), ("Bash:*", 2.0), ("a=b", 1.0)))
    assert [read.share_of(tool) for tool in ("Bash:git", "Bash:make", "a=b", "Edit")] == [0.1, 2.0, 1.0, 0.5]
    assert str(read) == "CPUs shared; a tool uses 0.5, Bash:git 0.1, Bash:* 2, a=b 1"
    assert parse_contention(True, []) == EACH
    assert parse_contention(False, []) is None
    assert Contention(named=(("list[0]", 3.0),)).share_of("list[0]") == 3.0


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        (["much"], "expected SHARE or TOOL=SHARE with 0 <= SHARE <= 1024 CPUs, got 'much'"),
        (["Bash="], "got 'Bash='"),
        (["Bash=-1"], "got 'Bash=-1'"),
        (["nan"], "got 'nan'"),
        (["1025"], "got '1025'"),
        (["1", "2"], "expected one share for all other tools, got two"),
    ],
)
def test_bad_shares_are_refused(shares: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_contention(True, shares)
    with pytest.raises(ConfigError, match="expected contention to be on"):
        parse_contention(False, shares)


def test_from_the_command_line(tmp_path: Path) -> None:
    fits = tmp_path / "tools.json"
    fit_tools([trace_of(*TWO_TURNS)], "mine").save(fits)
    simulated = ["simulate", "synthetic:swe-bench", "-n", "3", "-p", "fcfs", "-a", "closed:3", "--json"]
    contended = ["--contention", "--cpu-share", "edit=0", "--cpus", "1"]
    run = CliRunner().invoke(app, [*simulated, "--tools", str(fits), *contended])
    assert run.exit_code == 0, run.output
    assert "tools.json has no times of edit, search" in run.stderr
    (told,) = json.loads(run.stdout)
    assert told["tool_slowdown_ratio"] >= 1.0
    (plain,) = json.loads(CliRunner().invoke(app, simulated).stdout)
    assert plain["tool_slowdown_ratio"] is None
    assert isinstance(CliRunner().invoke(app, [*simulated, *contended[1:]]).exception, ConfigError)
    assert isinstance(CliRunner().invoke(app, [*simulated, "--tools", "none"]).exception, ConfigError)

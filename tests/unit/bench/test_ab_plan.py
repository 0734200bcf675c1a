"""What the A/B runs, in which order, and what it does not run again."""

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from ab import plan, results, series, tuning
from ab.kinds import KINDS, SGLANG, VLLM, EngineShape
from ab.machine import cpus
from ab.prediction import spec_of
from ab.scenario import SMOKE, Scenario
from ab.systems import System, code_digest, effective_digest, parse_system, static
from ab_rows import SCENARIO, row

from controlplane.core.errors import ConfigError
from controlplane.lab.sim.profile import load_profile
from controlplane.lab.workload.arrivals import arrival_times_ns
from controlplane.lab.workload.telemetry import Telemetry

PROFILE = Path(__file__).parents[3] / "bench" / "results" / "validation-profile.json"
SYSTEMS = [parse_system(name, KINDS[SGLANG]) for name in ("stock", "static-8", "mars")]


def planned(**more: object) -> list[plan.Job]:
    asked = {"rates": (0.13, 0.2), "seeds": (1, 2), "systems": {0.13: SYSTEMS, 0.2: SYSTEMS}} | more
    return plan.jobs("run", SCENARIO, **asked)  # type: ignore[arg-type]


def test_whenever_it_stops_every_system_has_run_as_often_give_or_take_one() -> None:
    jobs = planned()
    assert len({job.cell for job in jobs}) == len(jobs) == 12
    for stop in range(len(jobs)):
        counts = [sum(job.system == system for job in jobs[:stop]) for system in SYSTEMS]
        assert max(counts) - min(counts) <= 1
    blocks = [{(job.cell.rate, job.cell.seed) for job in jobs[n : n + 3]} for n in range(0, 12, 3)]
    assert all(len(block) == 1 for block in blocks), "the systems of one rate and seed follow each other"
    assert len({job.system.name for job in jobs[::3]}) == 3, "each begins some of them"


def test_a_run_of_another_configuration_is_none_and_changed_code_is_noticed() -> None:
    job = planned()[2]
    system = job.system
    assert system.name == "mars"
    today = {"toml": system.toml, "effective": effective_digest(system), "code": code_digest(system)}
    same = row("mars", rate=0.13, **today)
    assert plan.finished(job, {same.cell: same}) == same
    assert not plan.changed(job, same)
    assert plan.changed(job, row("mars", rate=0.13, **today | {"code": "other"}))
    assert plan.changed(job, row("mars", rate=0.13, **today | {"effective": "other"}))
    other = row("mars", rate=0.13, **today | {"toml": 'preset = "mars"\n[admission]\nbeta = 0.5\n'})
    assert plan.finished(job, {other.cell: other}) is None
    assert plan.finished(job, {}) is None


def test_stock_has_nothing_of_ours_that_could_change() -> None:
    assert (effective_digest(SYSTEMS[0]), code_digest(SYSTEMS[0])) == ("", "")
    assert effective_digest(SYSTEMS[1]) != effective_digest(SYSTEMS[2])


def test_what_is_left_takes_as_long_as_its_like_did() -> None:
    jobs = planned(rates=(0.2,), systems={0.2: SYSTEMS})
    assert plan.remaining_s(jobs, 4, [row(rate=0.2)]) == pytest.approx(6 * 120.0)
    assert plan.remaining_s(jobs, 60, [row(rate=0.2)]) > 6 * 60 / 0.2


def test_systems_are_named(tmp_path: Path) -> None:
    assert parse_system("stock", KINDS[SGLANG]) == System(name="stock")
    assert not parse_system("stock", KINDS[SGLANG]).has_plugin
    assert parse_system("static-6", KINDS[SGLANG]) == static(6)
    assert static(6).has_plugin and static(6).is_static
    assert parse_system("mars", KINDS[SGLANG]).toml == 'preset = "mars"\n'
    own = tmp_path / "own.toml"
    own.write_text('preset = "mars"\n[admission]\nbeta = 0.6\n')
    assert parse_system(f"gentle={own}", KINDS[SGLANG]) == System(name="gentle", toml=own.read_text())
    own.write_text("[admission]\nbeta = 2\n")
    for bad, message in (("marz", "some of stock, static-N, fcfs, "), (f"x={own}", "beta")):
        with pytest.raises(ConfigError, match=message):
            parse_system(bad, KINDS[SGLANG])


def test_an_engines_own_priorities_are_asked_of_the_engine_that_has_them() -> None:
    system = parse_system("priority", KINDS[VLLM])
    assert (system.flags, system.first_come, system.has_plugin) == (
        ("--scheduling-policy", "priority"),
        True,
        False,
    )
    stock = parse_system("stock", KINDS[VLLM])
    assert (stock.flags, stock.first_come) == ((), False)
    with pytest.raises(ConfigError, match="priority is not tried on SGLang"):
        parse_system("priority", KINDS[SGLANG])


def test_every_system_gets_the_same_programs_and_every_seed_others() -> None:
    scenario = Scenario(programs=5)
    assert scenario.workload(1) == scenario.workload(1)
    assert scenario.workload(1).programs != scenario.workload(2).programs
    pool = scenario.engine.pool_tokens
    assert all(program.context_tokens < pool for seed in range(5) for program in scenario.workload(seed).programs)
    assert len(SMOKE.workload(1).programs) == SMOKE.programs


def test_a_trace_file_gives_each_seed_a_sample_of_its_own(tmp_path: Path) -> None:
    lines = [
        f'{{"program_id": "p{n}", "source": "s", "turns": [{{"input_tokens": {1000 + n}, "output_tokens": 50}}]}}'
        for n in range(20)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    scenario = Scenario(trace=str(path), programs=6)
    chosen = [{program.program_id for program in scenario.workload(seed).programs} for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert all(len(names) == 6 for names in chosen)


def test_what_differs_for_all_systems_makes_another_scenario() -> None:
    others = (Scenario(programs=30), Scenario(sglang="0.5.21"), Scenario(trace="synthetic:bfcl-v4"))
    scenarios = (Scenario(), *others, Scenario(engine=EngineShape(dtype="float32")))
    assert len({scenario.digest for scenario in scenarios}) == len(scenarios)
    assert Scenario().digest == Scenario().digest


def test_telemetry_makes_another_scenario_and_full_is_the_one_of_before() -> None:
    assert len({replace(Scenario(), telemetry=told).digest for told in Telemetry}) == len(Telemetry)
    assert replace(Scenario(cpus=2, sglang="0.5.21"), telemetry=Telemetry.FULL).digest == "24b97cd251"
    assert replace(Scenario(), humans=False).digest != Scenario().digest
    assert str(replace(Scenario(), telemetry=Telemetry.HALF)).endswith("; telemetry half")


def test_another_engine_or_version_of_it_makes_another_scenario() -> None:
    scenarios = [SMOKE.on(SGLANG, "1"), SMOKE.on(VLLM, "1"), SMOKE.on(VLLM, "2")]
    scenarios.append(replace(scenarios[1], engine=replace(scenarios[1].engine, device="gpu")))
    assert len({scenario.digest for scenario in scenarios}) == len(scenarios)
    assert "; vLLM 2, model tiny" in str(scenarios[2])
    assert all(one.workload(1) == SMOKE.workload(1) for one in scenarios)
    assert Scenario(cpus=2).on(SGLANG, "0.5.21").digest == "24b97cd251", "those from before keep theirs"


def test_an_engine_is_started_with_its_own_names_for_the_shape() -> None:
    shape = EngineShape(pool_tokens=4010, context_tokens=16_384, chunk_tokens=512, dtype="float32")
    sglang = ["--context-length", "16384", "--chunked-prefill-size", "512", "--dtype", "float32"]
    assert KINDS[SGLANG].arguments(shape) == sglang
    # vLLM refuses a longest context that whole pages of its pool do not hold
    vllm = ["--max-model-len", "4000", "--max-num-batched-tokens", "512", "--dtype", "float32"]
    assert KINDS[VLLM].arguments(replace(shape, kind=VLLM)) == vllm


def test_the_commands_of_a_series_name_its_telemetry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import ab_engine

    monkeypatch.setattr(
        "sys.argv", ["ab_engine.py", "run", "--telemetry", "turns", "--no-humans", "--smoke", "--engine", "vllm"]
    )
    monkeypatch.setattr(ab_engine, "version_of", lambda environment, kind: "0")
    options = ab_engine.parse_arguments()
    asked = replace(SMOKE, cpus=cpus(), telemetry=Telemetry.TURNS, humans=False)
    assert ab_engine.scenario_of(options, tmp_path) == asked.on(VLLM, "0")
    passed_on = ab_engine._passed_on(options)
    assert passed_on[passed_on.index("--telemetry") + 1] == "turns"
    assert passed_on[passed_on.index("--engine") + 1] == "vllm"
    assert "--no-humans" in passed_on


def test_a_prediction_simulates_what_the_programs_told() -> None:
    profile = load_profile(PROFILE)
    for told in Telemetry:
        scenario = replace(SMOKE, telemetry=told)
        asked = partial(spec_of, scenario, profile, rate=1.0, seed=1)
        assert asked(toml='preset = "mars"\n').workload.telemetry is told
        assert asked(toml="").workload.telemetry is Telemetry.FULL, "stock takes nobody's silence for anything"


def test_arrivals_are_one_pattern_at_every_rate() -> None:
    slow, fast = arrival_times_ns(5, 0.1, 3), arrival_times_ns(5, 0.2, 3)
    assert all(abs(s - 2 * f) <= 2 for s, f in zip(slow, fast, strict=True))


def tuning_row(window: int, mean_s: float, rate: float, seed: int = 101) -> results.Row:
    return row(f"static-{window}", [mean_s, mean_s], purpose=results.TUNE, rate=rate, seed=seed)


def test_the_best_window_is_the_tuned_one_of_the_nearest_rate() -> None:
    rows = [tuning_row(4, 30, 0.15), tuning_row(8, 20, 0.15), tuning_row(4, 40, 0.2), tuning_row(8, 50, 0.2)]
    means = tuning.mean_jcts([*rows, row("static-8", [1.0, 1.0], rate=0.2)], SCENARIO)
    assert means == {0.15: {4: 30, 8: 20}, 0.2: {4: 40, 8: 50}}
    assert [tuning.best_window(means, rate) for rate in (0.13, 0.15, 0.2, 0.3)] == [8, 8, 4, 4]
    assert tuning.best_window({}, 0.15) is None
    assert tuning.mean_jcts(rows, "another load") == {}


def test_windows_are_compared_on_the_seeds_that_all_of_them_have() -> None:
    rows = [tuning_row(4, 30, 0.15), tuning_row(8, 20, 0.15), tuning_row(8, 900, 0.15, seed=102)]
    assert tuning.mean_jcts(rows, SCENARIO) == {0.15: {4: 30, 8: 20}}


def test_the_simulator_tunes_windows_over_the_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = replace(SMOKE, cpus=1)
    tuned = partial(
        tuning.simulated_means, scenario, load_profile(PROFILE), rates=(1.0,), systems=[static(1), static(4)]
    )
    means, first, second = tuned(seeds=(101, 102)), tuned(seeds=(101,)), tuned(seeds=(102,))
    one, four = (means[1.0][name] for name in ("static-1", "static-4"))
    assert one == pytest.approx((first[1.0]["static-1"] + second[1.0]["static-1"]) / 2)
    assert one > four, "one program at a time waits for the others' tools"
    tuning.show(means, (101, 102))
    assert f"{four:.1f} *" in capsys.readouterr().out


def test_no_window_is_tuned_on_the_seeds_that_it_is_compared_on(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    scenario = Scenario()
    results.append(path, row("static-4", purpose=results.TUNE, scenario=scenario.digest, seed=101))
    with pytest.raises(SystemExit, match=r"\[101\] serve the other purpose"):
        series.run(
            results.RUN,
            scenario,
            rates=(0.15,),
            seeds=(1, 101),
            systems={0.15: SYSTEMS},
            environment=tmp_path,
            path=path,
            keep=None,
            redo=frozenset(),
        )


def test_static_means_the_tuned_window_and_needs_one(tmp_path: Path) -> None:
    import ab_engine

    path = tmp_path / "results.jsonl"
    asked = argparse.Namespace(command="run", rates=(0.15, 0.2), systems="stock,static,static-4,mars", results=path)
    with pytest.raises(SystemExit, match="run `tune` first"):
        ab_engine.systems_at(asked, Scenario())
    digest = Scenario().digest
    for rate, best in ((0.15, 8), (0.2, 4)):
        for window in (4, 8):
            mean_s = 10.0 if window == best else 20.0
            tuned = row(f"static-{window}", [mean_s], purpose=results.TUNE, scenario=digest, rate=rate, seed=101)
            results.append(path, tuned)
    names = {
        rate: [system.name for system in found] for rate, found in ab_engine.systems_at(asked, Scenario()).items()
    }
    assert names == {0.15: ["stock", "static-8", "static-4", "mars"], 0.2: ["stock", "static-4", "mars"]}

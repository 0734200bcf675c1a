"""What the A/B compares, and on what: systems, loads, engines on a CPU and on a GPU."""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import ab_engine
import pytest
from ab.kinds import GPU, KINDS, SGLANG, VLLM, EngineShape
from ab.machine import cpus, gpu_name
from ab.model import SHAPES, write_model
from ab.one_run import Job
from ab.scenario import ON_A_GPU, SMOKE, Scenario
from ab.systems import System, effective_digest, parse_system, static
from ab_rows import cell

from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.telemetry import Telemetry


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> argparse.Namespace:
    monkeypatch.setattr("sys.argv", ["ab_engine.py", *arguments])
    monkeypatch.setattr(ab_engine, "version_of", lambda environment, kind: "9")
    return ab_engine.parse_arguments()


def test_systems_are_named(tmp_path: Path) -> None:
    assert parse_system("stock", KINDS[SGLANG]) == System(name="stock")
    assert not parse_system("stock", KINDS[SGLANG]).has_plugin
    assert parse_system("static-6", KINDS[SGLANG]) == static(6)
    assert parse_system("mars", KINDS[SGLANG]).toml == 'preset = "mars"\n'
    assert effective_digest(static(6)) != effective_digest(static(8))
    own = tmp_path / "own.toml"
    own.write_text('preset = "mars"\n[admission]\nbeta = 0.6\n')
    assert parse_system(f"gentle={own}", KINDS[SGLANG]) == System(name="gentle", toml=own.read_text())
    priority = parse_system("priority", KINDS[VLLM])
    assert (priority.flags, priority.first_come) == (("--scheduling-policy", "priority"), True)
    (tmp_path / "agentinfer").mkdir()
    rival = parse_system(f"agentinfer={tmp_path}", KINDS[VLLM])
    assert str(tmp_path) in rival.variables["PYTHONPATH"] and "--scheduler-cls" in rival.flags
    own.write_text("[admission]\nbeta = 2\n")
    for bad, message in (
        ("marz", "some of stock, static-N, fcfs, "),
        (f"x={own}", "beta"),
        ("priority", "priority is not tried on SGLang"),
        (f"agentinfer={tmp_path}", "expected vllm"),
    ):
        with pytest.raises(ConfigError, match=message):
            parse_system(bad, KINDS[SGLANG])


def test_every_system_gets_the_same_programs_and_every_seed_others(tmp_path: Path) -> None:
    scenario = Scenario(programs=5)
    assert scenario.workload(1) == scenario.workload(1)
    assert scenario.workload(1).programs != scenario.workload(2).programs
    assert all(program.context_tokens < 16_000 for seed in range(5) for program in scenario.workload(seed).programs)
    assert {len(program.turns) for program in replace(scenario, turns=1).workload(1).programs} == {1}
    path = tmp_path / "trace.jsonl"
    path.write_text(
        "\n".join(
            f'{{"program_id": "p{n}", "source": "s", "turns": [{{"input_tokens": 1000, "output_tokens": {n}}}]}}'
            for n in range(20)
        )
    )
    drawn = Scenario(trace=str(path), programs=6)
    chosen = [{program.program_id for program in drawn.workload(seed).programs} for seed in (1, 1, 2)]
    assert chosen[0] == chosen[1] != chosen[2]


def test_what_differs_for_all_systems_makes_another_scenario_and_those_from_before_keep_theirs() -> None:
    usual = Scenario(cpus=2)
    scenarios = [
        *(
            usual,
            replace(usual, programs=30),
            replace(usual, trace="synthetic:bfcl-v4"),
            replace(usual, humans=False),
            replace(usual, turns=1),
        ),
        *(replace(usual, telemetry=each) for each in Telemetry if each is not Telemetry.FULL),
        *(usual.on(SGLANG, "1"), usual.on(VLLM, "1"), usual.on(VLLM, "2")),
        *(replace(usual, engine=EngineShape(dtype="float32")), replace(usual, engine=EngineShape(device=GPU))),
        replace(usual, engine=EngineShape(flags="--a")),
    ]
    assert len({scenario.digest for scenario in scenarios}) == len(scenarios)
    assert usual.on(SGLANG, "0.5.21").digest == "24b97cd251"
    assert "; vLLM 2, model tiny" in str(SMOKE.on(VLLM, "2"))


def test_an_engine_is_started_with_its_own_names_for_the_shape() -> None:
    shape = EngineShape(
        pool_tokens=4010, context_tokens=16_384, chunk_tokens=512, dtype="float32", flags="--a 'b c'"
    )
    sglang = ["--context-length", "16384", "--chunked-prefill-size", "512", "--dtype", "float32", "--a", "b c"]
    assert KINDS[SGLANG].arguments(shape) == sglang
    # vLLM refuses a longest context that whole pages of its pool do not hold
    vllm = ["--max-model-len", "4000", "--max-num-batched-tokens", "512", "--dtype", "float32", "--a", "b c"]
    assert KINDS[VLLM].arguments(replace(shape, kind=VLLM)) == vllm


def test_a_command_for_one_cpu_asks_for_the_same_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = ["--telemetry", "turns", "--no-humans", "--smoke", "--engine", "vllm", "--flags=--a b"]
    options = asked(monkeypatch, "run", *given)
    scenario = ab_engine.scenario_of(options, tmp_path)
    told = replace(SMOKE, cpus=cpus(), telemetry=Telemetry.TURNS, humans=False).on(VLLM, "9")
    assert scenario == replace(told, engine=replace(told.engine, flags="--a b"))
    job = Job(cell=cell("mars", seed=3), system=parse_system("mars", KINDS[VLLM]))
    again = asked(monkeypatch, *ab_engine.command_of(options, job, 1)[2:])
    assert ab_engine.scenario_of(again, tmp_path) == scenario
    assert (again.cpu, again.rates, again.seeds, again.systems) == (1, (0.15,), (3,), ("mars",))


def test_on_a_gpu_both_engines_get_the_same_agents_on_an_8b_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ab_engine, "gpu_name", lambda: "")
    with pytest.raises(SystemExit, match="no GPU is here"):
        ab_engine.run(asked(monkeypatch, "run", "--gpu", "--environment", str(tmp_path)))
    with pytest.raises(SystemExit, match="needs --environment"):
        ab_engine.environment_of(asked(monkeypatch, "run", "--gpu"))
    sglang, vllm = (
        ab_engine.scenario_of(asked(monkeypatch, "run", "--gpu", "--engine", name, "--programs", "8"), tmp_path)
        for name in (SGLANG, VLLM)
    )
    assert (sglang.engine.model, sglang.engine.device, sglang.programs, sglang.cpus) == ("8b", GPU, 8, cpus())
    assert sglang.workload(1) == vllm.workload(1)
    longest = max(program.context_tokens for seed in (1, 2) for program in ON_A_GPU.workload(seed).programs)
    assert longest < ON_A_GPU.engine.context_tokens < ON_A_GPU.engine.pool_tokens


def test_a_gpu_is_named_and_several_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    script = tmp_path / "nvidia-smi"
    for printed, status, name in (
        ("NVIDIA L4\\n", 0, "NVIDIA L4"),
        ("L4\\nL4\\n", 0, "L4 (of 2)"),
        ("failed", 9, ""),
    ):
        script.write_text(f"#!/bin/sh\nprintf '{printed}'\nexit {status}\n")
        script.chmod(0o755)
        assert gpu_name() == name


def test_the_8b_shape_speaks_a_word_for_each_of_its_tokens(tmp_path: Path) -> None:
    write_model(tmp_path, "8b")
    config, tokenizer = (json.loads((tmp_path / name).read_text()) for name in ("config.json", "tokenizer.json"))
    words = tokenizer["model"]["vocab"]
    assert len(words) == config["vocab_size"] == SHAPES["8b"]["vocab_size"]
    assert sorted(words.values()) == list(range(len(words)))

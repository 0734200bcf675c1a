"""The A/B's command for GPUs: what it does where there is none, and what it would run where there is one."""

import argparse
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import ab_gpu
import pytest
from ab import results
from ab.kinds import GPU, KINDS, SGLANG, VLLM
from ab.machine import cpus, gpu_name
from ab.model import SHAPES, write_model
from ab.scenario import ON_A_GPU, Scenario
from ab_rows import row

from controlplane.lab.workload.telemetry import Telemetry


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> argparse.Namespace:
    monkeypatch.setattr("sys.argv", ["ab_gpu.py", *arguments])
    return ab_gpu.parse_arguments()


def nvidia_smi_double(folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: int = 0) -> None:
    folder.mkdir()
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\nprintf '{said}'\nexit {status}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_a_gpu_is_named_and_several_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_name() == "", "no such command"
    nvidia_smi_double(tmp_path / "one", monkeypatch, "NVIDIA L4\\n")
    assert gpu_name() == "NVIDIA L4"
    nvidia_smi_double(tmp_path / "two", monkeypatch, "NVIDIA L4\\nNVIDIA L4\\n")
    assert gpu_name() == "NVIDIA L4 (of 2)"
    nvidia_smi_double(tmp_path / "broken", monkeypatch, "NVIDIA-SMI has failed\\n", status=9)
    assert gpu_name() == ""


def test_without_a_gpu_nothing_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ab_gpu, "gpu_name", lambda: "")
    with pytest.raises(SystemExit, match="no GPU is here"):
        ab_gpu.run(asked(monkeypatch, "run", "--vllm", str(tmp_path)))
    monkeypatch.setattr(ab_gpu, "gpu_name", lambda: "NVIDIA L4")
    with pytest.raises(SystemExit, match="no engine is named"):
        ab_gpu.run(asked(monkeypatch, "run"))


def test_both_engines_get_the_same_agents_on_an_8b_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ab_gpu, "version_of", lambda environment, kind: "9")
    options = asked(monkeypatch, "run", "--vllm-flags=--attention-backend FLASH_ATTN", "--programs", "8")
    made = {name: ab_gpu.scenario_of(options, name, tmp_path) for name in KINDS}
    sglang, vllm = made[SGLANG], made[VLLM]
    assert (sglang.engine.model, sglang.engine.device, sglang.programs, sglang.cpus) == ("8b", GPU, 8, cpus())
    assert sglang.workload(1) == vllm.workload(1)
    assert sglang.digest != vllm.digest
    assert KINDS[VLLM].arguments(vllm.engine)[-2:] == ["--attention-backend", "FLASH_ATTN"]
    assert "--attention-backend FLASH_ATTN" in str(vllm)
    longest = max(program.context_tokens for seed in ab_gpu.SEEDS for program in ON_A_GPU.workload(seed).programs)
    assert longest < ON_A_GPU.engine.context_tokens < ON_A_GPU.engine.pool_tokens


@pytest.mark.parametrize("name", KINDS)
def test_on_a_gpu_nothing_is_left_of_how_a_test_starts_an_engine_on_a_cpu(name: str, tmp_path: Path) -> None:
    server = replace(ON_A_GPU.engine, kind=name).server
    started = server(tmp_path, environment=tmp_path, model=tmp_path, plugins=["penstock"])
    told = {key: value for key, value in started.variables.items() if os.environ.get(key) != value}
    assert not [key for key in told if "CPU" in key or "OMP" in key]
    assert {told[key] for key in told if key.endswith("_PLUGINS")} == {"penstock"}
    stock = server(tmp_path, environment=tmp_path, model=tmp_path)
    assert {stock.variables[key] for key in told if key.endswith("_PLUGINS")} == {"none"}, "empty means all of them"


def test_another_load_is_asked_for_as_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ab_gpu, "version_of", lambda environment, kind: "9")
    load = ["--telemetry", "none", "--trace", "synthetic:five-kinds", "--no-humans", "--scale-tools", "0.5"]
    made = ab_gpu.scenario_of(asked(monkeypatch, "run", *load, "--pool", "64000"), SGLANG, tmp_path)
    assert (made.telemetry, made.trace, made.humans) == (Telemetry.NONE, "synthetic:five-kinds", False)
    assert (made.scale, made.engine.pool_tokens) == (replace(ON_A_GPU.scale, tools=0.5), 64_000)


def test_the_pool_holds_as_many_agents_as_that_of_the_cpu() -> None:
    on_cpu = Scenario()
    tokens = {one.engine.pool_tokens / one.scale.tokens for one in (on_cpu, ON_A_GPU)}
    assert tokens == {320_000}


def test_the_rows_of_each_engine_are_written_beside_the_results(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "results.jsonl"
    assert ab_gpu.show(path) == 0
    assert "nothing was measured on a GPU yet" in capsys.readouterr().out
    for engine in KINDS:
        for system, jct_s in (("stock", (40.0, 60.0)), ("mars", (20.0, 30.0))):
            told = {"scenario": f"load-{engine}", "versions": {engine: "9"}, "gpu": "NVIDIA L4"}
            results.append(path, row(system, jct_s, **told))  # type: ignore[arg-type]
    ab_gpu.show(path)
    text = path.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out
    assert [line for line in text.splitlines() if line.startswith("## ")] == ["## SGLang", "## vLLM"]
    assert text.count("; NVIDIA L4; revision abc; seeds 1.") == 2
    assert text.count("0.50 [0.50, 0.50] |") == 2


def test_the_8b_shape_speaks_a_word_for_each_of_its_tokens(tmp_path: Path) -> None:
    write_model(tmp_path, "8b")
    config, tokenizer, told = (
        json.loads((tmp_path / name).read_text())
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json")
    )
    words = tokenizer["model"]["vocab"]
    assert len(words) == config["vocab_size"] == SHAPES["8b"]["vocab_size"]
    assert sorted(words.values()) == list(range(len(words)))
    assert told["model_max_length"] == config["max_position_embeddings"]

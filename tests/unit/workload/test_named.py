"""Workloads by name: mixes, changes, and pools of agents that are not alike."""

import json
from pathlib import Path

import numpy as np
import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.lab.workload.kinds import KINDS, REGIMES
from controlplane.lab.workload.named import Wanted, named_workload
from controlplane.lab.workload.synthetic import synthesize


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    """Two files with programs of the same names: ten of 100 tokens, four of 50 of which one waits for a person."""
    paths = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, count, prompt in zip(paths, (10, 4), (100, 50), strict=True):
        lines = []
        for i in range(count):
            tool = "human" if path is paths[1] and not i else "bash"
            first = {"input_tokens": prompt, "output_tokens": 5, "tool": tool, "tool_ms": 1.0}
            last = {"input_tokens": prompt + 10 * i, "output_tokens": 5}
            lines.append(json.dumps({"program_id": f"p{i}", "source": path.stem, "turns": [first, last]}))
        path.write_text("\n".join(lines))
    return paths


def sources(name: str, **wanted: int) -> list[str]:
    return [program.source for program in named_workload(name, Wanted(**wanted)).programs]  # type: ignore[arg-type]


def test_a_mix_has_equal_numbers_in_an_order_that_the_seed_draws(traces: tuple[Path, Path]) -> None:
    name = f"mix:{traces[0]}+{traces[1]}"
    assert sorted(sources(name)) == ["a"] * 4 + ["b"] * 4
    assert sorted(sources(name, programs=6)) == ["a"] * 3 + ["b"] * 3
    assert sources(name) != sorted(sources(name))
    assert sources(name) == sources(name)
    assert named_workload(name, Wanted()).name == "a+b"
    assert [p.program_id for p in named_workload(name, Wanted(seed=1)).programs] != [
        p.program_id for p in named_workload(name, Wanted(seed=2)).programs
    ]


def test_weights_count_and_more_than_a_file_has_begin_again_under_new_names(traces: tuple[Path, Path]) -> None:
    programs = named_workload(f"mix:{traces[0]}+{traces[1]}", Wanted(programs=20)).programs
    assert len({program.program_id for program in programs}) == 20
    assert sum(program.source == "b" for program in programs) == 10
    assert sorted(sources(f"mix:{traces[0]}*3+{traces[1]}", programs=8)) == ["a"] * 6 + ["b"] * 2
    mixed = sources(f"mix:{traces[0]}+synthetic:bfcl-v4*2", programs=9)
    assert sorted(mixed) == ["a"] * 3 + ["bfcl-v4"] * 6


def test_a_population_changes_half_way(traces: tuple[Path, Path]) -> None:
    assert sources(f"change:{traces[0]}>{traces[1]}", programs=5) == ["a"] * 3 + ["b"] * 2
    assert sources(f"change:{traces[0]}>{traces[1]}") == ["a"] * 4 + ["b"] * 4
    mixed = sources(f"change:mix:{traces[0]}+{traces[1]}>synthetic:bfcl-v4", programs=8)
    assert sorted(mixed[:4]) == ["a", "a", "b", "b"]
    assert mixed[4:] == ["bfcl-v4"] * 4


def test_limits_hold_for_every_part(traces: tuple[Path, Path]) -> None:
    for name in (f"mix:{traces[0]}+{traces[1]}", f"change:{traces[0]}>{traces[1]}", str(traces[0])):
        trace = named_workload(name, Wanted(max_context_tokens=125))
        assert max(program.context_tokens for program in trace.programs) <= 125
        assert trace.rejected
    alone = named_workload(str(traces[1]), Wanted(humans=False, programs=2))
    assert [program.program_id for program in alone.programs] == ["p1", "p2"]
    assert "a person thinks" in alone.rejected[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mix:", "expected mix:WORKLOAD"),
        ("mix:a*0+b", "expected mix:WORKLOAD"),
        ("change:a>change:b>c", "expected change:WORKLOAD>WORKLOAD"),
        ("synthetic:none", "five-kinds"),
        ("no/such/file", "cannot read"),
    ],
)
def test_names_that_make_no_sense_are_explained(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        named_workload(name, Wanted())


def test_the_five_kinds_differ_in_size_by_far() -> None:
    programs = synthesize("five-kinds", programs=600, seed=2).programs
    for kind in KINDS:
        mine = [program for program in programs if program.source == kind.name]
        assert len(mine) / 600 == pytest.approx(kind.share, abs=0.05)
        assert all(kind.turns[0] <= len(program.turns) <= kind.turns[1] for program in mine)
    contexts = [program.context_tokens for program in programs]
    assert max(contexts) > 10 * min(contexts)


@pytest.mark.parametrize(
    ("name", "volume"), [("ilr-1", REGIMES["ilr-1"]), ("ilr-4", REGIMES["ilr-4"]), ("ilr-like", 193_750)]
)
def test_a_regime_has_its_mean_prompt_volume(name: str, volume: int) -> None:
    programs = synthesize(name, programs=600, seed=2).programs
    volumes = [sum(turn.input_tokens for turn in program.turns) for program in programs]
    assert np.mean(volumes) == pytest.approx(volume, rel=0.06)

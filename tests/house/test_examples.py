"""The examples do what their pages say: in a copy of the repository, with no edit beyond the ones they name."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from controlplane.core.model import commands as cmd
from controlplane.core.model import events as ev
from controlplane.core.model.types import seconds
from controlplane.core.policies.admission import ADMISSION
from controlplane.core.policies.presets import PRESETS
from controlplane.lab.sweep.results import FIGURES
from controlplane.lab.sweep.run_cell import run_cell
from controlplane.lab.sweep.spec import Cell, SweepSpec, cells, load_sweep
from engine_hooks.engine.labels import PROGRAM
from engine_hooks.engine.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "admission_gradient"
PROGRAMS = 12


class Copy:
    """A copy of the repository with the example's policy added: one file, one line and its import."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignored = shutil.ignore_patterns("__pycache__", ".hypothesis")
        shutil.copytree(ROOT / "controlplane", folder / "controlplane", ignore=ignored)
        for room in ("property", "support"):
            shutil.copytree(ROOT / "tests" / room, folder / "tests" / room, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
        admission = folder / "controlplane" / "core" / "policies" / "admission"
        shutil.copy(EXAMPLE / "gradient.py", admission)
        registry = admission / "__init__.py"
        lines = registry.read_text().splitlines()
        last_import = max(
            n for n, line in enumerate(lines) if line.startswith("from controlplane.core.policies.admission.")
        )
        lines.insert(last_import + 1, "from controlplane.core.policies.admission.gradient import Gradient")
        lines.insert(lines.index("}"), '    "gradient": Gradient,')
        registry.write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        environment = os.environ | {"PYTHONPATH": str(self.folder), "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True
        )

    def penstock(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return self.run("-m", "controlplane", *arguments)

    def config(self, *lines: str) -> str:
        path = self.folder / "gradient.toml"
        path.write_text("\n".join(['preset = "mars"', "[admission]", 'policy = "gradient"', *lines]) + "\n")
        return str(path)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy(tmp_path_factory.mktemp("gradient"))


def test_property_tests_pick_the_policy_up(copy: Copy) -> None:
    done = copy.run(
        "-m", "pytest", "-p", "no:cacheprovider", "-v", "tests/property/test_policies.py", "-k", "radient"
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "test_admission[Gradient(" in done.stdout
    assert "test_a_policy_is_frozen_and_made_without_arguments[admission-gradient]" in done.stdout


def test_presets_list_it(copy: Copy) -> None:
    done = copy.run("-c", "import controlplane.core.policies.admission as a; print(a.__file__)")
    assert done.stdout.startswith(str(copy.folder)), done.stderr
    listing = json.loads(copy.penstock("presets", "--json").stdout)
    assert listing["policies"]["admission"] == [*ADMISSION, "gradient"]
    assert re.search(r"\[admission\] policy = .*\bgradient\b", copy.penstock("presets").stdout)


def test_configuration_knows_it_and_its_parameters(copy: Copy) -> None:
    good = copy.config("tolerance = 2.0")
    assert copy.penstock("config", "check", good).returncode == 0
    assert "tolerance = 2.0" in copy.penstock("config", "show", "--config", good).stdout
    refused = copy.penstock("config", "check", copy.config("smoothing = 2"))
    assert refused.returncode == 1
    assert "$.admission.smoothing: expected 0 < smoothing <= 1, got 2" in refused.stderr
    unknown = copy.penstock("config", "check", copy.config("tolerence = 2.0"))
    assert "$.admission.tolerence: unknown key; did you mean 'tolerance'?" in unknown.stderr
    assert "Traceback" not in refused.stderr + unknown.stderr


def test_the_simulator_runs_it(copy: Copy) -> None:
    log = copy.folder / "run.jsonl"
    done = copy.penstock(
        *("simulate", "synthetic:swe-bench", "--programs", str(PROGRAMS), "--pool-tokens", "40000"),
        *("--arrival", "poisson:0.5", "--preset", "mars", "--config", copy.config("window_initial = 2")),
        *("--record", str(log), "--json"),
    )
    assert done.returncode == 0, done.stderr
    (run,) = json.loads(done.stdout)
    assert (run["programs_ended"], run["programs_failed"]) == (PROGRAMS, 0)
    reasons = set(re.findall(r"as fast as it should be|gradient 0\.\d\d|programs do not fill it", log.read_text()))
    assert any("gradient" in reason for reason in reasons), "it never shrank"
    assert "as fast as it should be" in reasons, "it never grew"
    replayed = copy.penstock("log", "replay", str(log))
    assert replayed.returncode == 0, replayed.stdout


def test_the_page_shows_what_the_test_does() -> None:
    page = (EXAMPLE / "README.md").read_text()
    assert "from controlplane.core.policies.admission.gradient import Gradient" in page
    assert '"gradient": Gradient,' in page


def test_the_loop_by_hand_runs() -> None:
    script = ROOT / "examples" / "loop.sh"
    environment = os.environ | {"PENSTOCK": str(Path(sys.executable).with_name("penstock"))}
    done = subprocess.run(
        ["bash", str(script), "mars", "5"], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"programs ended\D+5\b", done.stdout)
    assert "the replay gave the same commands" in done.stdout


@pytest.mark.parametrize("pinned", [False, True])
def test_the_smallest_engine_reports_its_turns_and_keeps_what_is_pinned(
    pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "smallest_engine"))
    import engine
    import plugin

    scheduler = engine.Scheduler()
    attached = plugin.attach(scheduler, Settings(pin_budget_ratio=0.9))

    def turn(program: str, prompt: int) -> None:
        labels = {PROGRAM: program, "context": program}
        scheduler.add_request(engine.Request(f"{program}-{prompt}", labels, prompt, most=2))
        while scheduler.waiting or scheduler.running:
            scheduler.step()

    turn("ours", 300)
    if pinned:
        attached.on_command(cmd.Retain(command_id=1, program_id="ours", ttl_ns=seconds(600)))
    turn("others", 690)
    turn("theirs", 600)
    turn("ours", 350)
    events = [event for _, event in attached.emitter._queue]
    firsts = [each for each in events if isinstance(each, ev.FirstToken)]
    assert [each.program_id for each in firsts] == ["ours", "others", "theirs", "ours"]
    assert firsts[-1].cached_tokens == (302 if pinned else 0)
    kinds = [type(each) for each in events if isinstance(each, ev.TurnSubmitted | ev.TurnEnded)]
    assert kinds == [ev.TurnSubmitted, ev.TurnEnded] * 4
    assert sum(isinstance(each, ev.CommandApplied) for each in events) == pinned
    assert not attached._guard.failures


def run_corners(spec: SweepSpec) -> None:
    """Of few programs, a cell for each workload, each hardware and each preset."""
    drawn = tuple(each for each in spec.workload if "shared/traces" not in each.source)
    few = replace(spec, workload=tuple(replace(each, programs=3) for each in drawn), seeds=(1,))
    corners: dict[tuple[str, str], Cell] = {}
    for cell in cells(few):
        corners |= {(axis, getattr(cell, axis)): cell for axis in ("workload", "hardware", "preset")}
    for cell in {cell.digest: cell for cell in corners.values()}.values():
        figures = run_cell(few, cell)
        assert set(figures) == set(FIGURES), cell
        assert (figures["programs_ended"], figures["programs_failed"]) == (3, 0), cell
        assert figures["bound_jct_mean_s"] <= figures["jct_mean_s"], cell


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("all-presets", 100 * len(PRESETS)),
        ("any-mix", 36_450),
        ("any-mix-small", 1_440),
        ("held-out", 216),
        ("ablations", 540),
        ("placement", 80),
        ("fleet", 32),
        ("rollouts", 36),
    ],
)
def test_corners_of_a_sweep_run(name: str, runs: int) -> None:
    spec = load_sweep(ROOT / "examples" / "sweeps" / f"{name}.toml")
    if any("shared/traces" in each.source for each in spec.workload):  # those may not be here
        axes = (spec.workload, spec.hardware, spec.arrivals, spec.telemetries, spec.seeds, spec.names)
        assert math.prod(map(len, axes)) == runs
    else:
        assert sum(1 for _ in cells(spec)) == runs
    run_corners(spec)


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "studies").glob("*.toml")), ids=lambda path: path.stem)
def test_corners_of_each_papers_study_run(path: Path) -> None:
    run_corners(load_sweep(path))

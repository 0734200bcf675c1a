"""``make weight``: what whoever carries the project on has to hold: lines, words, tests, commands, options, keys.

Counts what git tracks, without generated code. CPU minutes are those of the latest run of each set of tests,
which ``tests/conftest.py`` notes in ``build/test-cpu``. ``--features``: the lines of each feature.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import typer
from generate_reference import commands

from controlplane.cli.app import app
from controlplane.config.model import Config
from controlplane.config.walk import tables

ROOT = Path(__file__).resolve().parents[1]
CPU = ROOT / "build" / "test-cpu"
_GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
FEATURES = """
mars, continuum, thunderagent, mori: mars pressure_aware opportunistic mlfq overload test_packing test_retention
  ontinuum retention/ttl ttl_first thunder admission/capacity shortest watermarks mori retention/tiers by_tier typed
concur, infercept, autellix: concur beyond_window least_waste plas attained baselines service_window
placement: placement placing replicas migration.toml adr/0018
host memory: host_tier host_copies sglang/moves sglang_moves prefetch lower_tiers moved_kv host-memory adr/0016
tenants: tenan fairness budgets ledger/accounts test_accounts gate_accounts adr/0057
sub-agents: subagents sub_agents /tree test_tree critical_path children delegation adr/0021
penstock: policies/ estimators room.py scheduling/demand queued_demand test_held test_forecast test_gaps test_lives
  test_room test_survival test_caps test_admission least_left overflow adr/0003 adr/0005 adr/0014 adr/0019 adr/0030
explain: journal decision_log decisions hold_reasons explain_ /explain. test_explain
regret: regret hindsight
what-if: whatif what_if what-if closed_loop
experiment: core/experiment daemon/experiment experiment_live switch
shadow: shadow low_priority adr/0054
page: api/page http_server timeline_view timelines test_page test_http test_watching
metrics, traces, alerts: instruments observe/metrics engine_metrics traces observe/telemetry test_telemetry grafana
  penstock.rules prometheus dashboard one_trace metrics_example monitoring alert
findings: status/health test_health doctor
a gate before any server: pluginless metrics_page checkup without-a-plugin outside upstream engine_api. engine_apis
  engine_turn watched_reply scheduler_check cli/gate front_ends request_ids gate/usage test_usage
llama.cpp: llamacpp
control API, commands: control. control_ operate/ cli/watch cli/ask completion grpc daemon/api/ daemon/status
recovery, replay: snapshot recovery. saving disk. test_disks frozen state_folder persisted set_aside recover
  wire/log log_replay cli/log event_log record-and-replay adr/0006
configuration: /config/ cli/config test_config reload reconfigure test_orders test_settings cli/change change-a
bus, rights, listeners: nats bus. bus_ daemon/bus roles. authorization event_socket socket_client frames. listener
  floods pacing model/steps
prompt sizes: sizing. gate/contexts gate/test_contexts bodies encodings prompt_size
replies: gate/repl reply_table test_replies ledger_replies tool_calls shell_commands
load shedding: shedding departures early_stream test_deadlines sim/deadlines waiting_clients
gate: gate/ open_gate held_turns adr/0010
SGLang: sglang
vLLM: vllm
both plugins: engine_hooks/engine guard. unit/engine_hooks tests/engine engine-hooks adr/0012 smallest_engine
MCP proxies: mcp
resources, environments: resource preparation environments. hygiene adr/0024 freez sandbox cgroups
tool slots: tool_slots slot_wait
adapters: engine_hooks/tools unit/tools tests/agents examples/agents attach-an-agent reporter agent_env
Kubernetes: kube in_cluster helm
fleet: fleet envoy ext_proc lease adr/0049 adr/0050 picker scale-on
budgets, A/B: bench/
sweeps: sweep examples/studies
reports: lab/compare unit/compare
calibration: calibrate hardware-profiles
double, load generator, demo: double demo lab/load unit/load replay
workloads: workload trace tools-and-the-host
simulator: lab/ unit/sim simulate engine-model
"""
_COUNTED = (".py", ".js", ".css", ".html", ".j2", ".proto", ".yaml", ".yml", ".toml", ".sh", ".md")
_ROOMS = {
    "product": (
        "cli",
        "config",
        "core",
        "daemon",
        "emit",
        "fleet",
        "gate",
        "operate",
        "tool_calls",
        "transport",
        "wire",
    ),
    "laboratory": ("lab",),
}


def tracked(*patterns: str) -> list[Path]:
    """The files under version control that fit one of the patterns."""
    listed = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


def lines(folder: str) -> tuple[int, int]:
    """Files of Python below a folder, and their lines."""
    files = [path for path in tracked(f"{folder}/**.py") if not _GENERATED.search(path.name)]
    return len(files), sum(path.read_text().count("\n") for path in files)


def words(*patterns: str) -> tuple[int, int]:
    """Files of Markdown, and their words."""
    files = tracked(*patterns)
    return len(files), sum(len(path.read_text().split()) for path in files)


def loose(folder: str) -> int:
    """Modules that stand in no room of that folder."""
    return len([path for path in tracked(f"{folder}/*.py") if path.parent == ROOT / folder]) - 1


def cpu_minutes() -> str:
    """Tests, and the CPU minutes that they took when they last ran."""
    runs = [json.loads(path.read_text()) for path in sorted(CPU.glob("*.json"))]
    if not runs:
        return "not known: `make test` notes it"
    return f"{sum(run['tests'] for run in runs):,} tests, {sum(run['cpu_s'] for run in runs) / 60:.0f} CPU minutes"


def rows() -> Iterator[tuple[str, str]]:
    """What is counted, and the count."""
    for name, rooms in _ROOMS.items():
        yield name, f"{sum(lines(f'controlplane/{room}')[1] for room in rooms):,} lines"
        for room in rooms:
            files, count = lines(f"controlplane/{room}")
            yield f"  {room}", f"{count:,} lines, {files} files"
    for folder in ("engine_hooks", "scripts", "bench", "tests"):
        files, count = lines(folder)
        yield folder, f"{count:,} lines, {files} files"
    yield "tests as run", cpu_minutes()
    yield "loose files", f"core {loose('controlplane/core')}, daemon {loose('controlplane/daemon')}"
    pages, count = words("*.md")
    yield "documents", f"{count:,} words, {pages} pages"
    for folder in ("docs/adr", "docs/explanation", "docs/how-to", "docs/reference", "docs/tutorial"):
        pages, count = words(f"{folder}/*.md")
        yield f"  {folder}", f"{count:,} words, {pages} pages"
    all_commands = dict(commands(typer.main.get_command(app), "penstock"))
    options = [each for each in all_commands["penstock simulate"].params if "--help" not in each.opts]
    keys = sum(1 for table in tables(Config()) for _ in table.items())
    targets = re.findall(r"^[a-z-]+:.*##", (ROOT / "Makefile").read_text(), re.M)
    yield "commands", f"{len(all_commands)}; options of simulate {len(options)}; configuration keys {keys}"
    yield "make targets", f"{len(targets)} in its help"


def features() -> Iterator[str]:
    """Lines of code, tests and documents by feature: a file is the first one's that has a word of its path."""
    words_of = {name: words.split() for name, words in re.findall(r"^(\S[^:]*):((?:.|\n  )*)", FEATURES, re.M)}
    counts = {name: [0, 0, 0] for name in (*words_of, "what all share")}
    for path in tracked("*"):
        name = str(path.relative_to(ROOT)).removeprefix("controlplane")
        if path.suffix in _COUNTED and not _GENERATED.search(name):
            feature = next((each for each, words in words_of.items() if any(word in name for word in words)), "")
            kind = 1 if name.startswith("tests/") else 2 if path.suffix == ".md" else 0
            counts[feature or "what all share"][kind] += path.read_text().count("\n")
    for name, (code, tests, docs) in counts.items():
        yield f"{name:40} {code:6,} code {tests:6,} tests {docs:5,} documents"


if __name__ == "__main__":
    for line in features() if "--features" in sys.argv else (f"{label:20} {value}" for label, value in rows()):
        print(line)  # noqa: T201 - what a command prints

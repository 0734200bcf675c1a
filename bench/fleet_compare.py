"""Several engines behind one Envoy: its own ways to spread programs against Penstock's fleet, live and simulated.

    python bench/fleet_compare.py [--churn] [--ways "round robin,Penstock's fleet"] [--json FILE]
    python bench/fleet_compare.py --simulate-only --seeds 1,2,3,4,5,6,7,8 [--churn]

Three engine doubles, one Envoy, agents of five kinds whose sizes differ much (``synthetic:five-kinds``), the same
arrivals for each way: Envoy's round robin, least request and consistent hash of the session, and Penstock's fleet
(NATS, a fleet daemon as Envoy's endpoint picker). With ``--churn`` the second engine is killed at a third of the
arrivals and is back at two thirds, with an empty memory; clients ask again for a turn whose answer broke off.
Beside each live row stands the simulator's prediction: the same trace, arrivals, engines and changes, and clients
that tell as little of themselves. Where a turn went is read from Envoy's access log. Times are trace time, of which
``--time-scale`` seconds pass in one: what Envoy and the fleet daemon take counts that much, so a machine that has
other work needs a small one.
"""

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whichever one is installed
sys.path.insert(0, str(Path(__file__).resolve().parent))

from fleet_ways.envoys import POLICIES, Moves, own_way, read_moves, with_log
from fleet_ways.processes import Started, answers, penstock, until

from controlplane.core.presets import DEFAULT, PRESETS
from controlplane.fleet.envoy import DataPlane, binary, bootstrap, write_endpoints
from controlplane.fleet.roster import Engine
from controlplane.lab.compare.markdown import table
from controlplane.lab.experiment import Experiment, Hardware, Workload
from controlplane.lab.load.client import RetryRule
from controlplane.lab.load.options import ReplayOptions
from controlplane.lab.load.replay import replay
from controlplane.lab.simulate import simulate, trace_of
from controlplane.lab.workload.arrivals import Poisson
from controlplane.lab.workload.run import RunResult
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.shell.nats_server import binary as nats_binary
from controlplane.shell.ports import free_ports

FLEET = "Penstock's fleet"
WAYS = (*POLICIES, FLEET)
SIMULATED = {"round robin": "round_robin", "least request": "least_loaded", "hash by session": "hash", FLEET: ""}
ONLY_SIMULATED = {"prefix affinity": "prefix"}  # Envoy has no such way
TRACE = "synthetic:five-kinds"
ENGINES = 3
VICTIM = 1
TOKENS_PER_WORD = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line says."""

    programs: int
    rate: float
    seed: int
    pool_tokens: int
    time_scale: float
    churn: bool
    telemetry: Telemetry = Telemetry.NONE  # of the simulated clients; what replays live tells a program's id only

    @property
    def workload(self) -> Workload:
        most = int(self.pool_tokens * 0.9)
        return Workload(trace=TRACE, programs=self.programs, max_context=most, telemetry=self.telemetry)

    @property
    def dies_s(self) -> float:
        """In trace time."""
        return self.programs / self.rate / 3

    @property
    def returns_s(self) -> float:
        return 2 * self.dies_s

    def hardware(self, routing: str) -> Hardware:
        changes = (
            (f"die:{VICTIM + 1}:{self.dies_s:g}", f"join:{VICTIM + 1}:{self.returns_s:g}") if self.churn else ()
        )
        return Hardware(
            pool_tokens=self.pool_tokens, replicas=ENGINES, routing=routing, link_gb_per_s=0, changes=changes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way, live or simulated."""

    way: str
    where: str
    jct_mean_s: float
    jct_p95_s: float
    ttft_p95_s: float
    hold_mean_s: float  # of a program, over its turns
    hit_ratio: float
    moved_ratio: float
    busiest_ratio: float
    failed: float
    cut: float

    @classmethod
    def live(cls, way: str, run: RunResult, moves: Moves) -> "Row":
        return cls._of(way, "live", run, moved=moves.ratio, busiest=moves.busiest, cut=moves.cut)

    @classmethod
    def simulated(cls, way: str, run: RunResult) -> "Row":
        found = run.summary
        moved = found.routed_migrate + found.routed_reprefill
        later = moved + found.routed_stay
        ratio = moved / later if later else 0.0
        return cls._of(way, "simulated", run, moved=ratio, busiest=found.routed_busiest_ratio, cut=found.turns_cut)

    @classmethod
    def _of(cls, way: str, where: str, run: RunResult, *, moved: float, busiest: float, cut: float) -> "Row":
        found = run.summary
        return cls(
            way=way,
            where=where,
            jct_mean_s=found.jct_mean_s,
            jct_p95_s=found.jct_p95_s,
            ttft_p95_s=found.ttft_p95_s,
            hold_mean_s=found.hold_mean_s,
            hit_ratio=found.cache_hit_ratio,
            moved_ratio=moved,
            busiest_ratio=busiest,
            failed=found.programs_failed,
            cut=cut,
        )


# -- live --------------------------------------------------------------------------------------------------


def run_live(way: str, asked: Asked, keep: Path | None) -> Row:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-fleet-")))
        if keep is not None:
            stack.callback(shutil.copytree, folder, keep / way.replace(" ", "-"), dirs_exist_ok=True)
        ports = free_ports(ENGINES + 1)
        engines, listen, log = ports[:ENGINES], ports[ENGINES], folder / "access.log"
        bus = stack.enter_context(_nats(folder)) if way == FLEET else ""
        doubles = [
            stack.enter_context(_double(port, number, bus, asked, folder)) for number, port in enumerate(engines)
        ]
        if way == FLEET:
            config = with_log(stack.enter_context(_fleet(listen, engines, bus, asked, folder)), log)
        else:
            config = own_way(way, listen, engines, log)
        path = folder / "envoy.json"
        path.write_text(config)
        command = [str(binary()), "-c", str(path), "--disable-hot-restart", "--concurrency", "1", "-l", "warning"]
        envoy = stack.enter_context(Started(command, folder / "envoy.log"))
        url = f"http://127.0.0.1:{listen}"
        try:
            until(lambda: answers(f"{url}/v1/models"), "Envoy serves")
            if way == FLEET:
                until(lambda: '"serving"' in (folder / "fleet.log").read_text(), "the fleet leads")
                time.sleep(3)  # until Envoy has asked for its health
        except TimeoutError as error:
            logs = "\n".join(each.read_text(errors="replace")[-2000:] for each in folder.glob("*.log"))
            raise TimeoutError(f"{error}\n{envoy.last_words()}\n{logs}") from None
        if asked.churn:
            stack.enter_context(_churn(doubles[VICTIM], asked))
        run = replay(
            ReplayOptions(
                trace=trace_of(asked.workload),
                workload=asked.workload,
                url=url,
                arrival=Poisson(asked.rate),
                label=way,
                preset=way,
                seed=asked.seed,
                tokens_per_word=TOKENS_PER_WORD,
                time_scale=asked.time_scale,
                retry=RetryRule(after_cut=5),
            )
        )
        envoy.stop()  # its log is whole then
        return Row.live(way, run, read_moves(log))


def _double(port: int, number: int, bus: str, asked: Asked, folder: Path) -> Started:
    command = penstock(
        *("engine-double", "--port", str(port), "--pool-tokens", str(asked.pool_tokens), "--node", f"n{number}"),
        *("--tokens-per-word", str(TOKENS_PER_WORD), "--time-scale", f"{asked.time_scale:g}"),
        *(("--nats", bus) if bus else ("--no-bus",)),
    )
    double = Started(command, folder / f"double-{number}.log")
    until(lambda: answers(f"http://127.0.0.1:{port}/health"), f"double {number} serves: {double.last_words()}")
    return double


@contextmanager
def _nats(folder: Path) -> Iterator[str]:
    port = free_ports(1)[0]
    command = [str(nats_binary()), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(folder / "nats")]
    with Started(command, folder / "nats.log") as server:
        until(lambda: "Server is ready" in server.log.read_text(errors="replace"), "nats-server listens")
        yield f"nats://127.0.0.1:{port}"


@contextmanager
def _fleet(listen: int, engines: Sequence[int], bus: str, asked: Asked, folder: Path) -> Iterator[str]:
    """A fleet daemon; yields Envoy's configuration."""
    picker, endpoints = free_ports(1)[0], folder / "eds.json"
    roster = [Engine(place=f"n{number}/engine", address=f"127.0.0.1:{port}") for number, port in enumerate(engines)]
    write_endpoints(endpoints, roster)
    named = [flag for engine in roster for flag in ("--engine", f"{engine.place}={engine.address}")]
    command = penstock(
        *("fleet", "up", "--nats", bus, "--listen", f"127.0.0.1:{picker}", "--endpoints", str(endpoints)),
        *("--time-scale", f"{asked.time_scale:g}", "--state-dir", str(folder / "fleet"), "--http", "off", *named),
    )
    with Started(command, folder / "fleet.log"):
        plane = DataPlane(pickers=(f"127.0.0.1:{picker}",), endpoints=endpoints, listen=f"127.0.0.1:{listen}")
        yield bootstrap(plane)


@contextmanager
def _churn(victim: Started, asked: Asked) -> Iterator[None]:
    over = threading.Event()

    def kill_and_start() -> None:
        began_s = time.monotonic()
        for at_s, do in ((asked.dies_s, victim.kill), (asked.returns_s, victim.start)):
            if over.wait(max(0.0, began_s + at_s / asked.time_scale - time.monotonic())):
                return
            do()

    thread = threading.Thread(target=kill_and_start, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# -- simulated ---------------------------------------------------------------------------------------------


def run_simulated(way: str, asked: Asked) -> Row:
    routing = {**SIMULATED, **ONLY_SIMULATED}[way]
    stock = PRESETS["fcfs"]
    preset = stock
    if way == FLEET:  # it admits and places; what an engine keeps, and in which order it works, is the engine's own
        preset = replace(PRESETS[DEFAULT], retention=stock.retention, memory=stock.memory, priority=stock.priority)
    experiment = Experiment(
        workload=asked.workload,
        arrival=Poisson(asked.rate),
        preset=preset,
        hardware=asked.hardware(routing),
        seed=asked.seed,
    )
    return Row.simulated(way, simulate(experiment))


def mean(rows: Sequence[Row]) -> Row:
    """Of the same way with several seeds."""
    names = [name for name in Row.__dataclass_fields__ if name not in ("way", "where")]
    return replace(rows[0], **{name: fmean(getattr(row, name) for row in rows) for name in names})


def show(rows: Sequence[Row]) -> str:
    lines = [
        [
            row.way,
            row.where,
            f"{row.jct_mean_s:.1f}",
            f"{row.jct_p95_s:.1f}",
            f"{row.ttft_p95_s:.1f}",
            f"{row.hold_mean_s:.1f}",
            f"{row.hit_ratio:.1%}",
            f"{row.moved_ratio:.1%}",
            f"{row.busiest_ratio:.0%}",
            f"{row.failed:g}",
            f"{row.cut:g}",
        ]
        for row in rows
    ]
    head = (
        "way",
        "",
        "JCT mean s",
        "p95 s",
        "TTFT p95 s",
        "hold s",
        "hit rate",
        "moved",
        "busiest",
        "failed",
        "cut",
    )
    return "\n".join(table(head, lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=36)
    parser.add_argument("--rate", type=float, default=0.2, help="arrivals a second of trace time")
    parser.add_argument("--seeds", default="1", help="of the arrivals; of several the simulated rows are means")
    parser.add_argument("--pool-tokens", type=int, default=128_000, help="of each engine")
    parser.add_argument("--time-scale", type=float, default=10.0)
    parser.add_argument("--churn", action="store_true", help="one engine is killed, and comes back")
    parser.add_argument(
        "--telemetry",
        type=Telemetry,
        choices=list(Telemetry),
        default=Telemetry.NONE,
        help="what the simulated clients tell; live they tell their program's id and nothing else",
    )
    parser.add_argument("--ways", default=",".join(WAYS), help="which, live")
    parser.add_argument("--simulate-only", action="store_true")
    parser.add_argument("--keep", type=Path, help="copy the runs' logs there")
    parser.add_argument("--json", type=Path, help="append the rows there, one a line")
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    asked = Asked(
        programs=given.programs,
        rate=given.rate,
        seed=seeds[0],
        pool_tokens=given.pool_tokens,
        time_scale=given.time_scale,
        churn=given.churn,
        telemetry=given.telemetry,
    )
    rows: list[Row] = []
    for way in () if given.simulate_only else [name.strip() for name in given.ways.split(",")]:
        rows += [run_live(way, asked, given.keep), run_simulated(way, asked)]
        print(show(rows[-2:]), file=sys.stderr)
    several = [replace(asked, seed=seed) for seed in seeds]
    for way in (*(WAYS if given.simulate_only else ()), *ONLY_SIMULATED):
        rows.append(mean([run_simulated(way, one) for one in several]))
    print(show(rows))
    if given.json:
        with given.json.open("a") as out:
            for row in rows:
                facts = {name: getattr(asked, name) for name in asked.__dataclass_fields__}
                told = {name: getattr(row, name) for name in row.__dataclass_fields__}
                out.write(json.dumps({**facts, **told}) + "\n")


if __name__ == "__main__":
    main()

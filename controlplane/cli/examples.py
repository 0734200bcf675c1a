"""Two examples of each command, which its help ends with. A test reads each as a shell would."""

EXAMPLES: dict[str, tuple[str, str]] = {
    "up": ("penstock up --preset penstock", "penstock up --node gpu7 --config penstock.toml"),
    "doctor": ("penstock doctor", "penstock doctor --engine http://127.0.0.1:30000"),
    "top": ("penstock top", "penstock top --fleet"),
    "status": ("penstock status", "penstock status --wait 60 --json"),
    "engines": ("penstock engines", "penstock engines --fleet --limit 20"),
    "tenants": ("penstock tenants", "penstock tenants --json"),
    "programs": ("penstock programs --contains swe", "penstock programs --ended --json"),
    "queue": ("penstock queue", "penstock queue --limit 10"),
    "decisions": ("penstock decisions", "penstock decisions PROGRAM --json"),
    "explain": ("penstock explain PROGRAM --last 5", "penstock explain PROGRAM --node fleet --node gpu7"),
    "misses": ("penstock misses", "penstock misses --by client"),
    "gain": ("penstock gain", "penstock gain --node gpu7 --json"),
    "regret": ("penstock regret --by cause", "penstock regret run.jsonl --hindsight"),
    "set-preset": ("penstock set-preset continuum", "penstock set-preset fcfs --node gpu7"),
    "promote": ("penstock promote", "penstock promote --yes --json"),
    "reload": ("penstock reload", "penstock reload --api 10.0.0.1:9469"),
    "hold": ("penstock hold PROGRAM", "penstock hold PROGRAM --node gpu7"),
    "release": ("penstock release PROGRAM", "penstock release PROGRAM --json"),
    "gate": (
        "penstock gate --upstream http://127.0.0.1:8000",
        "penstock gate --upstream http://127.0.0.1:11434 --listen 0.0.0.0:8080 --pool-tokens 32768",
    ),
    "drain": ("penstock drain", "penstock drain --undo"),
    "demo": ("penstock demo", "penstock demo --programs 10 --rate 0.2 --out runs/demo"),
    "simulate": (
        "penstock simulate synthetic:swe-bench --preset fcfs --preset penstock --programs 50",
        "penstock simulate mine.jsonl --arrival load:0.8 --seed 1 --seed 2 --out runs/mine",
    ),
    "what-if": (
        "penstock what-if run.jsonl --preset continuum",
        "penstock what-if run.jsonl --agents 2x --engines +1",
    ),
    "capacity": (
        "penstock capacity mine.jsonl --profile h100-gpt-oss-120b",
        "penstock capacity --ttft 10 --host-gb 0 --host-gb 512 --out runs/capacity",
    ),
    "sweep": ("penstock sweep --example > sweep.toml", "penstock sweep sweep.toml --jobs 8"),
    "sweep-report": ("penstock sweep-report sweep.csv", "penstock sweep-report sweep.csv --markdown"),
    "replay": (
        "penstock replay synthetic:swe-bench --programs 20 --arrival poisson:0.5",
        "penstock replay mine.jsonl --url http://127.0.0.1:8000 --no-bus",
    ),
    "engine-double": ("penstock engine-double", "penstock engine-double --port 0 --pool-tokens 100000"),
    "report": ("penstock report runs/demo/*.json", "penstock report one.json two.json --out two.html"),
    "presets": ("penstock presets", "penstock presets --fleet --json"),
    "calibrate": (
        "penstock calibrate http://127.0.0.1:30000",
        "penstock calibrate http://127.0.0.1:30000 --out h200.json --repetitions 9",
    ),
    "bus config": (
        "penstock bus config --node gpu7 --url nats://bus.example:4222",
        "penstock bus config --node gpu7 --node gpu8 --url tls://bus.example:4222 --folder /etc/penstock/bus",
    ),
    "bus url": ("penstock bus url --role engine", "penstock bus url --role reader --node gpu7"),
    "fleet up": (
        "penstock fleet up --nats nats://bus.example:4222 --rank 0",
        "penstock fleet up --config fleet.toml --engine gpu7/engine-30000=10.0.0.7:30000",
    ),
    "fleet drain": (
        "penstock fleet drain --nats nats://bus.example:4222",
        "penstock fleet drain --nats nats://bus.example:4222 --name west",
    ),
    "fleet engines list": (
        "penstock fleet engines list --nats nats://bus.example:4222",
        "penstock fleet engines list --nats nats://bus.example:4222 --json",
    ),
    "fleet engines add": (
        "penstock fleet engines add gpu7/engine-30000 10.0.0.7:30000 --nats nats://bus.example:4222",
        "penstock fleet engines add gpu8/engine-8000 10.0.0.8:8000 --plain --nats nats://bus.example:4222",
    ),
    "fleet engines drain": (
        "penstock fleet engines drain gpu7/engine-30000 --nats nats://bus.example:4222",
        "penstock fleet engines drain gpu7/engine-30000 --name west --nats nats://bus.example:4222",
    ),
    "fleet engines remove": (
        "penstock fleet engines remove gpu7/engine-30000 --nats nats://bus.example:4222",
        "penstock fleet engines remove gpu7/engine-30000 --name west --nats nats://bus.example:4222",
    ),
    "fleet envoy-config": (
        "penstock fleet envoy-config --picker 10.0.0.1:9468 --out envoy.yaml",
        "penstock fleet envoy-config --picker 10.0.0.1:9468 --picker 10.0.0.2:9468 --listen 0.0.0.0:8080",
    ),
    "fleet demo": ("penstock fleet demo", "penstock fleet demo --kill-every 10 --seconds 120"),
    "config check": ("penstock config check penstock.toml", "penstock config check /etc/penstock/gpu7.toml"),
    "config show": ("penstock config show --running", "penstock config show --preset mars --comments"),
    "config template": (
        "penstock config template > penstock.toml",
        "penstock config template --preset continuum > penstock.toml",
    ),
    "config diff": ("penstock config diff penstock.toml", "penstock config diff old.toml new.toml --json"),
    "deploy export": (
        "penstock deploy export deploy",
        "penstock deploy export /usr/local/share/penstock",
    ),
    "trace import": (
        "penstock trace import ~/.claude/projects --out mine.jsonl",
        "penstock trace import rollout.jsonl run.traj --out mine.jsonl.gz",
    ),
    "tools fit": ("penstock tools fit mine.jsonl", "penstock tools fit synthetic:swe-bench --out tools.json"),
    "tools show": ("penstock tools show tools.json", "penstock tools show tools.json --json"),
    "log replay": ("penstock log replay run.jsonl", "penstock log replay run.jsonl.gz"),
    "log show": ("penstock log show run.jsonl", "penstock log show run.jsonl.gz | head"),
}


def epilog(command: str) -> str:
    """The end of that command's help, in Markdown; empty for one that has no example."""
    found = EXAMPLES.get(command, ())
    return "\n".join(["Examples:", "", *(f"- `{line}`" for line in found)]) if found else ""

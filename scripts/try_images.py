"""Build the images and start them for real: alone, by the compose file, and as the pod that the chart makes.

    sudo .venv/bin/python scripts/try_images.py [--folder FOLDER]

Needs root, debootstrap and podman with crun, netavark and aardvark-dns (all Debian's), podman-compose (PyPI's),
3 GB and ten minutes. It asks no registry: a Debian with its own Python stands in for the base image, the engine
double for SGLang, programs of this machine for NATS and Prometheus. The folder is kept: it is a store of images.
Where control groups are hybrid crun refuses; run it in `unshare -m` after `umount /sys/fs/cgroup/unified`.
"""

import argparse
import ast
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import yaml
from debian_tools import find
from try_units import ROOT, note, run, wait

DEPLOY = ROOT / "deploy"
DAEMON, ENGINE = "penstock:0.1.0", "sglang-penstock:v0.5.23"
BASE = "docker.io/library/python:3.12-slim"
PACKAGES = "busybox,ca-certificates,python3-pip,python-is-python3"
STAND_INS = {
    "docker.io/library/nats:2.14-alpine": """COPY nats-server /bin/
RUN ln -s /bin/busybox /bin/wget
ENTRYPOINT ["nats-server"]""",
    "docker.io/prom/prometheus:v3.2.1": """COPY prometheus /bin/
RUN mkdir /prometheus && chown 65534:65534 /prometheus
USER 65534
ENTRYPOINT ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]""",
    "docker.io/lmsysorg/sglang:double": """
RUN pip install anyio httptools jinja2 matplotlib numpy rich starlette structlog typer uvicorn
COPY launch_server.py /sglang/sglang/
ENV PYTHONPATH=/sglang""",
}
LAUNCH = """import argparse, os
parser = argparse.ArgumentParser()
for each in ("--model-path", "--host", "--port"):
    parser.add_argument(each, required=True)
told = parser.parse_args()
os.execvp("penstock", ["penstock", "engine-double", "--host", told.host, "--port", told.port])
"""
TURN = b'{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}'


def podman(*words: str | Path) -> str:
    return run("podman", *words).strip()


def own_store(folder: Path) -> None:
    """Nothing of the machine's own images is touched; a limit that this script has not is not asked for."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    storage, containers = folder / "storage.conf", folder / "containers.conf"
    storage.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/store"\nrunroot = "{folder}/run"\n')
    containers.write_text(
        f'[containers]\ndefault_ulimits = ["nofile={files}:{files}", "nproc=4096:4096"]\n'
        '[network]\nnetwork_backend = "netavark"\n'
    )
    os.environ |= {"CONTAINERS_STORAGE_CONF": str(storage), "CONTAINERS_CONF": str(containers), "MODEL": "m"}


def pip_mounts(folder: Path) -> list[str]:
    """What lets pip ask the same index within a build as here."""
    lines = run(sys.executable, "-m", "pip", "config", "list").splitlines()
    told = {key.rpartition(".")[2]: ast.literal_eval(value) for key, _, value in (s.partition("=") for s in lines)}
    path = folder / "pip.conf"
    path.write_text("[global]\n" + "".join(f"{key} = {' '.join(value.split())}\n" for key, value in told.items()))
    named = [Path(word.removeprefix("file://")) for value in told.values() for word in value.split()]
    folders = {each.parent for each in named if each.is_absolute() and each.exists()}
    return [f"-v={path}:/etc/pip.conf:ro", *(f"-v={each}:{each}:ro" for each in sorted(folders))]


def build(folder: Path) -> None:
    """The base once, what stands in for others, and both files of deploy/container as they are."""
    if not podman("images", "-q", BASE):
        note("installing Debian as the base image")
        with tempfile.TemporaryDirectory(dir=folder) as debian:
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", debian)
            for mark in Path(debian).glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
                mark.unlink()
            run("tar", "-C", debian, "-cf", folder / "base.tar", ".")
        podman("import", folder / "base.tar", BASE)
    mounts, context = pip_mounts(folder), folder / "context"
    context.mkdir(exist_ok=True)
    (context / "launch_server.py").write_text(LAUNCH)
    for program in ("nats-server", "prometheus"):
        shutil.copy(str(find(program)), context)
    for image, lines in STAND_INS.items():
        (context / "Containerfile").write_text(f"FROM {BASE}\n{lines}\n")
        podman("build", "-q", *mounts, "-t", image, context)
    for image, file in ((DAEMON, "Containerfile"), (ENGINE, "Containerfile.sglang")):
        note(f"building {image}")
        flags = ("--format=docker", "--build-arg=SGLANG=double", *mounts)
        podman("build", "-q", *flags, "-f", DEPLOY / "container" / file, "-t", image, ROOT)


def fetch(url: str, body: bytes | None = None) -> str:
    """What is there; empty while nothing is."""
    headers = {"content-type": "application/json", "x-session-id": "tried"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=20) as reply:
            return str(reply.read().decode())
    except OSError:
        return ""


def says(container: str, command: str, what: str) -> Callable[[], bool]:
    """Whether a command in it prints that."""
    return lambda: what in podman("exec", container, "sh", "-c", f"{command} 2>&1 || true")


def address(container: str) -> str:
    networks = json.loads(podman("inspect", container))[0]["NetworkSettings"]["Networks"]
    return str(next(iter(networks.values()))["IPAddress"])


def alone() -> None:
    """The daemon with a bus of its own: served, asked to end, killed."""
    podman("run", "-d", "--name=tried", "-v=tried:/var/lib/penstock", "-p=127.0.0.1::9467", DAEMON)
    page = f"http://{podman('port', 'tried', '9467/tcp')}"
    wait(lambda: "<title>" in fetch(page), "page")
    wait(lambda: "penstock_programs" in fetch(f"{page}/metrics"), "metrics")
    podman("healthcheck", "run", "tried")
    note(podman("exec", "tried", "id") + "\n" + podman("exec", "tried", "penstock", "drain"))
    for how in (("stop", "-t=10"), ("kill", "-s=KILL")):
        began_s = time.monotonic()
        podman(*how, "tried")
        if how[0] == "stop" and (time.monotonic() - began_s > 10 or podman("wait", "tried") != "0"):
            raise SystemExit("it did not stop well")
        podman("start", "tried")
        wait(says("tried", "penstock status", "draining"), "state that was kept")
        note(f"back after podman {' '.join(how)}, with what it knew")
    podman("rm", "-f", "-v", "tried")
    podman("volume", "rm", "tried")


def takes_a_turn(engine: str, daemon: str) -> None:
    """The engine's gate and the daemon have found each other over the bus, each as its own user."""
    wait(says(daemon, "penstock engines", "serving"), "engine that the daemon knows")
    wait(lambda: "choices" in fetch(f"http://{engine}:30000/v1/chat/completions", TURN), "reply")
    wait(says(daemon, "penstock programs", "tried"), "program that the daemon knows")
    note(podman("exec", daemon, "penstock", "programs"))


def compose(folder: Path) -> None:
    """All services but Grafana, in a copy of the folder, without a GPU and without ports of this machine."""
    deploy, services = folder / "deploy", ("nats", "penstock", "sglang", "prometheus")
    shutil.rmtree(deploy, ignore_errors=True)
    shutil.copytree(DEPLOY, deploy, ignore=shutil.ignore_patterns("*.env", "roles.conf"))
    (folder / "controlplane").unlink(missing_ok=True)
    (folder / "controlplane").symlink_to(ROOT / "controlplane")  # where the file has rules and dashboard from
    users = "bus config --node local --url nats://nats:4222 --folder /bus"
    note(podman("run", "--rm", "-u=0", f"-v={deploy}/compose/bus:/bus", DAEMON, *users.split()))
    file = deploy / "compose" / "compose.yaml"
    composed = yaml.safe_load(file.read_text())
    for service in composed["services"].values():
        service.pop("ports", None)
        service.pop("deploy", None)
    file.write_text(yaml.safe_dump(composed))
    command = (str(find("podman-compose")), "-f", file)
    health = composed["services"]["nats"]["healthcheck"]
    run(*command, "up", "-d", "nats")
    wait(says("penstock_nats_1", " ".join(health["test"][1:]), '"ok"'), "bus")  # older podmans do not wait for it
    run(*command, "up", "-d", *services)
    daemon, prometheus = "penstock_penstock_1", f"http://{address('penstock_prometheus_1')}:9090/api/v1"
    takes_a_turn(address("penstock_sglang_1"), daemon)
    wait(lambda: '"health":"up"' in fetch(f"{prometheus}/targets"), "target that is up")
    wait(lambda: "PenstockDaemonDown" in fetch(f"{prometheus}/rules"), "alert rules")
    config = deploy / "compose" / "penstock" / "penstock.toml"
    config.write_text(config.read_text().replace('"penstock"', '"continuum"'))
    wait(says(daemon, "penstock status", "preset continuum"), "configuration that was edited")
    away = says(daemon, "penstock status", "bus away")
    podman("stop", "-t=5", "penstock_nats_1")
    wait(away, "word of a bus that is away")
    podman("start", "penstock_nats_1")
    wait(lambda: not away(), "bus that came back")
    run(*command, "down", "-v")
    note("compose: metrics and rules read, configuration edited, bus gone and back")


def chart(folder: Path) -> None:
    """The pod of the StatefulSet with its config map and its claim, on a volume as ``fsGroup`` leaves it."""
    made = run(str(find("helm")), "template", "gpu", DEPLOY / "helm" / "penstock")
    documents = {document["kind"]: document for document in yaml.safe_load_all(made) if document}
    spec = documents["StatefulSet"]["spec"]["template"]["spec"]
    spec["volumes"].append({"name": "state", "persistentVolumeClaim": {"claimName": "state-gpu-0"}})
    for port in (port for container in spec["containers"] for port in container["ports"]):
        port["hostIP"] = "127.0.94.67"  # older podmans publish every port: not where one may be in use
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpu-0"}, "spec": spec}
    (folder / "pod.yaml").write_text(yaml.safe_dump_all([documents["ConfigMap"], pod]))
    podman("volume", "create", "state-gpu-0")
    podman("run", "--rm", "-v=state-gpu-0:/state", BASE, "true")  # podman gives it an owner once
    state = Path(podman("volume", "inspect", "state-gpu-0", "--format={{.Mountpoint}}"))
    os.chown(state, 0, spec["securityContext"]["fsGroup"])
    state.chmod(0o2775)
    podman("kube", "play", folder / "pod.yaml")
    engine = address(podman("pod", "inspect", "gpu-0", "--format={{.InfraContainerID}}"))
    takes_a_turn(engine, "gpu-0-penstock")
    wait(lambda: "ok" in fetch(f"http://{engine}:9467/healthz"), "health")
    podman("kube", "down", folder / "pod.yaml")
    podman("volume", "rm", "-f", "state-gpu-0", "gpu")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "penstock-images")
    folder = parser.parse_args().folder
    wanted = ("debootstrap", "podman", "podman-compose", "helm", "nats-server", "prometheus")
    missing = [tool for tool in wanted if find(tool) is None]
    if missing or os.geteuid() != 0:
        raise SystemExit(f"needs root, and {' and '.join(missing) or 'nothing else'}")
    folder.mkdir(exist_ok=True)
    own_store(folder)
    for left in ("rm -fi tried", "pod rm -fi gpu-0", "volume rm -f tried gpu state-gpu-0"):
        subprocess.run(["podman", *left.split()], capture_output=True, check=False)  # by a run that failed
    build(folder)
    alone()
    compose(folder)
    chart(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

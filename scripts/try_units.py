"""Start the systemd units for real, in a Debian of their own, and do to them what happens to services.

    sudo .venv/bin/python scripts/try_units.py [--folder FOLDER]

Needs root, debootstrap and systemd-nspawn (Debian: apt install debootstrap systemd-container), 600 MB, two minutes.
The folder is made once and kept; each run installs this checkout into it. It tells what it tried, and ends at what
fails.
"""

import argparse
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import trustme

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = "systemd,systemd-sysv,dbus,procps,python3,python3-venv"
UNIT = "penstock@gpu7"
TLS = "etc/penstock/tls"
BUS = """PENSTOCK_NATS_CA=/etc/penstock/tls/ca.pem
PENSTOCK_NATS_CERTIFICATE=/etc/penstock/tls/client.pem
PENSTOCK_NATS_PRIVATE_KEY=/etc/penstock/tls/client-key.pem
"""


def run(*words: str | Path) -> str:
    """What it printed; a failure ends the script with that."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def note(text: str) -> None:
    print(text, flush=True)  # noqa: T201


class Machine:
    """A Debian in ``folder``, booted by systemd-nspawn."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._first: int = 0

    def make(self) -> None:
        """Install Debian, once, and this checkout as docs/how-to/deploy.md says."""
        if not (self.folder / "etc").exists():
            note("installing Debian")
            run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", self.folder)
            (self.folder / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
            for user in ("penstock", "nats"):
                run("chroot", self.folder, "useradd", "--system", user)
        note("installing penstock")
        with tempfile.TemporaryDirectory() as wheels:
            run(sys.executable, "-m", "pip", "wheel", "-q", f"{ROOT}[daemon,nkeys]", "-w", wheels)
            shutil.copytree(wheels, self.folder / "wheels", dirs_exist_ok=True)
        run("chroot", self.folder, "python3", "-m", "venv", "/opt/penstock")
        install = ("/opt/penstock/bin/pip", "install", "-q", "--no-index", "--find-links", "/wheels")
        run("chroot", self.folder, *install, "--force-reinstall", "penstock-agents[daemon,nkeys]")
        etc, units = self.folder / "etc" / "penstock", self.folder / "etc" / "systemd" / "system"
        shutil.rmtree(etc, ignore_errors=True)
        shutil.rmtree(self.folder / "var" / "lib" / "penstock", ignore_errors=True)
        etc.mkdir()
        for unit in (ROOT / "controlplane/operate/deploy/systemd").glob("*.service"):
            shutil.copy(unit, units)
        shutil.copy(ROOT / "controlplane/operate/deploy/systemd/nats-server.conf", etc)
        (etc / "gpu7.toml").write_text(
            run("chroot", self.folder, "/opt/penstock/bin/penstock", "config", "template")
        )

    @contextlib.contextmanager
    def booted(self) -> Iterator[None]:
        """While it runs."""
        flags = ("--boot", "--register=no", "--keep-unit", "--console=pipe")
        environment = {**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"}
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            ["systemd-nspawn", "-D", self.folder, *flags], env=environment, stdin=quiet, stdout=quiet, stderr=quiet
        )
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            wait(lambda: bool(children.read_text().split()), "systemd")
            self._first = int(children.read_text().split()[0])
            wait(lambda: "running" in self.ask("systemctl", "is-system-running"), "a system that runs")
            yield
        finally:
            os.kill(process.pid, signal.SIGTERM)
            process.wait(60)

    def ask(self, *words: str) -> str:
        """What a command in it prints, whatever its status."""
        command = ["nsenter", "-t", str(self._first), "-a", "--", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def penstock(self, *words: str) -> str:
        """The same of ``penstock`` on the node."""
        return self.ask(
            "/bin/sh",
            "-c",
            "set -a; for file in /etc/penstock/bus/gpu7.daemon.env /etc/penstock/gpu7.env; do "
            "[ ! -e $file ] || . $file; done; exec /opt/penstock/bin/penstock "
            + " ".join([*words, "--node gpu7 --state-dir /var/lib/penstock"]),
        )

    def property(self, name: str) -> str:
        """Of the daemon's unit."""
        return self.ask("systemctl", "show", UNIT, "-p", name, "--value").strip()


def wait(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Until it holds."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            raise SystemExit(f"no {what} within {timeout_s:g}s")
        time.sleep(0.2)


def is_another(machine: Machine, process: str) -> bool:
    """Whether the unit has another main process now."""
    return machine.property("MainPID") not in (process, "0")


def embedded_bus(machine: Machine) -> None:
    """A daemon with a bus of its own: started, reloaded, refused, killed, hung, stopped."""
    note("start: " + machine.ask("systemctl", "start", UNIT))
    wait(lambda: "programs active" in machine.property("StatusText"), "status")
    note(machine.penstock("doctor"))
    config = machine.folder / "etc" / "penstock" / "gpu7.toml"
    config.write_text(config.read_text().replace('#preset = "penstock"', 'preset = "continuum"'))
    machine.ask("systemctl", "reload", UNIT)
    wait(lambda: "preset continuum, configuration 2" in machine.penstock("status"), "reload")
    good = config.read_text()
    config.write_text("nonsense = 1\n" + good)
    wait(lambda: "nonsense" in machine.penstock("status", "--json"), "refusal")
    config.write_text(good)
    note("reloaded, and refused what is wrong")
    for how, patience_s in (("KILL", 20.0), ("STOP", 50.0)):
        before = machine.property("MainPID")
        bus = machine.ask("pgrep", "nats-server")
        machine.ask("kill", f"-{how}", before)
        wait(functools.partial(is_another, machine, before), "restart", patience_s)
        wait(lambda: machine.property("ActiveState") == "active", "daemon")
        if machine.ask("pgrep", "nats-server") != bus:
            raise SystemExit("the bus did not outlive its daemon")
        note(f"back after SIG{how}, with the bus that it had")
    machine.ask("systemctl", "stop", UNIT)
    if machine.property("Result") != "success" or machine.ask("pgrep", "nats-server"):
        raise SystemExit("it did not stop well")


def own_bus(machine: Machine) -> None:
    """The other unit: a nats-server that wants certificates and passwords, and goes away for a while."""
    folder = machine.folder / TLS
    folder.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name, who in (("server", "localhost"), ("client", "penstock")):
        made = authority.issue_cert(who)
        made.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
        made.private_key_pem.write_to_path(str(folder / f"{name}-key.pem"))
    for file in folder.iterdir():
        file.chmod(0o644)
    (folder.parent / "gpu7.env").write_text(BUS)
    arguments = "bus config --node gpu7 --node gpu8 --url tls://localhost:4222 --folder /etc/penstock/bus"
    note(machine.ask("/opt/penstock/bin/penstock", *arguments.split()))
    machine.ask("chgrp", "nats", "/etc/penstock/bus", "/etc/penstock/bus/roles.conf")
    machine.ask("chmod", "750", "/etc/penstock/bus")
    machine.ask("chmod", "640", "/etc/penstock/bus/roles.conf")
    machine.ask("systemctl", "start", "nats-server", UNIT)
    wait(lambda: machine.property("ActiveState") == "active", "daemon on the other bus")
    note(machine.penstock("doctor"))
    machine.ask("systemctl", "stop", "nats-server")
    wait(lambda: "bus is away" in machine.property("StatusText"), "word of a bus that is away")
    machine.ask("systemctl", "start", "nats-server")
    wait(lambda: "bus is away" not in machine.property("StatusText"), "bus")
    note("a bus that went away and came back")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "penstock-debian")
    machine = Machine(parser.parse_args().folder)
    missing = [tool for tool in ("debootstrap", "systemd-nspawn", "nsenter") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        raise SystemExit(f"needs root, and {' and '.join(missing) or 'nothing else'}")
    machine.make()
    with machine.booted():
        embedded_bus(machine)
        own_bus(machine)
        for unit in (UNIT, "nats-server"):
            note(machine.ask("systemd-analyze", "security", unit, "--no-pager").splitlines()[-1])
    return 0


if __name__ == "__main__":
    sys.exit(main())

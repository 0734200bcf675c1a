"""The real SGLang on this machine's CPU, in processes of its own."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from support.ports import free_port

ROOT = Path(__file__).parents[2]
STARTUP = Path(__file__).parent / "startup"  # what each of its processes reads first
START_TIMEOUT_S = 900.0  # a busy machine takes many times the usual 20
STOP_TIMEOUT_S = 10.0
POOL_TOKENS = 4096

_ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",  # without it SGLang looks for its own CPU build
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",  # a tiny model gains nothing from more, and the machine has few cores
}
_ARGUMENTS = (
    *("--host", "127.0.0.1"),
    *("--device", "cpu"),
    *("--attention-backend", "torch_native"),
    *("--load-format", "dummy"),
    *("--random-seed", "1"),
    "--enable-cache-report",
    "--enable-metrics",
    "--skip-server-warmup",
)


class EngineServer:
    """One SGLang server, started by ``start`` and gone after ``kill``.

    :param folder: for its log, and for what a test leaves it.
    :param port: 0 for a free one.
    :param plugins: which of the installed plugins it loads.
    :param variables: more of its environment; those of this process that begin with PENSTOCK_ are not handed on.
    :param sleeps: not to burn a core while idle.
    """

    block_tokens = 1  # a page of its KV pool
    has_gate = True  # whether the plugin has a place for one in it
    session_header = "x-litellm-session-id"  # by which its clients name their program
    start_timeout_s = START_TIMEOUT_S

    def __init__(
        self,
        folder: Path,
        *,
        environment: Path,
        model: Path,
        pool_tokens: int = POOL_TOKENS,
        port: int = 0,
        plugins: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        sleeps: bool = True,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.log_path = folder / "engine.log"
        self.pool_tokens = pool_tokens
        self.port = port or free_port()
        self._sleeps = sleeps
        self.command = [str(environment / "bin" / "python"), *self._launch(model), *arguments]
        self.variables = {k: v for k, v in os.environ.items() if not k.startswith(("PENSTOCK_", "PYTEST_"))}
        self.variables |= {
            # This checkout's Penstock, whichever one the environment was made from.
            "PYTHONPATH": f"{ROOT}{os.pathsep}{STARTUP}",
            **self._own_variables(plugins),
            **(variables or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def _launch(self, model: Path) -> list[str]:
        """What Python runs."""
        own = ("--model-path", str(model), "--port", str(self.port), "--max-total-tokens", str(self.pool_tokens))
        sleep = ("--sleep-on-idle",) if self._sleeps else ()
        return ["-m", "sglang.launch_server", *_ARGUMENTS, *sleep, *own]

    def _own_variables(self, plugins: Sequence[str]) -> dict[str, str]:
        return {**_ENVIRONMENT, "SGLANG_PLUGINS": ",".join((*plugins, "cpu_standin"))}

    def whole_blocks(self, tokens: int) -> int:
        """The tokens of so many that lie in whole pages: what of a context the engine can find again."""
        return tokens // self.block_tokens * self.block_tokens

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def start(self) -> "EngineServer":
        """Start it; it serves only after ``wait_ready``."""
        assert self._process is None, "the engine runs already"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                stdout=log,
                stderr=log,
                env=self.variables,
                cwd=self.folder,
                start_new_session=True,  # so that its schedulers and detokenizer can be ended with it
            )
        return self

    def wait_ready(self) -> None:
        """Return once it answers."""
        deadline = time.monotonic() + self.start_timeout_s
        while not self.is_healthy():
            if not self.is_running() and self._lost_a_port():
                self._begin_again()
            assert self.is_running(), f"the engine ended ({self.exit_status}):\n{self._first_error()}"
            assert time.monotonic() < deadline, f"the engine is not ready:\n{self._last_lines()}"
            time.sleep(0.1)

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of its first process, which all others descend from."""
        assert self._process is not None, "the engine does not run"
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Of its first process; negative: the signal that ended it. None while it runs."""
        return self._process.poll() if self._process is not None else None

    def stop(self) -> None:
        """SIGTERM, as an operator would; what is left after a while is killed."""
        if self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to all its processes. Nothing happens if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _lost_a_port(self) -> bool:
        """Whether a port that it chose for its own processes was taken before they listened there; told once."""
        return not self._first_log.exists() and bool(
            re.search(r"EADDRINUSE|address already in use", self.log, re.IGNORECASE)
        )

    @property
    def _first_log(self) -> Path:
        return self.log_path.with_suffix(".first.log")

    def _begin_again(self) -> None:
        self.kill()
        self.log_path.rename(self._first_log)
        self.start()

    def _first_error(self) -> str:
        """Its log from there on, and the end: a process that fails takes others with it, which say more."""
        lines = self.log.splitlines()
        first = next((n for n, line in enumerate(lines) if "Traceback" in line), len(lines))
        return "\n".join([*lines[first : first + 40], "...", *lines[max(first + 40, len(lines) - 40) :]])

    def _last_lines(self) -> str:
        return "\n".join(self.log.splitlines()[-40:])


def environment_of(version: str) -> Path:
    """The environment that ``make engine-env`` made. Raises ``AssertionError`` without it."""
    command = [sys.executable, ROOT / "scripts" / "engine_env.py", "--check", "--version", version]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 0, f"the engine tests need their environment: {said.stderr.strip()}: make engine-env"
    return Path(said.stdout.strip())


def serving(server: EngineServer) -> Iterator[EngineServer]:
    """The server, started and ready, for as long as a fixture lives."""
    try:
        server.start().wait_ready()
        yield server
    finally:
        server.kill()


Launch = Callable[..., Iterator[EngineServer]]  # the fixture of this name

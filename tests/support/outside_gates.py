"""``penstock gate`` as a process of a test's own, with the real Envoy, and what its health page says."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from support.daemon_process import run_python
from support.ports import free_port

_ENDS_WITHIN_S = 240.0


@contextmanager
def gate_outside(
    upstream: str, state_dir: Path, log: Path, *more: str, variables: Mapping[str, str] | None = None
) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """One before the server at that URL: its own URL, and its process, which has ended afterwards."""
    url = f"http://127.0.0.1:{free_port()}"
    options = ("--upstream", upstream, "--listen", url.rpartition("/")[2], "--state-dir", str(state_dir))
    process = run_python(log, "-m", "controlplane", "gate", *options, *more, variables=variables)
    try:
        yield url, process
    finally:
        process.terminate()
        process.wait(_ENDS_WITHIN_S)


async def health_of(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """Empty while it shows none."""
    with suppress(aiohttp.ClientError):
        async with http.get(f"{url}/penstock/health") as answer:
            if answer.status == 200:
                return dict(await answer.json())
    return {}

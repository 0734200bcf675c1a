"""The emitter without a bus: what a hook may count on."""

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.events import ToolStarted
from controlplane.emit.emitter import Emitter

EVENT = ToolStarted(program_id="p", call_id="c", tool="bash")

NOBODY = "nats://127.0.0.1:9"  # the discard port: nothing listens


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"node": "a.b"}, "expected node to be"),
        ({"role": "a b"}, "expected role to be"),
        ({"capacity": 0}, "1 <= capacity"),
        ({"linger_s": -1}, "0 <= linger_s"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"url": NOBODY, "node": "n", "role": "tool", **options}
    with pytest.raises(ConfigError, match=message):
        Emitter(**values)


def test_before_start_events_wait_and_the_oldest_give_way() -> None:
    emitter = Emitter(url=NOBODY, node="n", role="tool", capacity=3)
    for _ in range(5):
        emitter.emit(EVENT)
    assert (emitter.stats.queued, emitter.stats.dropped) == (3, 2)
    emitter.close()
    emitter.emit(EVENT)
    assert (emitter.stats.queued, emitter.stats.dropped) == (0, 6)


class Address:
    """Tells where the server is, or raises; ``asked_thrice`` is set at the third time."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked_thrice, self._times, self._error = threading.Event(), 0, error

    def __call__(self) -> str:
        self._times += 1
        if self._times == 3:
            self.asked_thrice.set()
        if self._error is not None:
            raise self._error
        return NOBODY


@pytest.mark.parametrize(
    ("error", "told"), [(None, f"cannot connect to {NOBODY}: "), (RuntimeError("no such place"), "no such place")]
)
def test_nobody_listening_is_told_and_close_does_not_wait_for_it(error: Exception | None, told: str) -> None:
    address = Address(error)
    emitter = Emitter(url=address, node="n", role="tool")
    emitter.start()
    emitter.emit(EVENT, urgent=True)
    assert address.asked_thrice.wait(60), "the address is asked for at every attempt"
    stats = emitter.stats
    began_s = time.monotonic()
    emitter.close(60)
    assert time.monotonic() - began_s < 30
    assert not stats.connected
    assert told in stats.last_error
    assert stats.queued == 1


BLOCKER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.split(".")[0]
        if name not in ("controlplane",) and top != "controlplane" and top not in sys.stdlib_module_names:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
"""


def test_importing_and_emitting_needs_the_standard_library_only() -> None:
    program = (
        BLOCKER
        + """
import time
from controlplane.core.model.events import ToolStarted
from controlplane.emit.emitter import Emitter
import controlplane.emit.tool_reporter, controlplane.transport.endpoint
emitter = Emitter(url="nats://127.0.0.1:9", node="n", role="tool")
emitter.start()
deadline = time.monotonic() + 30
while "pip install penstock" not in emitter.stats.last_error and time.monotonic() < deadline:
    time.sleep(0.005)
emitter._thread.join(30)
for n in range(10):
    emitter.emit(ToolStarted(program_id="p", call_id="c", tool="bash"))
assert (emitter.stats.queued, emitter.stats.dropped) == (0, 10), emitter.stats
emitter.close()
print(emitter.stats.last_error)
"""
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "blocked: google; pip install penstock" in done.stdout
    assert done.stderr == ""


def test_a_program_that_does_not_close_ends_quietly() -> None:
    program = f"""
from controlplane.core.model.events import ToolStarted
from controlplane.emit.emitter import Emitter
emitter = Emitter(url="{NOBODY}", node="n", role="tool")
emitter.start()
emitter.emit(ToolStarted(program_id="p", call_id="c", tool="bash"))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")

"""The proxy before an MCP server: lines pass as they are, and a call that takes too long is answered."""

import json
import os
import signal
import subprocess
import sys

import pytest

ECHO = "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line); sys.stdout.buffer.flush()\n"


def test_every_byte_passes_and_the_servers_status_is_its_own() -> None:
    told = b'{"a":  1}\nnot json\n\xff\xfe\n' + b"x" * 300_000 + b"\nlast without an end"
    command = [sys.executable, "-m", "engine_hooks.tools.mcp_proxy", "--", sys.executable, "-c"]
    environment = {"PENSTOCK_NATS_URL": "nats://127.0.0.1:9", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([*command, ECHO], input=told, capture_output=True, timeout=120, env=environment)
    assert done.stdout == told
    failed = subprocess.run([*command, "raise SystemExit(3)"], input=b"", timeout=120, env=environment)
    assert failed.returncode == 3


def test_a_server_that_is_not_there_is_told() -> None:
    command = [sys.executable, "-m", "engine_hooks.tools.mcp_proxy", "--", "no-such-server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "no such command: no-such-server" in done.stderr


STUCK = """
import json, sys, time
for line in sys.stdin:
    told = json.loads(line)
    if told["method"] == "notifications/cancelled":
        sys.stderr.write(line)
        print(json.dumps({"id": told["params"]["requestId"], "result": {}}), flush=True)
        print(json.dumps({"id": "other", "result": {}}), flush=True)
        break
"""


def test_a_call_that_takes_too_long_is_answered_and_the_server_is_told_to_stop() -> None:
    call = b'{"id": 7, "method": "tools/call", "params": {"name": "wait"}}\n'
    command = [sys.executable, "-m", "engine_hooks.tools.mcp_proxy", "--", sys.executable, "-c", STUCK]
    environment = {
        "PENSTOCK_NATS_URL": "nats://127.0.0.1:9",
        "PENSTOCK_TOOL_TIMEOUT_S": "0.2",
        "PATH": "/usr/bin:/bin",
    }
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as proxy:  # type: ignore[call-overload]
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        proxy.stdin.write(call)
        proxy.stdin.flush()
        answer, other = json.loads(proxy.stdout.readline()), json.loads(proxy.stdout.readline())
        _, errors = proxy.communicate(timeout=120)
    assert (answer["id"], "wait took longer than 0.2 s" in answer["error"]["message"]) == (7, True)
    assert other["id"] == "other", "the server's own answer came too late and did not pass"
    assert b'"requestId": 7' in errors


def test_a_proxy_that_is_ended_ends_its_server() -> None:
    script = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = [sys.executable, "-m", "engine_hooks.tools.mcp_proxy", "--", sys.executable, "-c", script]
    environment = {"PENSTOCK_NATS_URL": "nats://127.0.0.1:9", "PATH": "/usr/bin:/bin"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment) as proxy:
        assert proxy.stdout is not None
        server = int(proxy.stdout.readline())
        proxy.terminate()
        assert proxy.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)

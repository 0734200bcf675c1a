"""The proxy before an MCP server: lines pass as they are, and each call gets its own answer or error."""

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

PROXY = [sys.executable, "-m", "engine_hooks.tools.mcp_proxy", "--"]
SHORT = """
from engine_hooks.tools import mcp_messages, mcp_proxy
mcp_proxy.Splitter = lambda end: mcp_messages.Splitter(end, 1 << 16)
raise SystemExit(mcp_proxy.main())
"""
READS_LITTLE = [sys.executable, "-c", SHORT, "--"]  # so that a large answer passes in parts
ENVIRONMENT = {"PENSTOCK_NATS_URL": "nats://127.0.0.1:9", "PATH": "/usr/bin:/bin"}
PATIENCE_S = 120
ECHO = "import sys\nfor line in sys.stdin.buffer:\n    sys.stdout.buffer.write(line); sys.stdout.buffer.flush()\n"
# Reads as many calls as it is sent, then does what the row says with them.
READS = """
import json, os, sys, time
calls = []
for line in sys.stdin:
    calls.append(json.loads(line))
    if len(calls) == {count}:
        break
def answer(call, value="own", end=chr(10)):
    sys.stdout.write(json.dumps({{"jsonrpc": "2.0", "id": call["id"], "result": {{"value": value}}}}) + end)
    sys.stdout.flush()
"""
LARGE = "A" * (3 << 20)
OWN, ENDED, LATE = "own", "the MCP server ended before it answered", "look took longer than 0.3 s and was given up"
SERVERS: dict[str, tuple[str, str]] = {
    "answers in another order": ("for call in reversed(calls): answer(call)", OWN),
    "answers without a last line end": (
        "for call in calls: answer(call, end='' if call is calls[-1] else chr(10))",
        OWN,
    ),
    "a large answer": ("for call in calls: answer(call, 'A' * (3 << 20))", LARGE),
    "dies within an answer": ('sys.stdout.write(\'{"id": 1, "res\'); sys.stdout.flush(); os._exit(9)', ENDED),
    "says nothing": ("time.sleep(99)", LATE),
    "is stopped": ("print(sys.stdin.readline(), file=sys.stderr); answer(calls[0], 'late'); time.sleep(99)", LATE),
}


@pytest.mark.parametrize("server", SERVERS)
def test_each_call_gets_its_own_answer_or_error(server: str) -> None:
    does, expected = SERVERS[server]
    ids = [1] if server == "a large answer" else [1, 1, "1"]
    proxy_itself = READS_LITTLE if server == "a large answer" else PROXY
    command = [*proxy_itself, sys.executable, "-c", READS.format(count=len(ids)) + does]
    environment = ENVIRONMENT | {"PENSTOCK_TOOL_TIMEOUT_S": "0.3" if expected == LATE else "0"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        for number in ids:
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "look"}}
            proxy.stdin.write(json.dumps(call).encode() + b"\n")
        proxy.stdin.flush()
        answers: list[Any] = []
        while len(answers) < len(ids):
            line = proxy.stdout.readline()
            assert line, "no call is left without an answer"
            try:
                found = json.loads(line)
            except ValueError:
                assert server == "dies within an answer"
                continue
            answers += [one for one in (found if isinstance(found, list) else [found]) if "id" in one]
        proxy.terminate()
        rest, _ = proxy.communicate(timeout=PATIENCE_S)
    assert b'"id"' not in rest, "a late answer does not pass"
    assert sorted(str([one["id"]]) for one in answers) == sorted(str([number]) for number in ids)
    values = [one["result"]["value"] if "result" in one else one["error"]["message"] for one in answers]
    assert all(value == expected for value in values)


def test_every_byte_passes_and_the_servers_status_is_its_own() -> None:
    sent = b'{"a":  1}\nnot json\n\xff\xfe\n' + b"x" * 300_000 + b"\nlast without an end"
    command = [*PROXY, sys.executable, "-c"]
    done = subprocess.run([*command, ECHO], input=sent, capture_output=True, timeout=PATIENCE_S, env=ENVIRONMENT)
    assert done.stdout == sent
    failed = subprocess.run([*command, "raise SystemExit(3)"], input=b"", timeout=PATIENCE_S, env=ENVIRONMENT)
    assert failed.returncode == 3


def test_a_server_that_is_not_there_is_told() -> None:
    done = subprocess.run([*PROXY, "no-such-server"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    assert "no such command: no-such-server" in done.stderr


def test_a_server_that_reads_nothing_does_not_keep_calls_from_their_time_out() -> None:
    """Once its pipe is full, what is to stop a call cannot be written."""
    command = [*PROXY, sys.executable, "-c", "import time; time.sleep(99)"]
    environment = ENVIRONMENT | {"PENSTOCK_TOOL_TIMEOUT_S": "0.3"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        for number, size in enumerate([60_000, 60_000, 10]):
            parameters = {"name": "look", "arguments": {"text": "A" * size}}
            call = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": parameters}
            proxy.stdin.write(json.dumps(call).encode() + b"\n")
            proxy.stdin.flush()
        errors = [json.loads(proxy.stdout.readline()) for _ in range(2)]
        assert [(one["id"], one["error"]["message"]) for one in errors] == [(0, LATE), (1, LATE)]
        proxy.terminate()


@pytest.mark.parametrize("ignores", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "])
def test_a_proxy_that_is_ended_ends_its_server(ignores: str) -> None:
    script = ignores + "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    command = [*PROXY, sys.executable, "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=ENVIRONMENT) as proxy:
        assert proxy.stdout is not None
        server = int(proxy.stdout.readline())
        proxy.terminate()
        assert proxy.wait(60) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)

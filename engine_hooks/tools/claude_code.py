"""Claude Code: the command of its hooks, which hands what it reads to the daemon's socket.

It imports almost nothing and no other file of ours, since each hook is a process of its own; the daemon reads what
it was handed (``controlplane/tool_calls/claude_code.py``). Whatever goes wrong, its exit status is 0 and it prints
nothing, since the model would see anything else.

    python -m engine_hooks.tools.claude_code --settings    # prints what belongs in .claude/settings.json
"""

import _socket  # not ``socket``, which takes as long to import as all the rest
import os
import sys

_HOOK, _ASKS = 5, 6  # kinds of ``wire/frames.py``
_MOST_BYTES = 1 << 16  # of an input that is handed over as it is; of a longer one what counts
_MOST_CHARACTERS = 16_384  # of a command
_ANSWER_S = 0.5
_GREETING_S = 5.0
_PATIENCE_S = 300.0
_KINDS = (
    *("SessionStart", "PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionDenied"),
    *("SubagentStart", "SubagentStop", "Stop", "SessionEnd"),
)


def _socket_path() -> str:
    """The daemon's socket, as ``transport/endpoint.py`` finds it."""
    environment = os.environ
    url = environment.get("PENSTOCK_NATS_URL", "")
    if not url and (file := environment.get("PENSTOCK_NATS_URL_FILE")):
        with open(file, encoding="utf-8") as source:  # noqa: PTH123 - pathlib takes long to import
            url = source.read(_MOST_BYTES).strip().removeprefix("PENSTOCK_NATS_URL=")
    if url.startswith("unix:"):
        return url[5:]
    folder = environment.get("PENSTOCK_STATE_DIR")
    if not folder:
        home = environment.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")  # noqa: PTH111
        folder = f"{home}/penstock"
    return f"{folder}/{environment.get('PENSTOCK_NODE', '').strip() or 'local'}.sock"


def _read() -> bytes:
    parts = []
    while part := os.read(0, 1 << 20):
        parts.append(part)
    return b"".join(parts)


def _short(data: bytes) -> bytes:
    """What the daemon reads of a long input, which has a tool's answer in it or a file."""
    import json

    hook = json.loads(data)
    short = {key: value for key, value in hook.items() if not isinstance(value, str) or len(value) < 1024}
    short["tool_response"] = None
    tool_input = hook.get("tool_input")
    if isinstance(tool_input, dict):
        cut = {key: tool_input[key] for key in ("command", "run_in_background") if key in tool_input}
        short["tool_input"] = {key: v[:_MOST_CHARACTERS] if isinstance(v, str) else v for key, v in cut.items()}
    return json.dumps(short).encode()


def _hand_over(data: bytes) -> None:
    asks = os.environ.get("PENSTOCK_TOOL_SLOTS", "").strip().lower() == "on" and b'"PreToolUse"' in data
    daemon = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    daemon.settimeout(_ANSWER_S)
    daemon.connect(_socket_path())
    if len(data) > _MOST_BYTES:
        data = _short(data)
    daemon.sendall(len(data).to_bytes(4, "big") + bytes([_ASKS if asks else _HOOK]) + data)
    daemon.shutdown(_socket.SHUT_WR)
    if asks:
        daemon.settimeout(_GREETING_S)
        daemon.recv(1)  # of its greeting: one that is frozen gives no slots, and is not waited for
        daemon.settimeout(float(os.environ.get("PENSTOCK_TOOL_PATIENCE_S") or _PATIENCE_S))
    while daemon.recv(1 << 16):
        pass  # it hangs up once it has answered


def _settings() -> str:
    """The hooks for ``settings.json``. None is waited for but that which asks for a slot, and the last."""
    import json
    import shlex

    command = shlex.join([sys.executable, "-I", "-S", os.path.abspath(__file__)])  # noqa: PTH100
    waited_for = {"SessionEnd"} | ({"PreToolUse"} if os.environ.get("PENSTOCK_TOOL_SLOTS") == "on" else set())
    hooks = {
        kind: [
            {"hooks": [{"type": "command", "command": command} | ({} if kind in waited_for else {"async": True})]}
        ]
        for kind in _KINDS
    }
    return json.dumps({"hooks": hooks}, indent=2)


def main() -> int:
    """Run one hook: hand its input over, and return 0."""
    if sys.argv[1:] == ["--settings"]:
        sys.stdout.write(_settings() + "\n")
        return 0
    try:
        data = _read()  # all of it, or the harness would write into nothing
        if data and os.environ.get("PENSTOCK_TOOLS", "").strip().lower() in ("", "on"):
            _hand_over(data)
    except Exception:  # no daemon, no JSON, no input: the agent goes on
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Real agents through the gate: which programs they are, whose sub-agents, what they call, how each ends.

One table. A row is tried with what the harness once sent (``harnesses/NAME.jsonl``, without its words), always; and
with the real harness, where it is installed. To keep what it sends today: ``KEEP_SENT=1 pytest THIS_FILE``.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.agent_runs import harness_folder
from support.gated_model import GatedModel, Said, Script, sent_again

SENT = Path(__file__).parent / "harnesses"
_PATIENCE_S = 120

Program = tuple[str, str, int, str, str]
"""Its number (of those without a parent first), its parent's, its turns, the tools that it called, its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A harness, what is done with it in an empty folder, and the programs that it then is.

    ``run`` is told the model's URL, the folder and the harness' installation (``installed`` finds that, or skips).
    """

    run: Callable[[GatedModel, Path, Path], None]
    installed: Callable[[], Path] = field(default=harness_folder)
    script: Callable[[], Script]
    programs: list[Program]


def spawning(tool: str, **arguments: str) -> Script:
    """The first prompt that offers that tool calls it; all else is answered in words, its caller last."""
    spawned: list[str] = []

    def script(body: Mapping[str, Any]) -> Said:
        for each in body.get("tools") or ():
            for inner in each.get("tools", (each.get("function", each),)):
                if inner.get("name") == tool and not spawned:
                    spawned.append(tool)
                    return Said(tool=tool, arguments=arguments, namespace=each["name"] if "tools" in each else "")
        has_called = f'"{tool}"' in json.dumps(body.get("messages") or body.get("input"))
        return Said(after_s=3.0) if has_called else Said()

    return script


def call(folder: Path, command: list[str], **variables: str) -> None:
    """Run it to its end. It finds neither a network nor this machine's settings."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    home = {"HOME": str(folder), "XDG_DATA_HOME": f"{folder}/data", "XDG_CONFIG_HOME": f"{folder}/conf"}
    proxy = {
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "NO_PROXY": "127.0.0.1,localhost",
    }
    done = subprocess.run(
        command,
        cwd=folder / "work",
        env=kept | home | proxy | {"PWD": str(folder / "work")} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def codex(model: GatedModel, folder: Path, installed: Path) -> None:
    settings = {"model": '"m"', "model_provider": '"local"', "model_providers.local.name": '"local"'}
    settings |= {f"model_providers.local.{name}": json.dumps(value) for name, value in (
        ("base_url", f"{model.url}/v1"), ("wire_api", "responses"), ("env_key", "LOCAL_KEY"))}  # fmt: skip
    told = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command = [
        str(installed / "codex"),
        "exec",
        "--skip-git-repo-check",
        "--sandbox",
        "read-only",
        *told,
        "say done",
    ]
    call(folder, command, LOCAL_KEY="k", CODEX_HOME=str(folder))


def opencode(model: GatedModel, folder: Path, installed: Path) -> None:
    """Its second session, as the title of a process' first may come before the gate has seen that such are."""
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "local", "models": {"m": {"name": "m"}}}
    provider |= {"options": {"baseURL": f"{model.url}/v1", "apiKey": "k"}}
    settings = {"provider": {"local": provider}, "model": "local/m", "autoupdate": False, "share": "disabled"}
    (folder / "work" / "opencode.json").write_text(json.dumps(settings))
    names = ("OPENCODE_DISABLE_AUTOUPDATE", "OPENCODE_DISABLE_MODELS_FETCH", "OPENCODE_DISABLE_LSP_DOWNLOAD")
    script, model.script = model.script, lambda body: Said()
    for task in ("say hello", "say done"):
        model.warms_up = task == "say hello"
        call(folder, [str(installed / "opencode"), "run", task], **dict.fromkeys(names, "1"))
        model.script = script


def claude_code(model: GatedModel, folder: Path, installed: Path) -> None:
    names = ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER", "DISABLE_TELEMETRY")
    for task in (["say done"], ["--continue", "go on"], ["--continue", "/compact"], ["--continue", "and more"]):
        command = [str(installed / "claude"), "-p", *task]
        call(folder, command, ANTHROPIC_API_KEY="k", ANTHROPIC_BASE_URL=model.url, **dict.fromkeys(names, "1"))


CHILD = {"description": "child", "prompt": "reply with ok"}
ROWS = {
    "codex": Row(
        run=codex,
        script=lambda: spawning("spawn_agent", message="child task: reply with ok", agent_type="default"),
        programs=[("1", "", 3, "spawn_agent", "rests"), ("2", "1", 1, "", "rests")],
    ),
    "opencode": Row(
        run=opencode,
        script=lambda: spawning("task", subagent_type="general", **CHILD),
        programs=[("1", "", 2, "task", "rests"), ("2", "1", 1, "", "ended"), ("3", "1", 1, "", "rests")],
    ),
    "claude-code": Row(
        run=claude_code,
        script=lambda: spawning("Agent", subagent_type="general-purpose", **CHILD),
        programs=[("1", "", 5, "Agent", "rests"), ("2", "1", 1, "", "rests")],
    ),
}
"""opencode's program 2 is its title, which ends with its request; Claude Code's first is compacted, and goes on."""


@pytest.mark.parametrize("name", ROWS)
def test_the_real_harness(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    installed = row.installed()
    (tmp_path / "work").mkdir()
    model = GatedModel(row.script())
    with model.serving():
        row.run(model, tmp_path, installed)
    if os.environ.get("KEEP_SENT"):
        SENT.mkdir(exist_ok=True)
        (SENT / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in model.sent))
    assert model.rows() == row.programs


@pytest.mark.parametrize("name", ROWS)
async def test_what_it_once_sent(name: str) -> None:
    model = await sent_again([json.loads(line) for line in (SENT / f"{name}.jsonl").read_text().splitlines()])
    assert model.rows() == ROWS[name].programs

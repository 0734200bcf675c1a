"""What ``penstock up`` tells a person on a terminal: where its page and its files are, and what to do next."""

import shlex
import sys
from pathlib import Path

from controlplane.config import Config
from controlplane.transport.endpoint import default_state_dir
from controlplane.wire.decisions import log_path


def first_steps(config: Config, state_dir: Path, page_url: str) -> list[str]:
    """Three lines. ``page_url``: empty where the page is not served."""
    asked = [] if config.node == "local" else ["--node", config.node]
    if state_dir != default_state_dir({}):
        asked += ["--state-dir", str(state_dir.absolute())]
    options = "".join(f" {shlex.quote(each)}" for each in asked)
    log = log_path(config.node, state_dir)
    return [
        f"page   {page_url or 'none: `[http] listen` in the file given with --config sets its address'}",
        f"files  state in {state_dir}; decisions in {log}; the log is here, on standard error",
        "next   start an engine with the plugin (docs/how-to/attach-to-sglang.md, attach-to-vllm.md), then "
        f"`penstock top{options}`; if something is amiss, `penstock doctor{options}`",
    ]


def greet(config: Config, state_dir: Path, page_url: str) -> None:
    """Say them, if standard error is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write("".join(f"{line}\n" for line in first_steps(config, state_dir, page_url)))
        sys.stderr.flush()

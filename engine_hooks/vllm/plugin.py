"""The entry point that vLLM calls in each of its processes, or once before it forks them.

So it only wraps: no thread is started, no socket opened, and what is wrapped finds out by itself where it is.
"""

import logging
import sys

from engine_hooks.engine.settings import Settings, install_unless_off
from engine_hooks.guard import log

_installed = False


def register() -> None:
    """Install the plugin's parts for this process and those that it forks."""
    global _installed
    if not _installed:
        _installed = True
        _ensure_handler()
        install_unless_off(_install)


def _install(settings: Settings) -> None:
    # Imported late, so that a plugin that is off costs nothing and one that lacks something says what.
    from engine_hooks.vllm import http_side, scheduler_side

    scheduler_side.install(settings)
    http_side.install(settings)


def _ensure_handler() -> None:
    """vLLM shows its own loggers only."""
    if log.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [%(name)s] %(message)s", "%m-%d %H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)

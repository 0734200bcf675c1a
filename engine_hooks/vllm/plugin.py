"""The entry point that vLLM calls in each of its processes, or once before it forks them.

So it only wraps: no thread is started, no socket opened, and what is wrapped finds out by itself where it is. It
never raises: whatever goes wrong is told in one line, and vLLM starts as if nothing were installed.
"""

import logging
import sys

from engine_hooks.engine.settings import PluginMode, settings_from

log = logging.getLogger("penstock")
_installed = False


def register() -> None:
    """Install the plugin's parts for this process and those that it forks."""
    global _installed
    try:
        if not _installed:
            _installed = True
            _install()
    except Exception as error:
        log.error("penstock: passive: %s", " ".join(str(error).split()) or type(error).__name__)
        log.debug("penstock: the cause", exc_info=True)


def _install() -> None:
    _be_heard()
    settings = settings_from()
    if settings.mode is PluginMode.OFF:
        log.info("penstock: off")
        return
    # Imported late, so that a plugin that is off costs nothing and one that lacks something says what.
    from engine_hooks.vllm import http_side, scheduler_side

    scheduler_side.install(settings)
    http_side.install(settings)


def _be_heard() -> None:
    """vLLM shows its own loggers only."""
    if log.hasHandlers():
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(asctime)s [%(name)s] %(message)s", "%m-%d %H:%M:%S"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)

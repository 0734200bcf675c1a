"""The entry point that SGLang calls in each of its processes before the engine starts."""

import multiprocessing
from dataclasses import replace

from engine_hooks.engine.settings import PluginMode, Settings, install_unless_off


def register() -> None:
    """Install the plugin's parts for this process."""
    install_unless_off(_install)


def _install(settings: Settings) -> None:
    # Imported late, so that a plugin that is off costs nothing and one that lacks something says what.
    from engine_hooks.engine import board
    from engine_hooks.engine.targets import Feature
    from engine_hooks.engine.verify import verify
    from engine_hooks.sglang import http_side, scheduler_side
    from engine_hooks.sglang.targets import TARGETS
    from engine_hooks.sglang.verify import report_problems

    # Whether host memory, several ranks and handing over can be used is told where there are any.
    sometimes = (Feature.HOST, Feature.RANKS, Feature.DISAGGREGATION)
    always = (target for target in TARGETS if target.feature not in sometimes)
    lacking = report_problems(verify(always))
    if Feature.PROBE in lacking:
        return  # a gate whose turns the daemon never sees run would only hold them
    obeys_in_engine = settings.obeys and Feature.PINS not in lacking
    scheduler = scheduler_side.install(settings if obeys_in_engine else replace(settings, mode=PluginMode.PROBE))
    if multiprocessing.current_process().name == "MainProcess":
        http_side.install(settings, lacking=Feature.GATE in lacking)
    else:
        board.post(scheduler.account, slot=lambda: scheduler.rank)

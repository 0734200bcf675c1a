"""What makes an engine without a plugin obey: ``engine_hooks/ENGINE/api.py``, where its folder has that."""

import asyncio
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from controlplane.core.model.commands import Command
from controlplane.core.model.events import NO_PLUGIN
from controlplane.daemon.process.logs import logger
from controlplane.fleet.pluginless import PluginlessEngines
from controlplane.fleet.roster import Engine
from controlplane.gate.engine_api import EngineAccess, EngineApi

_FOLDERS = "engine_hooks"
_log = logger("gate")


def _has(engine: str, module: str) -> bool:
    """Whether that engine's folder, ``Server.engine``, has such a module."""
    folder = f"{_FOLDERS}.{engine}"
    return engine.isidentifier() and find_spec(folder) is not None and find_spec(f"{folder}.{module}") is not None


def api_maker(engine: str) -> Callable[[EngineAccess], EngineApi] | None:
    """What makes the API of an engine of that kind; None where there is none."""
    if not _has(engine, "api"):
        return None
    make: Callable[[EngineAccess], EngineApi] = import_module(f"{_FOLDERS}.{engine}.api").engine_api
    return make


def has_api_alone(engine: str) -> bool:
    """Whether one of that kind has an API and never a plugin: all that is told of it, its pool too, we tell."""
    return _has(engine, "api") and not _has(engine, "plugin")


class ObeyingEngine:
    """The one engine behind a gate, which obeys by its API from when it is known which engine that is.

    ``saved_path`` and ``saved_bytes`` as of an ``EngineAccess``. Use it in one event loop.
    """

    def __init__(self, pluginless: PluginlessEngines, saved_path: str, saved_bytes: int) -> None:
        self._pluginless = pluginless
        self._saved = Path(saved_path) if saved_path else None
        self._saved_bytes = saved_bytes
        self._api: EngineApi | None = None
        self._stays_out = False
        self._problem = NO_PLUGIN
        self._is_there = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def found(self, engine: Engine, kind: str, *, has_plugin: bool) -> None:
        """It is of that kind, and so it stays. Where a plugin is in it, that decides, and its API stays out."""
        make = api_maker(kind)
        if self._api is None and make is not None and not has_plugin:
            emit = partial(self._pluginless.tell, engine.place)
            self._api = make(
                EngineAccess(
                    address=engine.address, emit=emit, saved_path=self._saved, saved_bytes=self._saved_bytes
                )
            )
            self._is_there.set()
        self._stays_out = has_plugin
        self._pluginless.obey_by(engine.place, None if has_plugin else self._api)
        if (problem := self.problem) != self._problem:
            self._problem = problem
            _log.info("engine", place=engine.place, obeys=f"no: {problem}" if problem else "by its API")

    async def run(self) -> None:
        """Until cancelled."""
        await self._is_there.wait()
        if self._api is not None:
            await self._api.run()

    def hears(self, command: Command) -> bool:
        """Whether it does something about a command. Any thread may tell it."""
        if self._api is None or self._stays_out:
            return False
        self._loop.call_soon_threadsafe(self._api.on_command, command)
        return True

    @property
    def problem(self) -> str:
        """Why it obeys nobody by its API; empty if it does."""
        return NO_PLUGIN if self._api is None or self._stays_out else self._api.problem

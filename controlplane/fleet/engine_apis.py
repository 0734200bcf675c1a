"""What makes an engine without a plugin obey: ``engine_hooks/ENGINE/api.py``, where its folder has that."""

import asyncio
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from controlplane.core.model.commands import Command
from controlplane.core.model.events import Event
from controlplane.daemon.process.logs import logger
from controlplane.fleet.pluginless import PluginlessEngines
from controlplane.fleet.roster import Engine
from controlplane.gate.engine_api import EngineAccess, EngineApi

_FOLDERS = "engine_hooks"
_log = logger("gate")


def api_maker(engine: str) -> Callable[[EngineAccess], EngineApi] | None:
    """What makes the API of an engine of that kind, ``Server.engine``; None where there is none."""
    if not engine.isidentifier() or find_spec(f"{_FOLDERS}.{engine}") is None:
        return None
    name = f"{_FOLDERS}.{engine}.api"
    if find_spec(name) is None:
        return None
    make: Callable[[EngineAccess], EngineApi] = import_module(name).engine_api
    return make


class ObeyingEngine:
    """The one engine behind a gate, which obeys by its API from when it is known which engine that is.

    ``saved_path`` and ``saved_bytes`` as of an ``EngineAccess``. Use it in one event loop.
    """

    def __init__(self, pluginless: PluginlessEngines, saved_path: str, saved_bytes: int) -> None:
        self._pluginless = pluginless
        self._saved = Path(saved_path) if saved_path else None
        self._saved_bytes = saved_bytes
        self._api: EngineApi | None = None
        self._is_there = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def found(self, engine: Engine, kind: str) -> None:
        """It is of that kind; once it was found, nothing changes."""
        make = api_maker(kind)
        if make is None or self._api is not None:
            return

        def made(emit: Callable[[Event], None]) -> EngineApi:
            return make(
                EngineAccess(
                    address=engine.address, emit=emit, saved_path=self._saved, saved_bytes=self._saved_bytes
                )
            )

        self._api = self._pluginless.obey_by(engine.place, made)
        if self._api is not None:
            _log.info("engine", place=engine.place, obeys="by its API", saves=str(self._saved or "nothing"))
            self._is_there.set()

    async def run(self) -> None:
        """Until cancelled."""
        await self._is_there.wait()
        if self._api is not None:
            await self._api.run()

    def hears(self, command: Command) -> bool:
        """Whether it does something about a command. Any thread may tell it."""
        if self._api is None:
            return False
        self._loop.call_soon_threadsafe(self._api.on_command, command)
        return True

    @property
    def obeys(self) -> bool:
        return self._api is not None and not self._api.problem

"""A new configuration for a running daemon: read and judged as a whole, then taken over at once, or refused.

What names, files and connections go by waits for a restart, and says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import watchfiles
from anyio import Event, sleep, sleep_forever

from controlplane.config import (
    Config,
    Resolved,
    Source,
    changes,
    content_of,
    is_stream,
    keep_until_restart,
    promoted,
)
from controlplane.core.model.errors import ConfigError
from controlplane.core.policies.presets import POLICIES, STOCK
from controlplane.daemon.process.logs import logger
from controlplane.eventloop import task_group

_SETTLE_MS = 200  # an editor writes more than once
_LOOK_MS = 50
_LOOKS_WITHOUT = 20  # until a file that is missing or empty is taken for one that stays so


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigState:
    """Which configuration is in force. ``version`` counts from 1 in a daemon's life."""

    version: int = 1
    file: str = ""
    refused: str = ""  # why the last attempt was; empty: it was taken over
    refusals: int = 0
    until_restart: tuple[str, ...] = ()  # keys whose new value waits for one


class Reloader:
    """Owns the configuration in force. ``take_over`` is told of each new one."""

    def __init__(self, source: Source, resolved: Resolved, take_over: Callable[[Config], None]) -> None:
        self.source, self.resolved = source, resolved
        self._stock: Config | None = None  # what is in force in place of the configured preset
        self.state = ConfigState(file=str(source.path or ""))
        self._take_over = take_over
        self._log = logger("config")
        self._warn()

    def _warn(self) -> None:
        for setting in self.resolved.without_effect:
            self._log.warning("without effect", setting=setting)
        if left := self.resolved.left_to_nodes:
            self._log.info("left to the nodes", preset=self.resolved.config.policies.name, what=list(left))

    @property
    def config(self) -> Config:
        """What is in force: ``resolved.config``, or the same under the stock policies, where an experiment asks."""
        return self._stock or self.resolved.config

    def put_stock_in_force(self, is_stock: bool) -> None:
        """In place of the configured preset, or that one again. It is no configuration, and no restart keeps it."""
        if is_stock != (self._stock is not None):
            self._stock = self.resolved.config.as_stock if is_stock else None
            self._log.info("slice", preset=self.config.preset)
            self._take_over(self.config)

    def set_preset(self, name: str) -> ConfigState:
        """As if given on the command line; not for longer than this daemon lives.

        The stock preset comes without the sections of single policies: it is what an operator turns to when
        something is wrong. Any other has the file's again.
        """
        promoted = {key: value for key, value in self.source.promoted.items() if key not in ("preset", *POLICIES)}
        source = replace(self.source, options={**self.source.options, "preset": name}, promoted=promoted)
        why = f"preset was set to {name!r}"
        return self._stop(source, why) if name == STOCK else self._attempt(source, why)

    def _stop(self, source: Source, why: str) -> ConfigState:
        """Put the stock policies in force, even if the file is wrong by now. What is read later leaves them so."""

        def others(keys: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in keys.items() if key.partition(".")[0] not in POLICIES}

        origins = {**others(self.resolved.origins), "preset": "--preset"}
        stock = replace(self.resolved, config=self.resolved.config.as_stock, origins=origins)
        source = replace(source, promoted={**others(source.promoted), **dict.fromkeys(POLICIES)})
        return self._install(source, stock, self.state.until_restart, why)

    def promote(self) -> ConfigState:
        """The shadow's preset and settings live, what is live the shadow's; not for longer than this daemon lives.

        Raises ``ConfigError`` if there is no shadow.
        """
        if self.resolved.shadow is None:
            raise ConfigError("there is no shadow: name its preset under [shadow] in the configuration first")
        changed = {**self.source.promoted, **promoted(self.resolved.config, [*self.resolved.origins])}
        return self._attempt(replace(self.source, promoted=changed), "the shadow was promoted")

    def reload(self, why: str, content: bytes | None = None) -> ConfigState:
        """Read all of it again. A wrong one is refused, and what was in force stays so.

        ``content``: the file's, where it was read already.
        """
        return self._attempt(self.source, why, content)

    def _attempt(self, source: Source, why: str, content: bytes | None = None) -> ConfigState:
        try:
            wanted = source.read(again=True, content=content).for_a_daemon()
            config = keep_until_restart(self.resolved.config, wanted.config)
        except ConfigError as error:
            return self._refuse(error, why)
        waiting = tuple(change.key for change in changes(config, wanted.config))
        return self._install(source, replace(wanted, config=config), waiting, why)

    def _refuse(self, error: ConfigError, why: str) -> ConfigState:
        self.state = replace(self.state, refused=str(error), refusals=self.state.refusals + 1)
        self._log.error("refused", why=why, error=str(error), version=self.state.version)
        return self.state

    def _install(self, source: Source, resolved: Resolved, waiting: tuple[str, ...], why: str) -> ConfigState:
        found = changes(self.resolved.config, resolved.config)
        self.source, self.resolved = source, resolved
        self._stock = self._stock and resolved.config.as_stock
        version = self.state.version + bool(found)
        self.state = replace(self.state, version=version, refused="", until_restart=waiting)
        if found:
            self._take_over(self.config)
        self._log.info("reloaded", why=why, version=version, changes=[str(change) for change in found])
        if waiting:
            self._log.warning("not before a restart", keys=waiting)
        self._warn()
        return self.state

    async def watch(self) -> None:
        """Reload whenever the file's content changes. Its folder is watched, since editors replace files."""
        path = self.source.path
        if path is None:
            return
        before = _content(path)
        if path.exists() and is_stream(path):
            self._log.warning("not watched: no regular file", file=str(path))
            return
        over = Event()
        async with task_group() as group:
            group.start_soon(_set_when_cancelled, over)
            try:
                async for _ in watchfiles.awatch(
                    path.absolute().parent, recursive=False, debounce=_SETTLE_MS, step=_LOOK_MS, stop_event=over
                ):
                    now = await _settled(path)
                    if now != before:
                        before = now
                        content = None if isinstance(now, str) else now  # by now it may be written again
                        self.reload(f"{path} changed", content)
            except OSError as error:
                self._log.warning("not watched: send SIGHUP after a change", file=str(path), error=str(error))
                raise
            group.cancel_scope.cancel()


async def _set_when_cancelled(event: Event) -> None:
    """The thread that watches hears of its end by this alone, and else of nothing for up to five seconds."""
    try:
        await sleep_forever()
    finally:
        event.set()


async def _settled(path: Path) -> bytes | str:
    """The content once it is the same twice, or why there is none once that has been so for a while.

    An editor may still be writing, or have the file replaced.
    """
    seen, alike = _content(path), 0
    while alike < (_LOOKS_WITHOUT if isinstance(seen, str) else 1):
        await sleep(_LOOK_MS / 1000)
        again = _content(path)
        alike = alike + 1 if again == seen else 0
        seen = again
    return seen


def _content(path: Path) -> bytes | str:
    """What a reload would read, or why it would be refused."""
    try:
        return content_of(path, again=True)
    except ConfigError as error:
        return str(error)

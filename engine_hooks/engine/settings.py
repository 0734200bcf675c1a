"""What the plugin is told, by environment variables: an engine passes a plugin nothing else."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from controlplane.core.model.errors import ConfigError, require
from controlplane.gate import GateLimits
from controlplane.gate.repairs import repairs_in
from controlplane.gate.variables import GATE_VARIABLES, TENANT_HEADER_VARIABLE, limit_values, number
from controlplane.transport.endpoint import STATE_DIR_VARIABLE, URL_VARIABLE, resolve_url
from controlplane.transport.roles import BusRole
from controlplane.transport.subjects import check_name
from engine_hooks.guard import log

MODE_VARIABLE = "PENSTOCK_PLUGIN"
NODE_VARIABLE = "PENSTOCK_NODE"
PIN_BUDGET_VARIABLE = "PENSTOCK_PIN_BUDGET_RATIO"
TIMING_VARIABLE = "PENSTOCK_PLUGIN_TIMING"
CONTINUITY_VARIABLE = "PENSTOCK_PREFIX_IDENTITY"
ENGINE, GATE = "engine", "gate"


class PluginMode(StrEnum):
    """On: events, gate and pins. Probe: events only. Off: nothing, the engine stays as it was."""

    ON = "on"
    PROBE = "probe"
    OFF = "off"


def role_of(part: str, server_args: Any) -> str:
    """The role of a part of the server that listens on this port: a node may have several engines."""
    port = getattr(server_args, "port", None)
    return f"{part}-{port}" if isinstance(port, int) else part


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one plugin, checked when made. ``nats_url`` empty: the endpoint file tells the address.

    Raises ``ConfigError`` for a value out of its range.
    """

    mode: PluginMode = PluginMode.ON
    node: str = "local"
    nats_url: str = ""
    state_dir: Path | None = None
    pin_budget_ratio: float | None = None  # share of the KV pool that pins may take; None: the memory policy's
    continuity: bool = True  # compare contexts: who names nobody, and whether an id names one program
    tenant_header: str = ""  # in which whoever sends requests on says whose they are; empty: API keys tell
    repairs: frozenset[str] = frozenset()  # of prompts that would be computed again
    timed: bool = False  # measure the hooks and show that on the health page
    gate: GateLimits = field(default_factory=GateLimits)

    def __post_init__(self) -> None:
        check_name(self.node, field="node")
        if self.pin_budget_ratio is not None:
            require("pin_budget_ratio", self.pin_budget_ratio, low=0, high=1)

    @property
    def obeys(self) -> bool:
        """Whether commands of the daemon are obeyed; a probe only tells."""
        return self.mode is PluginMode.ON

    @property
    def bus(self) -> Callable[[], str]:
        """Tells the bus's address at each attempt to connect."""
        return resolve_url(self.nats_url or None, self.node, self.state_dir, role=BusRole.ENGINE)


def settings_from(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings that ``environment`` holds; a variable that is empty counts as absent.

    Raises ``ConfigError``, which names the variable.
    """
    texts = {name: value.strip() for name, value in environment.items() if value.strip()}
    state_dir = texts.get(STATE_DIR_VARIABLE)
    limits = limit_values(texts)
    ratio = number(texts, PIN_BUDGET_VARIABLE) if PIN_BUDGET_VARIABLE in texts else None
    mode = _mode(texts.get(MODE_VARIABLE, "on"))
    try:
        return Settings(
            mode=mode,
            node=texts.get(NODE_VARIABLE, "local"),
            nats_url=texts.get(URL_VARIABLE, ""),
            state_dir=Path(state_dir) if state_dir else None,
            pin_budget_ratio=ratio,
            continuity=_switch(texts, CONTINUITY_VARIABLE, default="1"),
            tenant_header=texts.get(TENANT_HEADER_VARIABLE, ""),
            repairs=repairs_in(texts),
            timed=_switch(texts, TIMING_VARIABLE),
            gate=GateLimits(**limits),
        )
    except ConfigError as error:
        variable = _variable_of(error.field)
        raise ConfigError(f"{variable}: {error}" if variable else str(error), field=variable) from error


def install_unless_off(install: Callable[[Settings], None]) -> None:
    """Install a plugin's parts. Never raises: what goes wrong is told in one line, the engine starts anyway."""
    try:
        settings = settings_from()
        if settings.mode is PluginMode.OFF:
            log.info("penstock: off")
        else:
            install(settings)
    except Exception as error:
        log.error("penstock: passive: %s", " ".join(str(error).split()) or type(error).__name__)
        log.debug("penstock: the cause", exc_info=True)


def _mode(text: str) -> PluginMode:
    try:
        return PluginMode(text.lower())
    except ValueError:
        raise ConfigError(f"{MODE_VARIABLE}: expected on, probe or off, got {text[:80]!r}") from None


def _switch(texts: Mapping[str, str], variable: str, default: str = "0") -> bool:
    text = texts.get(variable, default)
    if text not in ("0", "1"):
        raise ConfigError(f"{variable}: expected 0 or 1, got {text[:80]!r}", field=variable)
    return text == "1"


def _variable_of(name: str) -> str:
    """The variable that sets the field ``name``; empty where the field's name says enough."""
    own = {"node": NODE_VARIABLE, "pin_budget_ratio": PIN_BUDGET_VARIABLE}
    return own.get(name) or next((v for v, (limit, _) in GATE_VARIABLES.items() if limit == name), "")

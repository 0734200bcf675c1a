"""A fleet daemon's configuration: that of a node's daemon, with what a fleet does otherwise."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from controlplane.config import Config, Resolved, Source
from controlplane.core.policies.memory.lru import Lru
from controlplane.core.policies.presets import Preset, policy_name
from controlplane.core.policies.priority.fcfs import Fcfs
from controlplane.core.policies.protocols import RetentionPolicy
from controlplane.core.policies.retention.beyond_window import BeyondWindow
from controlplane.core.policies.retention.least_waste import LeastWaste
from controlplane.core.policies.retention.lend import Lend
from controlplane.core.policies.retention.never import Never
from controlplane.core.policies.retention.opportunistic import Opportunistic
from controlplane.core.policies.retention.tiers import Tiers
from controlplane.core.policies.retention.ttl import Ttl
from controlplane.core.policies.retention.watermarks import Watermarks

DEFAULT_NAME = "fleet"
_SILENCE = "control.silence"
# Engines sample their pools each second: one that says nothing for so long, and does not answer, is gone.
_ASK_AFTER_S, _ASK_EVERY_S, _ASK_TIMES = 5.0, 1.0, 3
_CONTEXTS: dict[type[Any], str] = {
    LeastWaste: "pins, swaps and discards",
    Lend: "prefetches",
    Opportunistic: "pins",
    Tiers: "moves to host memory and labels",
    Ttl: "pins",
}
"""By retention policy: what it does with contexts, which only a node's engines can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSource(Source):
    """As ``Source``, for a fleet."""

    def read(self, *, again: bool = False, content: bytes | None = None) -> Resolved:
        """As a node's; then the fleet's own name and patience, where nothing else is said, and ``slots_of``.

        What that leaves out is told with it.
        """
        resolved = Source.read(self, again=again, content=content)
        config, origins, shadow = resolved.config, resolved.origins, resolved.shadow
        silence = config.control.silence
        defaults = {
            "ask_publisher_after_s": _ASK_AFTER_S,
            "ask_publisher_every_s": _ASK_EVERY_S,
            "ask_publisher_times": _ASK_TIMES,
        }
        missing = {key: value for key, value in defaults.items() if f"{_SILENCE}.{key}" not in origins}
        named = replace(
            config,
            node=config.node if "node" in origins else DEFAULT_NAME,
            control=replace(config.control, silence=replace(silence, **missing)),  # type: ignore[arg-type]
        )
        return replace(
            resolved,
            config=_of_a_fleet(named),
            shadow=None if shadow is None else _of_a_fleet(shadow),
            left_to_nodes=tuple(left_to_nodes(config.policies)),
        )


def _of_a_fleet(config: Config) -> Config:
    policies = config.policies
    return replace(config, policies=replace(policies, retention=slots_of(policies.retention)))


def slots_of(policy: RetentionPolicy[Any]) -> RetentionPolicy[Any]:
    """What a fleet does of the policy: it takes slots back, so that turns wait at its gate, and moves no context.

    Contexts are the nodes', to whom a fleet sends no commands (docs/adr/0049).
    """
    match policy:
        case Watermarks() | BeyondWindow() | Never():
            return policy
        case Tiers():
            return replace(policy, moves=False)
        case _:
            return Lend() if policy.lends else Never()


def left_to_nodes(preset: Preset) -> Iterator[str]:
    """What the preset does that a fleet leaves to nodes that run it, too; in words."""
    retention = preset.retention
    if slots_of(retention) != retention:
        yield f"{_CONTEXTS[type(retention)]} (retention {policy_name('retention', retention)})"
    if preset.priority != Fcfs():
        yield f"the order of the engine's queue (priority {policy_name('priority', preset.priority)})"
    if not isinstance(preset.memory, Lru):
        yield f"the order of eviction (memory {policy_name('memory', preset.memory)})"

"""A fleet daemon's configuration: that of a node's daemon, with what a fleet does otherwise."""

from dataclasses import dataclass, replace

from controlplane.config import Resolved, Source
from controlplane.core.policies.retention.lend import Lend
from controlplane.core.policies.retention.never import Never

DEFAULT_NAME = "fleet"
_SILENCE = "control.silence"
# Engines sample their pools each second: one that says nothing for so long, and does not answer, is gone.
_ASK_AFTER_S, _ASK_EVERY_S, _ASK_TIMES = 5.0, 1.0, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSource(Source):
    """As ``Source``, for a fleet."""

    def read(self, *, again: bool = False, content: bytes | None = None) -> Resolved:
        """As a node's; then the fleet's own name and patience, where nothing else is said, and no retention.

        Nodes retain contexts, and the fleet sends them no commands; slots it lends as they do (docs/adr/0049).
        """
        resolved = Source.read(self, again=again, content=content)
        config, origins = resolved.config, resolved.origins
        silence = config.control.silence
        defaults = {
            "ask_publisher_after_s": _ASK_AFTER_S,
            "ask_publisher_every_s": _ASK_EVERY_S,
            "ask_publisher_times": _ASK_TIMES,
        }
        missing = {key: value for key, value in defaults.items() if f"{_SILENCE}.{key}" not in origins}
        return replace(
            resolved,
            config=replace(
                config,
                node=config.node if "node" in origins else DEFAULT_NAME,
                control=replace(config.control, silence=replace(silence, **missing)),  # type: ignore[arg-type]
                policies=replace(config.policies, retention=Lend() if config.policies.retention.lends else Never()),
            ),
        )

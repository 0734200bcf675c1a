"""What the engine double may be told."""

from collections.abc import Callable
from dataclasses import dataclass, field

from controlplane.core.model.errors import require
from controlplane.gate import GateLimits
from controlplane.lab.double.script import Script
from controlplane.lab.experiment import Hardware

MODEL_NAME = "penstock-engine-double"


@dataclass(frozen=True, slots=True, kw_only=True)
class DoubleOptions:
    """Options of one engine double, checked when made.

    ``bus`` is the NATS address or a callable that tells it; None: no events leave and no command comes, so
    the gate lets everything pass. ``time_scale``: engine time runs this much faster than the wall; every time
    that the double reports or is given is engine time. ``tokens_per_word``: tokens that one word of a prompt
    or reply stands for.

    Raises ``ConfigError`` for a value out of its range.
    """

    host: str = "127.0.0.1"
    port: int = 30000  # 0: any free one
    bus: str | Callable[[], str] | None = None
    node: str = "local"
    hardware: Hardware = field(default_factory=Hardware)  # one engine of it
    time_scale: float = 1.0
    tokens_per_word: int = 1
    script: Script = field(default_factory=dict)  # what chat completions say; without: words alone
    gate: GateLimits | None = None  # its time_scale is replaced by this double's
    grace_s: float = 2.0  # at the end, how long open replies may go on; seconds of the wall
    on_ready: Callable[[str], None] | None = None  # told the URL once the server listens

    def __post_init__(self) -> None:
        require("port", self.port, low=0, high=65_535)
        require("time_scale", self.time_scale, low=0, high=1000, ends="(]")
        require("tokens_per_word", self.tokens_per_word, low=1, high=1_000_000)
        require("grace_s", self.grace_s, low=0, high=3600)

"""What a replay can be told."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from controlplane.core.model.errors import ConfigError, require
from controlplane.core.model.types import Pressure
from controlplane.lab.experiment import Workload
from controlplane.lab.load.client import Identity
from controlplane.lab.load.tools import ToolOptions
from controlplane.lab.workload.arrivals import Arrival, Recorded
from controlplane.lab.workload.patience import GIVE_UP_S
from controlplane.lab.workload.telemetry import Telemetry
from controlplane.lab.workload.trace import Trace

INFINITY = float("inf")
IDENTITIES = ("header", "body", "none")
TOOL_ROLES = ("tool", "user")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_SHORTEST_SECRET = 8  # characters: a shorter word may be any


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The controller at one instant, as whoever watches the daemon saw it."""

    pressure: Pressure
    window: float
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """A replay of ``trace`` against ``url``; times ending in ``_s`` are trace time unless they say ``wall``.

    Raises ``ConfigError`` for a value out of range.
    """

    trace: Trace  # already scaled as ``workload`` says
    url: str  # with or without /v1
    arrival: Arrival | Recorded
    workload: Workload = field(
        default_factory=lambda: Workload(trace="")
    )  # what the trace's programs share and tell
    label: str = "replay"
    preset: str = ""
    seed: int = 0
    run_id: str = ""  # in every program's id, which seeds its words; empty: another one each time
    model: str = ""  # empty: the first that the endpoint lists
    api_key: str = field(default="", repr=False)  # as a bearer token; sent to ``url`` alone
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # of each request, beside ours
    identity: Identity = "header"
    first_come: bool = False  # each request has its program's number in order of arrival as its "priority"
    give_up_after_s: float = GIVE_UP_S  # a turn whose every attempt meets a 429 or 503
    tokens_per_word: int = 1
    tool_role: str = "tool"  # "user" for chat templates that refuse a tool message without a call
    tools: ToolOptions = field(default_factory=ToolOptions)
    time_scale: float = 1.0
    nats: str | Callable[[], str] | None = None  # None: nothing is reported, whatever the telemetry
    node: str = "local"
    observe: Callable[[], Observation | None] | None = None
    ideal_ns: Mapping[str, int] = field(default_factory=dict)  # by the trace's program id
    facts: Mapping[str, str] = field(default_factory=dict)  # what else the result should say

    def __post_init__(self) -> None:
        require("time_scale", self.time_scale, low=0, high=INFINITY, ends="()")
        require("tokens_per_word", self.tokens_per_word, low=1, high=INFINITY)
        _one_of("identity", self.identity, IDENTITIES)
        _one_of("tool_role", self.tool_role, TOOL_ROLES)
        if self.identity == "none" and self.workload.telemetry is Telemetry.TURNS:
            raise ConfigError("telemetry: no gate reads the replies of programs without a name", field="telemetry")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(f"url: expected http://HOST:PORT or https://…, got {self.shown_url!r}", field="url")
        if not self.trace.programs:
            raise ConfigError("trace: no program to replay", field="trace")

    @property
    def base_url(self) -> str:
        """Of an endpoint that is given with /v1, with the whole path of its chat completions, or without."""
        return self.url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")

    @property
    def shown_url(self) -> str:
        """The URL as it may be shown: without a password."""
        scheme, _, rest = self.url.partition("://")
        host, slash, path = rest.partition("/")
        return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"

    @property
    def sent_headers(self) -> dict[str, str]:
        """The headers of each request: whoever names ``authorization`` has it instead of the key."""
        has_login = "@" in self.url.partition("://")[2].partition("/")[0]
        key = {"authorization": f"Bearer {self.api_key}"} if self.api_key and not has_login else {}
        return key | {name.lower(): value for name, value in self.headers.items()}

    def without_secrets(self, text: str) -> str:
        """The text, in which an endpoint may have repeated what it was sent, without keys."""
        secrets = {self.api_key, *" ".join(self.headers.values()).split()}
        for secret in sorted(secrets, key=len, reverse=True):
            text = text.replace(secret, "***") if len(secret) >= _SHORTEST_SECRET else text
        return text


def header_of(text: str) -> tuple[str, str]:
    """A header as curl takes it, ``Name: value``. Raises ``ConfigError``, which does not repeat the value."""
    name, colon, value = text.partition(":")
    if not colon or not _HEADER_NAME.fullmatch(name.strip()) or not value.strip().isprintable():
        raise ConfigError('header: expected "NAME: VALUE", a name of letters, digits and hyphens', field="header")
    return name.strip(), value.strip()


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}", field=name)

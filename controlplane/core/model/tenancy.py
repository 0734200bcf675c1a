"""Who is a tenant, and what each may have: weights, floors and budgets, as they are configured.

A tenant is known by what its gate vouches for: the digest of the API key that came with a request, or a header that
the gate was told to believe. Whoever is in no table shares ``default``, so that there are never more tenants than
the configuration names (docs/adr/0057).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from controlplane.core.model.errors import ConfigError, require

DEFAULT_TENANT = "default"
"""The tenant of everybody who is in no table."""
MOST_TENANTS = 256
KEY_DIGEST = "sha256:"
"""Before the hexadecimal digits of a key's digest."""
_DIGITS = 64
_ANY = float("inf")


class Exhausted(StrEnum):
    """What a tenant gets whose budget is spent: its turns wait for the next window, or are refused until then."""

    QUEUE = "queue"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant's table. A budget of 0 is none. Raises ``ConfigError`` for a value out of its range."""

    keys: tuple[str, ...] = ()  # digests of its API keys: sha256: and 64 hexadecimal digits
    weight: float = 1.0  # of its part of KV memory x time, beside the others that wait
    share: float = 0.0  # of the KV pool that it gets back at others' turns' ends when it waits; 0: no floor
    window_s: float = 3600.0  # for which the two budgets below hold; then they begin anew
    kv_token_s: float = 0.0  # budget: KV tokens x seconds that its programs hold in a window; 0: none
    turns: int = 0  # budget: turns in a window; 0: none
    exhausted: Exhausted = Exhausted.QUEUE  # queue: its turns wait for the next window; refuse: they get a 429
    program_kv_token_s: float = 0.0  # budget of one run with all its children; 0: none
    program_turns: int = 0  # likewise, in turns

    def __post_init__(self) -> None:
        for key in self.keys:
            digits = key.removeprefix(KEY_DIGEST)
            if not key.startswith(KEY_DIGEST) or len(digits) != _DIGITS or not _is_hexadecimal(digits):
                what = f"expected {KEY_DIGEST} and {_DIGITS} hexadecimal digits, got {key[:80]!r}"
                raise ConfigError(f"{what}; printf %s KEY | sha256sum tells them", field="keys")
        require("weight", self.weight, low=0, high=1_000_000, ends="(]")
        require("share", self.share, low=0, high=1)
        require("window_s", self.window_s, low=1, high=31_536_000)
        require("kv_token_s", self.kv_token_s, low=0, high=_ANY, ends="[)")
        require("turns", self.turns, low=0, high=1_000_000_000)
        require("program_kv_token_s", self.program_kv_token_s, low=0, high=_ANY, ends="[)")
        require("program_turns", self.program_turns, low=0, high=1_000_000_000)


USUAL = Tenant()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """All tenants by name. Raises ``ConfigError`` where two share a key, or floors promise more than there is."""

    named: Mapping[str, Tenant] = field(default_factory=lambda: MappingProxyType({}))
    _of_key: dict[str, str] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.named) > MOST_TENANTS:
            raise ConfigError(f"expected at most {MOST_TENANTS} tenants, got {len(self.named)}", field="tenants")
        for name, tenant in self.named.items():
            for key in tenant.keys:
                other = self._of_key.setdefault(key.lower(), name)
                if other != name:
                    raise ConfigError(f"tenants {other!r} and {name!r} have one key: {key}", field="tenants")
        if (promised := sum(tenant.share for tenant in self.named.values())) > 1.0 + 1e-9:
            raise ConfigError(f"expected shares that sum to at most 1, got {promised:g}", field="tenants")

    @property
    def on(self) -> bool:
        """Whether anything is kept by tenant: some table is there."""
        return bool(self.named)

    def name_of(self, account: str) -> str:
        """The tenant of what a gate vouches for: a key's digest, or a name."""
        name = self._of_key.get(account, account) if account.startswith(KEY_DIGEST) else account
        return name if name in self.named else DEFAULT_TENANT

    def of(self, name: str) -> Tenant:
        """That tenant's table; that of ``default``, where there is none, has no floor and no budget."""
        return self.named.get(name, USUAL)

    @property
    def has_budgets(self) -> bool:
        """Whether some tenant, or the runs of one, may hold no more than so much memory for so long."""
        return any(tenant.kv_token_s or tenant.program_kv_token_s for tenant in self.named.values())

    @property
    def has_floors(self) -> bool:
        """Whether some tenant gets a share back that others have borrowed."""
        return any(tenant.share for tenant in self.named.values())


def _is_hexadecimal(digits: str) -> bool:
    return all(digit in "0123456789abcdefABCDEF" for digit in digits)

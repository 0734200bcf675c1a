"""Whose programs a simulated run has: tenants by weight, each with its part of the programs and its floor."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.model.types import NANOSECONDS_PER_SECOND
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.summary import jain

_ONE = re.compile(r"(?P<weight>\d+(\.\d+)?)(@(?P<part>\d+(\.\d+)?))?(%(?P<floor>\d+(\.\d+)?))?")
_Times = NDArray[np.float64]
_STREAM = 57  # of random numbers: which program is whose does not hang on when programs arrive


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Tenants ``t1``, ``t2`` and so on: what they may have, and which part of the programs is whose."""

    tenancy: Tenancy = field(default_factory=Tenancy)
    parts: tuple[float, ...] = ()  # sum to 1

    @property
    def names(self) -> tuple[str, ...]:
        """The tenants', in the order in which they were given."""
        return tuple(self.tenancy.named)

    def draw(self, programs: int, seed: int) -> tuple[str, ...]:
        """Whose each of so many programs is, at random; nobody's where there are no tenants."""
        if not self.parts:
            return ("",) * programs
        drawn = np.random.default_rng([seed, _STREAM]).choice(len(self.parts), size=programs, p=self.parts)
        return tuple(self.names[index] for index in drawn)


def parse_owners(text: str) -> Owners:
    """Read ``3:1`` or ``3@9:1@1%25``: WEIGHT, @PART of the programs, %FLOOR of the pool. Raises ``ConfigError``."""
    if not text:
        return Owners()
    named, parts = {}, []
    for number, one in enumerate(text.split(":"), start=1):
        found = _ONE.fullmatch(one)
        if found is None:
            what = 'expected WEIGHT[@PART][%FLOOR] for each tenant, as "3:1" or "3@9:1@1%25"'
            raise ConfigError(f"tenants: {what}, got {text!r}", field="tenants")
        named[f"t{number}"] = Tenant(weight=float(found["weight"]), share=float(found["floor"] or 0) / 100)
        parts.append(float(found["part"] or 1))
    total = sum(parts)
    if total <= 0:
        raise ConfigError(f"tenants: expected some tenant to have programs, got {text!r}", field="tenants")
    return Owners(tenancy=Tenancy(named=named), parts=tuple(part / total for part in parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantResult:
    """What one tenant got in a run."""

    tenant: str
    weight: float
    programs: int  # that ended well
    jct_mean_s: float
    jct_p95_s: float
    kv_share: float  # of KV tokens x seconds in the engine, while all had held turns and programs still came
    fair_share: float  # of the weights of all
    contended_s: float  # for how long that was so


def by_tenant(
    programs: Sequence[ProgramRecord], turns: Sequence[TurnRecord], tenancy: Tenancy
) -> tuple[TenantResult, ...]:
    """Each tenant's figures, in the configuration's order; none where there are no tenants."""
    if not tenancy.on:
        return ()
    whose = {program.program_id: program.tenant for program in programs}
    until_ns = max((program.arrived_ns for program in programs), default=0)
    times = _contended(turns, whose, list(tenancy.named), until_ns)
    held = _kv_token_s(turns, whose, times)
    total, weights = sum(held.values()), sum(tenant.weight for tenant in tenancy.named.values())
    contended_s = float((times[:, 1] - times[:, 0]).sum()) / NANOSECONDS_PER_SECOND
    return tuple(
        TenantResult(
            tenant=name,
            weight=tenant.weight,
            **_completions(programs, name),
            kv_share=held.get(name, 0.0) / total if total else 0.0,
            fair_share=tenant.weight / weights,
            contended_s=contended_s,
        )
        for name, tenant in tenancy.named.items()
    )


def _completions(programs: Sequence[ProgramRecord], tenant: str) -> dict[str, Any]:
    """How many of the tenant's programs ended well, and what they took."""
    ended = [program for program in programs if program.tenant == tenant and not program.failed]
    jct_s = np.asarray([program.completion_ns for program in ended], dtype=np.float64) / NANOSECONDS_PER_SECOND
    return {
        "programs": len(ended),
        "jct_mean_s": float(jct_s.mean()) if ended else 0.0,
        "jct_p95_s": float(np.percentile(jct_s, 95)) if ended else 0.0,
    }


def _contended(
    turns: Sequence[TurnRecord], whose: Mapping[str, str], names: Sequence[str], until_ns: int
) -> _Times:
    """When at least one turn of each tenant was held: beginnings and ends, in ns, ascending.

    Until the last program arrived: a tenant whose last ones wait may not ask for its part any more.
    """
    changes: list[tuple[int, int, str]] = []
    for turn in turns:
        if turn.hold_ns > 0 and turn.program_id in whose:
            changes.append((turn.queued_ns, 1, whose[turn.program_id]))
            changes.append((turn.queued_ns + turn.hold_ns, -1, whose[turn.program_id]))
    held, since_ns, times = Counter[str](), -1, []
    for at_ns, by, name in sorted(changes):
        held[name] += by
        all_wait = all(held[each] for each in names)
        if all_wait and since_ns < 0:
            since_ns = at_ns
        elif not all_wait and since_ns >= 0:
            times.append((since_ns, at_ns))
            since_ns = -1
    within = [(since_ns, min(ended_ns, until_ns)) for since_ns, ended_ns in times if since_ns < until_ns]
    return np.asarray(within, dtype=np.float64).reshape(-1, 2)


def _kv_token_s(turns: Sequence[TurnRecord], whose: Mapping[str, str], times: _Times) -> dict[str, float]:
    """By tenant: tokens of contexts times the seconds, of those ``times``, that their turns were in the engine."""
    before = np.concatenate([[0.0], np.cumsum(times[:, 1] - times[:, 0])])

    def until(at_ns: int) -> float:
        """How much of the times has passed."""
        index = int(np.searchsorted(times[:, 0], at_ns))
        return float(before[index] - (max(0.0, times[index - 1, 1] - at_ns) if index else 0.0))

    held = dict.fromkeys(whose.values(), 0.0)
    for turn in turns:
        if turn.admitted_ns is not None and turn.program_id in whose:
            ran_ns = until(turn.ended_ns) - until(turn.admitted_ns)
            tokens = turn.prompt_tokens + turn.output_tokens
            held[whose[turn.program_id]] += ran_ns * tokens / NANOSECONDS_PER_SECOND
    return held


def jain_of(results: Sequence[TenantResult]) -> float:
    """Jain's index over what the tenants got for their weights; 1: all alike; 0 where nobody got anything."""
    return jain([result.kv_share / result.weight for result in results]) or 0.0

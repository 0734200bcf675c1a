"""Pin a context through its tool call for as long as that is worth more than the memory costs.

**Paper**: Continuum §4.1–4.2. Of the utility of a pin (eq. 1) the program's share of memory cancels out (eq. 2):

    ttl = argmax over tau of  P(tau, tool) * (T * eta + Prefill-Reload) - tau

over 0 and the durations seen of the tool; P is their empirical distribution.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log

from controlplane.core.estimators.workload import Estimates, as_seconds
from controlplane.core.model.commands import Command, Release, Retain
from controlplane.core.model.errors import require
from controlplane.core.model.types import NANOSECONDS_PER_SECOND, Pressure, Program, Status, seconds
from controlplane.core.policies.facts import return_price
from controlplane.core.policies.protocols import NoState, RetentionPolicy, Stateless

_DAY_NS = seconds(86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ttl(NoState, RetentionPolicy[Stateless]):
    """``cold_start`` is the paper's K, ``ttl_max_s`` bounds every pin.

    ``learned`` false: T_default for every pin, whatever was seen (the ablation "Static TTL", Figure 15); or
    ``static_s`` for every pin, where that is not 0 (the threshold of AgentServeSim §6.3).
    """

    cold_start: int = 100
    ttl_max_s: float = 600.0
    learned: bool = True
    static_s: float = 0.0

    def __post_init__(self) -> None:
        require_ttl_rules(self.cold_start, self.ttl_max_s)
        require("static_s", self.static_s, low=0, high=self.ttl_max_s)

    def plan(
        self,
        state: Stateless,
        programs: Mapping[str, Program],
        changed: Sequence[Program],
        facts: Estimates,
        pressure: Pressure,
        now_ns: int,
    ) -> tuple[Stateless, Sequence[Command]]:
        def choose(program: Program) -> tuple[int, str]:
            if self.static_s:
                return seconds(self.static_s), "static"
            reload_ns = _reload_ns(program, facts)
            if self.learned:
                return choose_ttl(program, facts, reload_ns=reload_ns, cost=1.0, cold_start=self.cold_start)
            return default_ttl_ns(facts.eviction_delay_ns + reload_ns, cost=1.0), "T_default"

        return state, pins(changed, now_ns, seconds(self.ttl_max_s), choose)


def _reload_ns(program: Program, facts: Estimates) -> int:
    """Prefill-Reload (§4.1): a new prefill, or the way back from below the device, as both were seen to take."""
    return round(facts.prefill_ns(program.context_tokens) * return_price(facts, facts.host_hit_ratio))


def require_ttl_rules(cold_start: int, ttl_max_s: float) -> None:
    """Raises ``ConfigError``."""
    require("cold_start", cold_start, low=0, high=255)  # fewer than the durations that are kept
    require("ttl_max_s", ttl_max_s, low=0, high=86_400, ends="(]")


def beginning_to_act(changed: Iterable[Program], now_ns: int) -> Iterable[Program]:
    """Those of ``changed`` whose context may be pinned now: they hold a slot, and no turn or pin does."""
    for program in changed:
        if program.status is not Status.ACTIVE or program.open_turns or program.quarantined:
            continue
        if program.delegating:
            continue  # it waits for a child, which needs the room
        yield program


def pins(
    changed: Iterable[Program],
    now_ns: int,
    longest_ns: int,
    choose: Callable[[Program], tuple[int, str]],
) -> list[Command]:
    """Pins for programs that begin to act, each for as long as ``choose`` says (ns; 0: not at all), and why."""
    commands: list[Command] = []
    for program in beginning_to_act(changed, now_ns):
        ttl_ns, why = choose(program)
        ttl_ns = min(ttl_ns, longest_ns) - (now_ns - program.gap_since_ns if program.gap_since_ns else 0)
        if ttl_ns > 0:
            commands.append(Retain(program_id=program.program_id, ttl_ns=ttl_ns, reason=why))
        elif program.retained_until_ns > now_ns:  # decided before its tool was known
            commands.append(Release(program_id=program.program_id, reason=why))
    return commands


def choose_ttl(
    program: Program, facts: Estimates, *, reload_ns: int, cost: float, cold_start: int
) -> tuple[int, str]:
    """How long to pin ``program`` (ns, 0 for not at all), and why.

    ``reload_ns``: what it takes to have its context back; ``cost``: of a second of its memory, in seconds. At
    most ``cold_start`` tool calls seen: T_default; so few of this tool: the durations of all tools count.
    """
    seen = facts.gaps_ns("")
    if len(seen) <= cold_start:
        default_ns = default_ttl_ns(facts.eviction_delay_ns + reload_ns, cost)  # eta is taken as 1
        return default_ns, f"cold start: {len(seen)} tool calls seen"
    benefit_ns = facts.eviction_delay_ns * facts.memoryfulness + reload_ns
    own = facts.gaps_ns(program.gap_tool) if program.gap_tool else ()
    if len(own) > cold_start:
        seen = own
    return best_ttl_ns(seen, benefit_ns, cost), (
        f"{program.gap_tool or 'silence'}: warm return worth {as_seconds(round(benefit_ns)):.2f}s, "
        f"memory costs {cost:.2f} of its time"
    )


def best_ttl_ns(durations_ns: Sequence[int], benefit_ns: float, cost: float) -> int:
    """argmax of P(tau) * benefit - tau * cost over 0 and ``durations_ns`` (ascending); ties take the shorter."""
    best_ns, best_net = 0, 0.0
    count = len(durations_ns)
    for rank, duration_ns in enumerate(durations_ns, start=1):
        net = rank / count * benefit_ns - duration_ns * cost
        if net > best_net:
            best_ns, best_net = duration_ns, net
    return best_ns


def default_ttl_ns(benefit_ns: int, cost: float) -> int:
    """T_default (§4.2): durations taken as Exp(1 s).

    (1 - exp(-tau)) * benefit - tau * cost is greatest at tau = ln(benefit / cost), all in seconds.
    """
    benefit_s = benefit_ns / NANOSECONDS_PER_SECOND
    if benefit_s <= cost:
        return 0
    return seconds(log(benefit_s / cost)) if cost > 0 else _DAY_NS

"""What the controller sees: the load of each interval, once in it, and the pressure at each tick."""

from controlplane.core.estimators.demand_curve import demand
from controlplane.core.estimators.idleness import Decay
from controlplane.core.estimators.workload import as_seconds
from controlplane.core.ledger.turns import Signals
from controlplane.core.model.events import HostSampled, PoolSampled
from controlplane.core.model.types import Pressure, seconds
from controlplane.core.policies.caps import MOST_RECOMPUTED
from controlplane.core.scheduling.demand import demand_blocks, engine_demand, growth, sample_weight
from controlplane.core.scheduling.overload import IntervalLoad, detect
from controlplane.core.scheduling.rules_and_state import ControllerState, ControlRules

_NO_POOL = PoolSampled(total_blocks=0, free_blocks=0)
_NO_HOST = HostSampled(cpus=0.0)


def sense(state: ControllerState, rules: ControlRules, decay: Decay | None, now_ns: int) -> None:
    """Judge the load of the interval that ended."""
    ledger = state.ledger
    host, signals = ledger.tools.host or _NO_HOST, ledger.turns.signals
    active = ledger.programs.charges.active_roots
    if ledger.programs.queue:
        ledger.estimates.departures.passed(seconds(rules.interval_s))
    tools = ledger.tools.active + ledger.tools.waiting
    ledger.estimates.running.add(len(ledger.turns.running))
    if active:
        ledger.estimates.tools_per_program.add(tools / active)
    load = IntervalLoad(
        tools=tools,
        cpus=host.cpus,
        slowdown_ratio=ledger.estimates.slowdown_ratio,
        cpu_use_ratio=host.cpu_use_ratio,
        cpu_stall_ratio=host.cpu_stall_ratio,
        kv_use_ratio=_fullness(state, _use_ratio(state, demand_blocks(ledger, decay, now_ns))),
        retractions=0 if _kept_below(state) else signals.retractions,
        cold_returns=signals.cold_returns,
    )
    ledger.turns.signals = Signals()
    state.tools_beyond = 0
    state.overload = detect(state.overload, load, rules.overload)


def observe(state: ControllerState, rules: ControlRules, decay: Decay | None, now_ns: int) -> Pressure:
    """Both sides of the machine as they are now."""
    ledger = state.ledger
    pool, host = ledger.engines.pool or _NO_POOL, ledger.tools.host or _NO_HOST
    charges, tools, estimates = ledger.programs.charges, ledger.tools, ledger.estimates
    demanded_blocks, queued = demand_blocks(ledger, decay, now_ns), len(ledger.programs.queue)
    use_ratio = _use_ratio(state, demanded_blocks)
    return Pressure(
        observed_at_ns=now_ns,
        interval_ends_ns=state.interval_ends_ns,
        kv_total_blocks=pool.total_blocks,
        kv_free_blocks=pool.free_blocks,
        kv_evictable_blocks=pool.evictable_blocks,
        kv_retained_blocks=pool.retained_blocks,
        kv_demand_blocks=demanded_blocks,
        kv_lent_blocks=charges.lent_blocks,
        kv_use_ratio=use_ratio,
        running_blocks=ledger.turns.running_blocks,
        kv_forecast_blocks=_forecast(state, rules, now_ns) if queued else (),
        host_total_blocks=pool.host_total_blocks,
        host_used_blocks=pool.host_used_blocks,
        tools_active=tools.active,
        tools_waiting=tools.waiting,
        tool_wait_s=as_seconds(round(estimates.tool_wait.value)),
        tools_per_program=estimates.tools_per_program.value,
        tool_slowdown_ratio=estimates.slowdown_ratio,
        cpus=host.cpus,
        cpu_use_ratio=host.cpu_use_ratio,
        cpu_stall_ratio=host.cpu_stall_ratio,
        programs_active=charges.active_roots,
        window_limit=state.window.limit,
        queue_length=queued,
        queued_blocks_mean=charges.queued_blocks / queued if queued else 0.0,
        cpu_overloaded=state.overload.cpu,
        kv_overloaded=state.overload.kv,
        kv_has_slack=_fullness(state, use_ratio) < rules.overload.kv_slack,
        replicas=engine_demand(ledger, decay, now_ns) if charges.several else (),
    )


def _use_ratio(state: ControllerState, blocks: int) -> float:
    pool = state.ledger.engines.pool or _NO_POOL
    return blocks / pool.total_blocks if pool.total_blocks else 0.0


def _fullness(state: ControllerState, use_ratio: float) -> float:
    """What overload is judged by: where contexts are cheap to compute again, the pool may well be overfull."""
    return use_ratio / (1.0 + state.window.excess_now_ratio)


def _kept_below(state: ControllerState) -> bool:
    """Whether what is thrown out of the pool is likely to be had from memory below it, for little."""
    return state.window.excess_now_ratio > MOST_RECOMPUTED


def _forecast(state: ControllerState, rules: ControlRules, now_ns: int) -> tuple[int, ...]:
    """What the active programs will need until they end; anew when one came or went, or an interval ended.

    Among very many it is anew when as many did as each of its sample stands for.
    """
    programs, interval = state.ledger.programs, now_ns // seconds(rules.interval_s)
    changes_then, interval_then = state.forecast_key
    since = programs.active_changes - changes_then
    if interval != interval_then or not 0 <= since < sample_weight(state.ledger):
        state.forecast_key = programs.active_changes, interval
        state.forecast = demand(growth(state.ledger, returning=rules.trees.keep), programs.shared_blocks)
    return state.forecast

"""What a run looked like over time: samples of the controller's pressure and window."""

from dataclasses import dataclass, field, fields

from controlplane.core.model.types import Pressure

_OF_PRESSURE = {"active": "programs_active", "queue": "queue_length"}


@dataclass(slots=True, kw_only=True)
class Series:
    """Columns of equal length, sampled together, most of them of the pressure by its fields' names.

    ``t_ns`` counts from the start of the run.
    """

    t_ns: list[int] = field(default_factory=list)
    window: list[float] = field(default_factory=list)  # before the caps
    limit: list[int] = field(default_factory=list)  # 0: none
    active: list[int] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    kv_use_ratio: list[float] = field(default_factory=list)  # demand of the active programs / pool
    kv_demand_blocks: list[int] = field(default_factory=list)
    kv_free_blocks: list[int] = field(default_factory=list)
    kv_evictable_blocks: list[int] = field(default_factory=list)
    kv_total_blocks: list[int] = field(default_factory=list)
    kv_imbalance_ratio: list[float] = field(default_factory=list)  # pool in use: fullest engine's less emptiest's
    tools_active: list[int] = field(default_factory=list)
    tools_waiting: list[int] = field(default_factory=list)
    tool_slowdown_ratio: list[float] = field(default_factory=list)
    cpu_use_ratio: list[float] = field(default_factory=list)
    cpu_overloaded: list[bool] = field(default_factory=list)
    kv_overloaded: list[bool] = field(default_factory=list)

    def sample(
        self, t_ns: int, pressure: Pressure, *, window: float, limit: int, imbalance_ratio: float = 0.0
    ) -> None:
        """Append one row."""
        own = {"t_ns": t_ns, "window": window, "limit": limit, "kv_imbalance_ratio": imbalance_ratio}
        for column in fields(self):
            name = _OF_PRESSURE.get(column.name, column.name)
            getattr(self, column.name).append(own[name] if name in own else getattr(pressure, name))

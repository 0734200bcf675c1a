"""What a run looked like over time: samples of the controller's pressure and window."""

from dataclasses import dataclass, field

from controlplane.core.types import Pressure


@dataclass(slots=True, kw_only=True)
class Series:
    """Columns of equal length, sampled together. ``t_ns`` counts from the start of the run."""

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
    tools_active: list[int] = field(default_factory=list)
    tools_waiting: list[int] = field(default_factory=list)
    tool_slowdown_ratio: list[float] = field(default_factory=list)
    cpu_use_ratio: list[float] = field(default_factory=list)
    cpu_overloaded: list[bool] = field(default_factory=list)
    kv_overloaded: list[bool] = field(default_factory=list)

    def sample(self, t_ns: int, pressure: Pressure, *, window: float, limit: int) -> None:
        """Append one row."""
        self.t_ns.append(t_ns)
        self.window.append(window)
        self.limit.append(limit)
        self.active.append(pressure.programs_active)
        self.queue.append(pressure.queue_length)
        self.kv_use_ratio.append(pressure.kv_use_ratio)
        self.kv_demand_blocks.append(pressure.kv_demand_blocks)
        self.kv_free_blocks.append(pressure.kv_free_blocks)
        self.kv_evictable_blocks.append(pressure.kv_evictable_blocks)
        self.kv_total_blocks.append(pressure.kv_total_blocks)
        self.tools_active.append(pressure.tools_active)
        self.tools_waiting.append(pressure.tools_waiting)
        self.tool_slowdown_ratio.append(pressure.tool_slowdown_ratio)
        self.cpu_use_ratio.append(pressure.cpu_use_ratio)
        self.cpu_overloaded.append(pressure.cpu_overloaded)
        self.kv_overloaded.append(pressure.kv_overloaded)

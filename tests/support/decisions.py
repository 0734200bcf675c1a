"""Records of a decision log."""

from typing import Any

from controlplane.wire.decisions import DecisionRecord, Numbers, RunRecord

NUMBERS = Numbers(
    limit=2,
    window=2.0,
    active=1,
    waiting=0,
    kv_use_ratio=0.5,
    cpu_use_ratio=0.1,
    tools_active=0,
    tool_slowdown_ratio=1.0,
)


def decided(program_id: str, **values: Any) -> DecisionRecord:
    """An admission, but for ``values``."""
    known = {"at": "2026-01-01T10:00:00.000", "now_ns": 1, "number": 1, "kind": "admit", "reason": "a slot is free"}
    more = {"rule": "preset fcfs", "values": {}, "numbers": NUMBERS}
    return DecisionRecord(program_id=program_id, **{**known, **more, **values})


def ran(name: str, parent: str, began_s: float, ended_s: float, turns: int = 3) -> RunRecord:
    """A run that has ended."""
    times = {"began_ns": round(began_s * 1e9), "ended_ns": round(ended_s * 1e9)}
    return RunRecord(at="", program_id=name, parent_id=parent, turns=turns, **times)

"""Figures of policies and rules that cannot be: each is refused by its name."""

from typing import Any

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.tenancy import Tenancy, Tenant
from controlplane.core.policies.admission.aimd import Aimd
from controlplane.core.policies.admission.capacity import Capacity
from controlplane.core.policies.admission.concur import Concur
from controlplane.core.policies.admission.fixed import Fixed
from controlplane.core.policies.packing.least_left import LeastLeft
from controlplane.core.policies.packing.pressure_aware import PressureAware
from controlplane.core.policies.placement.prefix import Prefix
from controlplane.core.policies.placement.session import Session
from controlplane.core.policies.priority.mlfq import Mlfq
from controlplane.core.policies.priority.plas import Plas
from controlplane.core.policies.retention.least_waste import LeastWaste
from controlplane.core.policies.retention.lend import Lend
from controlplane.core.policies.retention.opportunistic import Opportunistic
from controlplane.core.policies.retention.watermarks import Watermarks
from controlplane.core.scheduling.liveness import SilenceRules
from controlplane.core.scheduling.overload import OverloadRules
from controlplane.core.scheduling.rules_and_state import ControlRules
from controlplane.core.scheduling.tool_slots import ToolSlots

INF, NAN = float("inf"), float("nan")
KEY = ("sha256:" + "a" * 64,)
REFUSED: dict[type, dict[str, tuple[Any, ...]]] = {
    Aimd: {
        "alpha": (0, NAN),
        "beta": (0, 1),
        "window_min": (0.5,),
        "window_max": (0.5,),
        "window_initial": (0.5, 5000),
        "kv_high": (0,),
        "kv_soft": (-0.1, 1.1),
        "slowdown_high": (-1.0, INF),
    },
    Capacity: {"watermark_high": (0.0,), "watermark_low": (1.01,), "interval_s": (-1.0,)},
    Concur: {"beta": (1.0,), "window_initial": (0.5,)},
    ControlRules: {
        "interval_s": (0,),
        "overdue_s": (-1,),
        "stall_s": (-1,),
        "resync_s": (0,),
        "grant_s": (0.5,),
    },
    Fixed: {"window": (-1,)},
    LeastLeft: {"ageing": (0.0, -1.0, 5.0)},
    LeastWaste: {
        "interval_s": (-1,),
        "ttl_max_s": (0,),
        "prefetch_s": (-1.0, 3601.0, NAN),
    },
    Lend: {"prefetch_s": (-1.0, 3601.0, NAN)},
    Mlfq: {
        "shares": ((), (0.5, 0.25), (0.25, 0.25), (0.0, 0.5), (0.5, 1.5), (NAN,)),
        "quota_chunks": (0.0, INF),
        "window_s": (0.0, 1e6),
        "promote_s": (0.0, -1.0),
        "promotions": (-1, 101),
    },
    Opportunistic: {"cold_start": (-1, 256), "ttl_max_s": (0.0, 90_000.0), "kv_high": (0.0,)},
    OverloadRules: {
        "persistence": (0,),
        "cpu_slowdown_high": (0.9, INF),
        "cpu_slowdown_low": (2.0,),
        "cpu_tools_low": (0.0,),
        "kv_high": (2.1, NAN),
        "kv_low": (1.01,),
        "kv_slack": (0.0, 0.96),
        "kv_cold_return": (1.1,),
    },
    Plas: {"quantum_chunks": (0.0,), "classes": (0,), "starve_s": (0.0,)},
    Prefix: {"match": (1.5,), "pile_turns": (-1,), "pile_ratio": (0.5,)},
    PressureAware: {"long_share": (0.0, 1.01, -1.0)},
    Session: {"link_tokens_per_s": (-1.0,), "passing_wait": (2.0,), "turns_ahead": (-1.0,)},
    SilenceRules: {
        "end_after_reply_s": (0,),
        "end_below": (-0.1, 1.1),
        "unused_slot_s": (0,),
        "end_after_s": (90_000,),
        "ask_publisher_after_s": (NAN,),
        "ask_publisher_every_s": (0,),
        "ask_publisher_times": (0,),
    },
    Tenant: {
        "weight": (0,),
        "share": (1.5,),
        "keys": (("abc",), ("sha256:" + "g" * 64,)),
        "window_s": (0,),
        "program_turns": (-1,),
    },
    ToolSlots: {"per_cpu": (-1, NAN), "busy": (1.5,)},
    Watermarks: {"interval_s": (0.0,), "decay_base": (0.5,), "watermark_high": (1.5,)},
}


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_a_figure_out_of_range_is_refused_by_its_name(make: type) -> None:
    for field, values in REFUSED[make].items():
        for value in values:
            with pytest.raises(ConfigError) as error:
                make(**{field: value})
            assert error.value.field == field, value


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"a": Tenant(keys=KEY), "b": Tenant(keys=KEY)}, "have one key"),
        ({"a": Tenant(share=0.6), "b": Tenant(share=0.6)}, "sum to at most 1"),
        ({str(number): Tenant() for number in range(257)}, "at most 256"),
    ],
)
def test_tenants_that_do_not_go_together_are_refused(named: dict[str, Tenant], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Tenancy(named=named)

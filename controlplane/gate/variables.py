"""The environment variables that a gate is told its limits by, in an engine's server and outside of it."""

import difflib
from collections.abc import Mapping

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import seconds
from controlplane.gate.limits import GateLimits

TENANT_HEADER_VARIABLE = "PENSTOCK_TENANT_HEADER"
_PREFIX = "PENSTOCK_GATE_"
_MIB = 1 << 20
# A variable, the limit that it sets, and what one of its unit is in the limit's.
GATE_VARIABLES: Mapping[str, tuple[str, int]] = {
    "PENSTOCK_GATE_MAX_HELD": ("max_held", 1),
    "PENSTOCK_GATE_MAX_HELD_MIB": ("max_held_bytes", _MIB),
    "PENSTOCK_GATE_MAX_BODY_MIB": ("max_body_bytes", _MIB),
    "PENSTOCK_GATE_MAX_BODY_VALUES": ("max_body_values", 1),
    "PENSTOCK_GATE_MAX_ARRIVING_MIB": ("max_arriving_bytes", _MIB),
    "PENSTOCK_GATE_BODY_S": ("body_ns", seconds(1)),
    "PENSTOCK_GATE_HOLD_S": ("hold_ns", seconds(1)),
    "PENSTOCK_GATE_EARLY_HEADERS_S": ("early_headers_ns", seconds(1)),
    "PENSTOCK_GATE_RETRY_AFTER_S": ("retry_after_ns", seconds(1)),
    "PENSTOCK_GATE_GRANT_TTL_S": ("grant_ttl_ns", seconds(1)),
    "PENSTOCK_GATE_KEEP_S": ("keep_ns", seconds(1)),
    "PENSTOCK_GATE_OPEN_STEP_S": ("open_step_ns", seconds(1)),
}


def limit_values(texts: Mapping[str, str]) -> dict[str, int]:
    """The fields of ``GateLimits`` that variables set; one that is empty sets nothing. Raises ``ConfigError``."""
    values = {}
    for variable, text in texts.items():
        if not variable.startswith(_PREFIX) or not text.strip():
            continue
        if variable not in GATE_VARIABLES:
            near = difflib.get_close_matches(variable, GATE_VARIABLES, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(GATE_VARIABLES)}"
            raise ConfigError(f"{variable}: unknown variable{hint}", field=variable)
        name, unit = GATE_VARIABLES[variable]
        values[name] = round(number(texts, variable) * unit)
        try:
            GateLimits(**{name: values[name]})
        except ConfigError as error:  # which speaks of the limit, and in its unit
            least = "0 or more" if "0 <=" in str(error) else "more than 0"
            raise ConfigError(f"{variable}: expected {least}, got {text.strip()[:80]}", field=variable) from None
    return values


def number(texts: Mapping[str, str], variable: str) -> float:
    """The number that a variable is. Raises ``ConfigError``."""
    try:
        value = float(texts[variable])
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e12:  # neither text, nor NaN, nor endless
        raise ConfigError(f"{variable}: expected a number, got {texts[variable][:80]!r}", field=variable)
    return value

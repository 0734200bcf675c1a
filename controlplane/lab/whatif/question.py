"""What is asked: another preset, other settings, or another machine, beside what was recorded."""

import re
from dataclasses import dataclass

from controlplane.core.model.errors import ConfigError

_AMOUNT = re.compile(r"(?P<sign>[-+])?(?P<number>\d+(?:\.\d+)?)(?P<unit>%|x)?|x(?P<times>\d+(?:\.\d+)?)")
_HELP = "expected a number, or a change as +20%, -1 or 2x"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An alternative; what is empty stays as it was recorded.

    ``settings`` are ``KEY=VALUE`` of the configuration. ``pool_tokens`` (of each engine), ``engines`` and
    ``agents`` are numbers or changes, as ``amount`` reads them.
    """

    preset: str = ""
    settings: tuple[str, ...] = ()
    pool_tokens: str = ""
    engines: str = ""
    agents: str = ""

    @property
    def title(self) -> str:
        """In words, for tables."""
        parts = [self.preset, *self.settings]
        named = (("pool", self.pool_tokens), ("engines", self.engines), ("agents", self.agents))
        parts += [f"{name} {value}" for name, value in named if value]
        return ", ".join(part for part in parts if part) or "nothing else"


def amount(text: str, recorded: float, what: str) -> float:
    """``text`` as a number, or as a change of what was recorded: +20%, -1, 2x. Raises ``ConfigError``."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise ConfigError(f"{what}: {_HELP}, got {text!r}", field=what)
    if found["times"]:
        value = recorded * float(found["times"])
    else:
        number, sign = float(found["number"]), -1 if found["sign"] == "-" else 1
        if found["unit"] == "x":
            value = recorded * number * sign
        elif found["unit"] == "%":
            value = recorded * (1 + sign * number / 100) if found["sign"] else recorded * number / 100
        else:
            value = recorded + sign * number if found["sign"] else number
    if value <= 0:
        raise ConfigError(f"{what}: {text!r} of {recorded:g} leaves {value:g}; {_HELP}", field=what)
    return value

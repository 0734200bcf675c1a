"""The result of one run, to save and to load: what simulator, live replay and report share."""

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from controlplane.core.model.errors import ConfigError
from controlplane.core.model.text import printable
from controlplane.lab.workload.records import ProgramRecord, TurnRecord
from controlplane.lab.workload.scale import Scale
from controlplane.lab.workload.series import Series
from controlplane.lab.workload.summary import Summary
from controlplane.lab.workload.tenants import TenantResult
from controlplane.wire.files import read_bytes

_MOST_BYTES = 1 << 30

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A run: what was asked, what was measured.

    ``rate`` is the open arrival rate in programs a second, 0 for closed arrivals; ``facts`` holds what else a
    reader must know to run it again (command, versions, machine), by name.
    """

    label: str
    preset: str
    summary: Summary
    rate: float = 0.0
    arrival: str = ""
    seed: int = 0
    scale: Scale = field(default_factory=Scale)
    programs: tuple[ProgramRecord, ...] = ()
    turns: tuple[TurnRecord, ...] = ()
    series: Series = field(default_factory=Series)
    tenants: tuple[TenantResult, ...] = ()  # where programs have tenants
    facts: dict[str, str] = field(default_factory=dict)
    cut: bool = False  # stopped before every program had ended: its times are biased
    format: int = FORMAT

    def save(self, path: str | Path) -> None:
        """Write the run as JSON."""
        Path(path).write_bytes(msgspec.json.encode(self))


def load_run(path: str | Path) -> RunResult:
    """Read a saved run. Raises ``ConfigError`` with the path and what is wrong."""
    try:
        result = msgspec.json.decode(read_bytes(Path(path), _MOST_BYTES), type=RunResult)
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the run: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a saved run: {error}") from error
    if result.format != FORMAT:
        raise ConfigError(f"{path}: expected format {FORMAT}, got {result.format}")
    return replace(  # what is shown of it
        result,
        label=printable(result.label),
        preset=printable(result.preset),
        arrival=printable(result.arrival),
        facts={printable(name): printable(value) for name, value in result.facts.items()},
        tenants=tuple(replace(each, tenant=printable(each.tenant)) for each in result.tenants),
    )


def python_version() -> str:
    """For ``RunResult.facts``."""
    return ".".join(str(part) for part in sys.version_info[:3])

"""Programs that Python packages bring: the real nats-server, the real Envoy."""

import shutil
import sysconfig
from pathlib import Path

from controlplane.core.model.errors import EngineUnavailable

_TAIL_BYTES = 1 << 14  # of a log, for its last line


def installed(name: str, otherwise: str) -> Path:
    """The program of this environment, else whichever is on the path. Raises ``EngineUnavailable``.

    ``otherwise`` says what to do where there is none.
    """
    own = Path(sysconfig.get_path("scripts")) / name
    if own.exists():
        return own
    found = shutil.which(name)
    if found is None:
        raise EngineUnavailable(f"no {name}: {otherwise}")
    return Path(found)


def last_line(log: Path) -> str:
    """What such a program said last. Raises ``OSError``."""
    with log.open("rb") as file:  # it may have grown for months
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    return lines[-1] if lines else "nothing"

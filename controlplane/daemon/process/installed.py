"""Programs that Python packages bring: the real nats-server, the real Envoy."""

import shutil
import sysconfig
from pathlib import Path

from controlplane.core.model.errors import EngineUnavailable


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

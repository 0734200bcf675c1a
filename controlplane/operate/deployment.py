"""What an operator installs beside the daemon: units of systemd, alert rules and a dashboard."""

import shutil
from pathlib import Path

from controlplane.core.model.errors import ConfigError

FILES = Path(__file__).with_name("deploy")


def export(folder: Path) -> list[Path]:
    """Write them into that folder, over those of an earlier version; their paths. Raises ``ConfigError``."""
    written = []
    for file in sorted(path for path in FILES.rglob("*") if path.is_file()):
        path = folder / file.relative_to(FILES)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, path)
        except OSError as error:
            raise ConfigError(f"{path}: cannot write there: {error.strerror}") from None
        written.append(path)
    return written

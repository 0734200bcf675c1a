"""Hardware profiles by name: the built-in ones lie beside this file, in ``profiles/``."""

from collections.abc import Mapping
from pathlib import Path

from controlplane.core.errors import ConfigError
from controlplane.lab.sim.hardware import Profile
from controlplane.lab.sim.profile_file import read_profile

__all__ = ["Profile", "list_profiles", "load_profile"]

PROFILES = Path(__file__).parent / "profiles"


def list_profiles() -> Mapping[str, str]:
    """The built-in profiles: name to source."""
    return {path.stem: load_profile(path.stem).source for path in sorted(PROFILES.glob("*.json"))}


def load_profile(name_or_path: str | Path) -> Profile:
    """A built-in profile by name, or a profile file by path. Raises ``ConfigError``."""
    built_in = {path.stem: path for path in PROFILES.glob("*.json")}
    path = built_in.get(str(name_or_path), Path(name_or_path))
    try:
        path.stat()
    except FileNotFoundError:
        known = ", ".join(sorted(built_in))
        raise ConfigError(
            f"profile: no built-in profile and no file {str(name_or_path)!r}; built in: {known}",
            field="profile",
        ) from None
    except OSError:
        pass  # its reader says why
    return read_profile(path)

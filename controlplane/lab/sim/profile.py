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
    path = PROFILES / f"{name_or_path}.json"
    if not path.is_file():
        path = Path(name_or_path)
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in PROFILES.glob("*.json")))
        raise ConfigError(
            f"profile: no built-in profile and no file {str(name_or_path)!r}; built in: {known}",
            field="profile",
        )
    return read_profile(path)

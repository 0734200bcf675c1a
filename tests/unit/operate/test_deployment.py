"""``penstock deploy export``: the wheel's files, as they are."""

from pathlib import Path

import pytest

from controlplane.core.model.errors import ConfigError
from controlplane.operate.deployment import FILES, export


def test_all_are_written_over_those_of_an_earlier_version(tmp_path: Path) -> None:
    old = tmp_path / "systemd" / "penstock@.service"
    old.parent.mkdir()
    old.write_text("old")
    written = {path.relative_to(tmp_path).as_posix(): path.read_bytes() for path in export(tmp_path)}
    assert {"grafana/penstock.json", "prometheus/penstock.rules.yml", "systemd/penstock@.service"} <= written.keys()
    assert all((FILES / name).read_bytes() == content for name, content in written.items())


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write there"):
        export(tmp_path / "file")

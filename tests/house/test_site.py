"""The documentation builds as a site, and every link in it leads somewhere."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import generate_reference  # noqa: E402


def test_the_site_builds_and_every_link_in_it_leads_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "how-to" / "watch-a-node.html").exists()
    index = (tmp_path / "site" / "index.html").read_text()
    for made in generate_reference.PAGES:
        page = Path("reference", made).with_suffix(".html")
        assert (tmp_path / "site" / page).exists()
        assert f'href="{page}"' in index

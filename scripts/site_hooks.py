"""Hooks of MkDocs: links to files beside ``docs/`` are kept as their text, since the site has no such pages."""

import re
from pathlib import Path
from typing import Any

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links that lead out of ``docs/`` become their text."""
    folder = Path(page.file.abs_src_path).parent

    def keep(match: re.Match[str]) -> str:
        target = (folder / match[2].partition("#")[0]).resolve()
        return match[0] if target.is_relative_to(_DOCS) else match[1]

    return _LINK.sub(keep, markdown)

"""Hooks of MkDocs: generated pages are added to the site; links that leave ``docs/`` become their text."""

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import generate_reference

_DOCS = Path(__file__).resolve().parent.parent / "docs"
_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?://|#)([^)\s]+)\)")
_INDEX = "README.md"


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the generated pages, which are not in the repository."""
    for name in generate_reference.PAGES:
        files.append(File.generated(config, f"reference/{name}", content=generate_reference.page(name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """List the generated pages in the index; turn links that lead out of ``docs/`` into their text."""
    folder = (_DOCS / page.file.src_uri).parent

    def text_of(match: re.Match[str]) -> str:
        target = (folder / match[2].partition("#")[0]).resolve()
        return match[0] if target.is_relative_to(_DOCS) else match[1]

    if page.file.src_uri == _INDEX:
        links = [f"- [{name.removesuffix('.md')}](reference/{name})" for name in generate_reference.PAGES]
        markdown = "\n".join([markdown, "", "## Generated from the code", "", *links, ""])
    return _LINK.sub(text_of, markdown)

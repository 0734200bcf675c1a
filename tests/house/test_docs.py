"""The documents say what is so: links lead somewhere, tables and pointers name what exists."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.documents import PAGES, ROOT, blocks, name, without_blocks

from controlplane.core.errors import ConfigError
from controlplane.core.types import Pressure

PROSE = [page for page in PAGES if page.name != "CHANGELOG.md"]

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"(?:controlplane|engine_hooks|tests|scripts|bench|proto|docs|examples)/[\w./-]*")
_POINTER = re.compile(r"`(controlplane/[\w/]+\.py):(\w+)`")


def test_the_policy_of_the_how_to_is_a_policy() -> None:
    page = ROOT / "docs" / "how-to" / "add-a-policy.md"
    source = next(block.text for block in blocks(page) if block.language == "python")
    scope: dict[str, Any] = {"__name__": "the_how_to"}
    exec(compile(source, str(page), "exec"), scope)
    policy = scope["Stall"](most=8)
    _, window = policy.update(policy.initial(), None, Pressure(cpu_stall_ratio=0.5), 0)
    assert window.limit == 4
    with pytest.raises(ConfigError, match="most"):
        scope["Stall"](most=0)


def slug(heading: str) -> str:
    """As GitHub makes anchors of headings."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", without_blocks(page), flags=re.M)}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in _LINK.findall(without_blocks(page)):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: {link}"
        assert target.is_relative_to(ROOT), f"{name(page)}: {link} leaves the repository"
        if anchor:
            assert anchor in anchors(target), f"{name(page)}: no heading for {link}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_picture_is_there_and_says_what_it_shows(page: Path) -> None:
    for words, path in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", without_blocks(page)):
        assert (page.parent / path).is_file(), f"{name(page)}: {path}"
        assert len(words) > 10, f"{name(page)}: {path} says nothing to who cannot see it"


@pytest.mark.parametrize("page", PROSE, ids=name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    for code in _CODE.findall(without_blocks(page)):
        for path in _FILE.findall(code) if _FILE.match(code) else ():
            assert (ROOT / path).exists(), f"{name(page)}: {path}"


def defined(path: Path) -> set[str]:
    """Functions, methods, classes and module-level names of a file."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)}


@pytest.mark.parametrize("page", PROSE, ids=name)
def test_every_function_that_is_pointed_to_exists(page: Path) -> None:
    for path, function in _POINTER.findall(without_blocks(page)):
        assert function in defined(ROOT / path), f"{name(page)}: {path}:{function}"


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    linked = {(docs / link).resolve() for link in _LINK.findall((docs / "README.md").read_text())}
    pages = set(docs.glob("**/*.md")) - {docs / "README.md"} - set((docs / "adr").glob("0*.md"))
    assert {name(page) for page in pages - linked} == set()


def test_every_decision_is_in_its_index_under_its_title_and_number() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    numbers = []
    for page in sorted(folder.glob("0*.md")):
        number = page.name[:4]
        numbers.append(int(number))
        assert page.read_text().startswith(f"# {number} "), page.name
        assert f"[{number}]({page.name})" in index
        assert all(f"**{part}.**" in page.read_text() for part in ("Context", "Decision", "Consequences")), (
            page.name
        )
    assert numbers == list(range(1, len(numbers) + 1))


def test_decisions_and_pages_that_code_names_exist() -> None:
    for path in [*ROOT.glob("controlplane/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/*.py")]:
        for number in re.findall(r"docs/adr/(\d{4})", path.read_text()):
            assert list((ROOT / "docs" / "adr").glob(f"{number}-*.md")), f"{name(path)}: {number}"
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text()):
            assert (ROOT / page).exists(), f"{name(path)}: {page}"


def test_generated_reference_pages_are_current(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "generate_reference.py"
    subprocess.run([sys.executable, str(script), "--output", str(tmp_path)], check=True, stdout=subprocess.DEVNULL)
    for made in tmp_path.iterdir():
        committed = ROOT / "docs" / "reference" / made.name
        assert committed.read_text() == made.read_text(), f"{made.name}: run python scripts/generate_reference.py"


def test_every_configuration_key_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", page, flags=re.M)
    assert len(rows) > 50
    assert [key for key, cells in rows if not cells.split(" | ")[-1].strip()] == []


def test_every_refusal_of_the_gate_is_explained() -> None:
    page = (ROOT / "docs" / "how-to" / "recover-from-failures.md").read_text()
    source = "".join((ROOT / "controlplane" / "gate" / part).read_text() for part in ("gate.py", "middleware.py"))
    codes = set(re.findall(r'problem\(path, \w+, "(\w+)"|\b\d{3}, "(\w+)"|_refuse_held\(\w+, "(\w+)"', source))
    named = {code for groups in codes for code in groups if code}
    assert len(named) >= 6
    assert [code for code in sorted(named) if f"`{code}`" not in page] == []


def test_every_benchmark_and_make_target_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "benchmarks.md").read_text()
    assert [path.name for path in ROOT.glob("bench/*.py") if f"bench/{path.name}" not in page] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for document in PAGES:
        for target in re.findall(r"\bmake ([a-z-]+)", " ".join(_CODE.findall(document.read_text()))):
            assert target in targets, f"{name(document)}: make {target}"


def test_the_changelog_knows_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_nothing_refers_to_what_a_reader_does_not_have() -> None:
    for page in PAGES:
        assert not re.search(r"DESIGN|/work/|/root/|/home/", page.read_text()), name(page)

"""The documents say what is so: links lead somewhere, tables and pointers name what exists."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from support.documents import PAGES, ROOT, blocks, name, without_blocks

from controlplane import __version__
from controlplane.core.model.errors import ConfigError
from controlplane.core.model.types import Pressure
from controlplane.gate.tickets import REFUSED
from controlplane.lab.sim.profile import list_profiles

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import generate_reference
import weight

PROSE = [page for page in PAGES if page.name != "CHANGELOG.md"]

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"(?:controlplane|engine_hooks|tests|scripts|bench|proto|docs|examples)/[\w./-]*")
# What says that something is not there: it is forgotten when that comes.
_UNDONE = re.compile(
    r"not implemented|\bnot yet\b|\bnot (?:been )?measured|never been started|\bnothing\b[^.;|]{0,60} measured",
    re.I,
)
_NULL = "what a figure without a value means"
STANDS = {
    "README.md: never been started": "deploy.md: nothing here can start a cluster",
    "README.md: not been measured": "vLLM on a GPU: benchmarks.md has SGLang's run alone",
    "docs/reference/benchmarks.md: not measured": "the same",
    "CHANGELOG.md: not yet": "the heading of what the release is without",
    "CHANGELOG.md: not measured": _NULL,
    "docs/explanation/features.md: nothing was measured": "what its dash means",
    "docs/how-to/deploy.md: never been started": "the charts on a cluster: it says what was started instead",
    "docs/how-to/replay-a-trace.md: not measured": _NULL,
    "docs/papers.md: not implemented": "what of the papers has no code; the tables beside it name what has",
    "controlplane/cli/live.py: nothing was measured": _NULL,
    "controlplane/core/ledger/turns.py: nothing of the prompt could be measured": "a prompt of media alone",
    "controlplane/core/regret/verdict.py: not measured": "what would have happened is seen by nobody",
    "controlplane/fleet/buckets.py: not yet": "a server that has just started",
    "controlplane/gate/contexts.py: nothing is measured": "a prompt that shares nothing with the last one",
    "controlplane/lab/workload/summary.py: not measured": _NULL,
    "controlplane/lab/workload/summary.py: nothing was measured": _NULL,
}
"""Why each sentence of a document or a docstring that says so still stands."""

_POINTER = re.compile(r"`((?:controlplane|engine_hooks|scripts)/[\w/]+\.py):([\w.]+)`")


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
        assert {*function.split(".")} <= defined(ROOT / path), f"{name(page)}: {path}:{function}"


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    linked = {(docs / link).resolve() for link in _LINK.findall((docs / "README.md").read_text())}
    pages = set(docs.glob("**/*.md")) - {docs / "README.md"} - set((docs / "adr").glob("0*.md"))
    assert {name(page) for page in pages - linked} == set()


def test_decisions_are_few_short_and_in_their_index() -> None:
    """Each has a status; at most 25 are in force, of at most 300 words, and the index has at most 250."""
    pages = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    numbers, in_force, rows = {page.name[:4] for page in pages}, 0, []
    for page in pages:
        text, number = page.read_text(), page.name[:4]
        head = re.match(rf"# {number} (.+)\n\n\*\*Status:\*\* (?:accepted|superseded by (\d{{4}}))\n\n", text)
        assert head, page.name
        assert head[2] is None or head[2] in numbers - {number}, page.name
        assert all(f"**{part}" in text for part in ("Context", "Decision", "Consequences")), page.name
        assert len(text.split()) <= 300, page.name
        in_force += head[2] is None
        rows.append(f"- [{number}]({page.name}) {head[1]}")
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    assert in_force <= 25
    assert re.findall(r"^- .+$", index, flags=re.M) == rows
    assert len(index.split()) <= 250


def test_decisions_and_pages_that_code_names_exist() -> None:
    for path in [*ROOT.glob("controlplane/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/*.py")]:
        for number in re.findall(r"docs/adr/(\d{4})", path.read_text()):
            assert list((ROOT / "docs" / "adr").glob(f"{number}-*.md")), f"{name(path)}: {number}"
        for page in re.findall(r"docs/[\w/-]+\.md", path.read_text()):
            assert (ROOT / page).exists(), f"{name(path)}: {page}"


@pytest.mark.parametrize("made", generate_reference.PAGES)
def test_every_row_of_a_generated_page_is_explained(made: str) -> None:
    assert not (ROOT / "docs" / "reference" / made).exists(), "it is made for the site, and not committed"
    tables = re.findall(r"^\| ([^|]+) \|.*\n\| ---.*\n((?:\|.*\n)+)", generate_reference.page(made), flags=re.M)
    rows = [row.strip("| ").split(" | ") for head, body in tables if head != "field" for row in body.splitlines()]
    assert tables
    assert [cells[0] for cells in rows if not cells[-1].strip(" |")] == []


def test_every_feature_has_its_row() -> None:
    page = (ROOT / "docs" / "explanation" / "features.md").read_text()
    rows = re.findall(r"^\| (?!\*|feature|---)([^|]+) \|", page, flags=re.M)
    *features, _ = (line[:40].strip() for line in weight.features())
    assert sorted(rows) == sorted(features)


def test_every_hardware_profile_is_named() -> None:
    page = (ROOT / "docs" / "reference" / "hardware-profiles.md").read_text()
    assert [name for name in list_profiles() if f"`{name}`" not in page] == []


def test_every_refusal_of_the_gate_is_explained() -> None:
    page = (ROOT / "docs" / "how-to" / "recover-from-failures.md").read_text()
    source = (ROOT / "controlplane" / "gate" / "middleware.py").read_text()
    told = {code for code, counter in REFUSED.items() if counter.startswith("refused_")}  # the others got no answer
    named = {*told, *re.findall(r'problem\(path, \w+, "(\w+)"', source)}
    assert len(named) >= 6
    assert [code for code in sorted(named) if f"`{code}`" not in page] == []


def test_every_benchmark_and_make_target_is_documented() -> None:
    page = "".join((ROOT / part).read_text() for part in ("bench/README.md", "docs/reference/benchmarks.md"))
    assert [path.name for path in ROOT.glob("bench/*.py") if f"bench/{path.name}" not in page] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for document in PAGES:
        for target in re.findall(r"\bmake ([a-z-]+)", " ".join(_CODE.findall(document.read_text()))):
            assert target in targets, f"{name(document)}: make {target}"


def docstrings(path: Path) -> str:
    """All of a file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))
    return "\n".join(ast.get_docstring(node) or "" for node in nodes)


def test_what_is_said_to_be_undone_is_held_against_why() -> None:
    code = [*ROOT.glob("controlplane/**/*.py"), *ROOT.glob("engine_hooks/**/*.py"), *ROOT.glob("bench/*.py")]
    texts = {page: page.read_text() for page in PAGES} | {path: docstrings(path) for path in code}
    found = {
        f"{name(path)}: {said.lower()}"
        for path, text in texts.items()
        for said in _UNDONE.findall(" ".join(text.split()))
    }
    assert found == STANDS.keys()


def test_the_changelog_knows_this_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_nothing_refers_to_what_a_reader_does_not_have() -> None:
    for page in PAGES:
        assert not re.search(r"DESIGN|/work/|/root/|/home/", page.read_text()), name(page)

"""The repository checks itself: docstrings, links, names that must not occur, kernels that are known."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from tidegate.codec.registry import CODECS
from tidegate.kernel import KERNEL_MODULES

ROOT = Path(__file__).parents[1]
SOURCES = sorted(p for p in (ROOT / "src/tidegate").rglob("*.py") if "proto" not in p.parts)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])


def tracked() -> list[Path]:
    """Files of the repository, without those of an unpacked archive that has no git."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.splitlines()]


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_says_what_it_is(source: Path) -> None:
    docstring = ast.get_docstring(ast.parse(source.read_text()))
    assert docstring, "no module docstring"
    assert len(docstring.split()) >= 4, "a docstring says more than a name"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)\)", page.read_text()):
        if not target.startswith(("http:", "https:")):
            assert (page.parent / target).exists(), f"{target} does not exist"


def test_no_code_compares_a_protocols_name() -> None:
    """What depends on the protocol is asked of its entry in the registry."""
    for path in SOURCES:
        if "protocols" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare | ast.Dict | ast.Set | ast.Tuple | ast.List | ast.MatchValue):
                texts = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant)}
                assert not texts & CODECS.keys(), f"{path}:{node.lineno}"


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    # Spelled in parts, so that this file does not name them either.
    forbidden = [
        "py" + "pi.org",
        "python" + "hosted.org",
        "repo1.maven" + ".org",
        "deb.debian" + ".org",
        "/wo" + "rk/main",
    ]
    for path in tracked():
        if path.suffix in (".gz", ".png") or not path.is_file():
            continue
        text = path.read_text(errors="replace")
        assert not [name for name in forbidden if name in text], path


def test_nothing_is_left_to_be_done_later() -> None:
    marker = "TO" + "DO"
    for path in SOURCES:
        assert marker not in path.read_text(), path


def test_every_module_with_kernels_is_warmed_at_setup() -> None:
    compiled = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in SOURCES
        if re.search(r"^@kernel$", path.read_text(), re.MULTILINE)
    }
    known = {name for name in KERNEL_MODULES if name.startswith("tidegate.")}
    folders = {name.rsplit(".", 1)[0] for name in known}
    assert {name.rsplit(".", 1)[0] for name in compiled} <= folders | {"tidegate"}, "add it to KERNEL_MODULES"


def test_the_lock_file_holds_every_dependency_with_its_hash() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    pinned = re.findall(r"^([a-zA-Z0-9_.-]+)==[^\s;\\]+.*?\\\n\s+--hash=sha256:", lock, re.MULTILINE)
    assert len(pinned) == len(re.findall(r"^[a-zA-Z0-9_.-]+==", lock, re.MULTILINE))

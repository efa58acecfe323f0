"""The files that pages name exist: paths and modules in backticks, and the tests that a page refers to."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")])
PATH = re.compile(r"(?<![\w/.-])([\w./-]+\.(?:py|md|txt))(?![\w-])(?:::(\w+))?")
"""A file, and a test in it. Files of other languages are those of TiDB, TiKV and TiCDC."""
MODULE = re.compile(r"(?<![\w/.-])tidegate((?:\.\w+)+)")
UPSTREAM = re.compile(r"docs/(?:design/|distributed-scheduling)")
"""Pages of pingcap/tiflow."""
PLACEHOLDER = re.compile(r"(?:^|[/_.])[A-Z]+(?=[/_.])")
"""A word in capitals that the reader replaces, such as MACHINE."""


@cache
def tracked() -> frozenset[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return frozenset(done.stdout.splitlines())


def spans(text: str) -> Iterator[tuple[str, str]]:
    """Each text in backticks outside of blocks, with its line."""
    for line in re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL).splitlines():
        for span in re.findall(r"`([^`]+)`", line):
            yield span, line


def files(path: str) -> list[str]:
    """The files that a path may mean. Pages leave out the folders that are clear from what they are about."""
    return [name for name in tracked() if name == path or name.endswith(f"/{path.removeprefix('./')}")]


def is_wrong_path(path: str, test: str) -> bool:
    found = files(path)
    if not found:
        return not (UPSTREAM.match(path) or PLACEHOLDER.search(path))
    return bool(test) and not any(f"def {test}(" in (ROOT / name).read_text() for name in found)


def is_wrong_module(dotted: str) -> bool:
    """`tidegate.NAME` alone may be a setting or a metric; below a package or module it is a name in it."""
    names = dotted.strip(".").split(".")
    at = ROOT / "src/tidegate"
    for n, name in enumerate(names):
        at = at / name
        if at.is_dir():
            continue
        module = at.with_suffix(".py")
        if module.exists():
            return n + 1 < len(names) and not re.search(rf"\b{names[n + 1]}\b", module.read_text())
        return n > 0 and not re.search(rf"\b{name}\b", (at.parent / "__init__.py").read_text())
    return False


def wrong(text: str) -> list[str]:
    """The paths, tests and modules in a page's backticks that do not exist."""
    found = []
    for span, _ in spans(text):
        found += [match[0] for match in PATH.finditer(span) if is_wrong_path(match[1], match[2] or "")]
        found += [match[0] for match in MODULE.finditer(span) if is_wrong_module(match[1])]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    assert not wrong(page.read_text())


def test_a_file_named_alone_is_in_a_folder_that_its_row_names() -> None:
    """On docs/onboarding.md: `commit.py` after `tikv/percolator/prewrite.py` is next to it."""
    lost = []
    for span, line in spans((ROOT / "docs/onboarding.md").read_text()):
        if re.fullmatch(r"\w+\.py", span):
            folders = {path.rpartition("/")[0] for path in re.findall(r"`([\w/]+\.py)`", line) if "/" in path}
            if not any((ROOT / "src/tidegate" / folder / span).exists() for folder in folders):
                lost.append(f"{span}: {line[:60]}")
    assert not lost


def test_a_path_that_does_not_exist_is_found() -> None:
    here = "tests/test_named_paths.py"
    good = (
        f"`server/node.py`, `{here}::test_files_that_a_page_names_exist`, `test_MACHINE.py`, `tidegate.lanes`"
    )
    assert wrong(good) == []
    bad = f"`server/nod.py` `{here}::test_none` `tidegate.config.nowhere` `tidegate.config.values.Nothing`"
    assert wrong(bad) == [
        "server/nod.py",
        f"{here}::test_none",
        "tidegate.config.nowhere",
        "tidegate.config.values.Nothing",
    ]


COMMIT = re.compile(r"(?<![\w/.-])(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,10}(?![\w/.-]*\w)")
AT_COMMIT = re.compile(r"\b(?:at|commit) (?=[0-9]*[a-f])([0-9a-f]{7,10})\b")


def test_commits_of_figures_are_in_the_history() -> None:
    """Otherwise nobody can measure the same again. A branch that was rebased leaves such names behind."""
    done = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode or (ROOT / ".git" / "shallow").exists():
        pytest.skip("not a git checkout with its history")
    known = {commit[:length] for commit in done.stdout.split() for length in range(7, 11)}
    figures = (ROOT / "benchmarks" / "README.md").read_text()
    named = set(COMMIT.findall(figures))
    assert len(named) > 20
    named |= {name for page in PAGES for name in AT_COMMIT.findall(page.read_text())}
    assert not named - known

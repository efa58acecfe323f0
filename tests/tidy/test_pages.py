"""Every page of the docs is listed once in their index, and the front door names every target."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def listed(index: str) -> Counter[str]:
    """How often each page is linked, also by a reference at the end. Links to headings do not count."""
    named = dict(re.findall(r"^\[([^\]]+)\]: (\S+)$", index, re.MULTILINE))
    direct = re.findall(r"\]\(([^)#\s]+)\)", index)
    return Counter([*direct, *(named[name] for name in re.findall(r"\]\[([^\]]+)\]", index))])


def problems(index: str, pages: Iterable[str]) -> dict[str, int]:
    """Pages that are listed another number of times than once."""
    counts = listed(index)
    return {page: counts[page] for page in {*pages, *counts} if counts[page] != 1}


def test_every_page_is_listed_once_in_the_index() -> None:
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert not problems((DOCS / "index.md").read_text(), [page for page in pages if page != "index.md"])


def test_readme_and_picture_name_every_kind_of_target() -> None:
    kinds = {path.parent.name for path in (ROOT / "src/tidegate/consumer").glob("*/target.py")}
    kinds -= {"applying"}  # the contract
    assert len(kinds) > 3
    for page in (ROOT / "README.md", DOCS / "images/overview.svg"):
        text = page.read_text().casefold()
        assert not [kind for kind in kinds if kind not in text], page.name


def test_a_page_that_is_missing_or_listed_twice_is_found() -> None:
    index = "[a](a.md) [b](b.md) [again](a.md) [c][c] [part](b.md#x)\n\n[c]: c.md\n"
    assert problems(index, ["a.md", "b.md", "c.md", "d.md"]) == {"a.md": 2, "d.md": 0}

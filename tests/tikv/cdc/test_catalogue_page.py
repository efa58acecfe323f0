"""The page that names our test for each of TiKV's and TiCDC's names tests that exist, and no row is empty."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "upstream-tests.md"


def names(path: Path) -> set[str]:
    """The test functions of a file."""
    return {each.name for each in ast.parse(path.read_text()).body if isinstance(each, ast.FunctionDef)}


def folder_of(file: str) -> Path:
    """Return the folder that a name on the page is relative to."""
    ours = file.startswith(("puller/", "kvclient/"))
    return ROOT / "tests" if ours else ROOT / "tests/tikv"


def test_every_test_on_the_page_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text())
    assert len(named) > 120
    known = {file: names(folder_of(file) / file) for file in {file for file, _ in named}}
    assert [f"{file}::{name}" for file, name in named if name not in known[file]] == []


def test_every_row_has_a_test_or_a_reason() -> None:
    rows = [line.split("|")[1:3] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert len(rows) > 100
    assert [one for one, here in rows if not here.strip()] == []


def test_every_test_of_the_catalogue_is_on_the_page() -> None:
    page = PAGE.read_text()
    tested = ("cdc/test_catalogue.py", "cdc/test_catalogue_scans.py", "puller/test_client_catalogue.py")
    for file in tested:
        for name in names(folder_of(file) / file):
            if name.startswith("test_"):
                assert f"{file}::{name}" in page, name

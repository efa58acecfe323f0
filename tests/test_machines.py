"""The tables of docs/internals are what the machines say, and what its pages cite is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.machines import FOLDER, TABLES, drawn, on_pages, pages

from tests.control.sharing import GUARDS

PAGES = sorted(FOLDER.glob("*.md"))
CITED = re.compile(r"\]\((\.\./\.\./(?:src|tests)/[\w/.]+\.py)\):\s((?:`[\w.]+`(?:,\s)?)+)")
"""A link to a file, and names that occur in it."""


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_table_is_what_the_machine_says(page: Path) -> None:
    assert page.read_text() == drawn(page.read_text()), "run: make docs"


def test_every_table_is_on_one_page() -> None:
    assert sorted(on_pages()) == sorted(TABLES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_that_a_page_cites_are_in_the_file_that_it_links(page: Path) -> None:
    for link, names in CITED.findall(page.read_text()):
        text = (FOLDER / link).read_text()
        for name in re.findall(r"`([\w.]+)`", names):
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", text), f"{name} is not in {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    for path in re.findall(r"`(tests/[\w/]+(?:\.\w+)?)`", page.read_text()):
        assert (FOLDER.parents[1] / path).exists(), path


def test_tests_and_guards_that_pages_name_are_there() -> None:
    text = "".join(page.read_text() for page in PAGES)
    defined = {
        name
        for file in (FOLDER.parents[1] / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", file.read_text())
    }
    assert not set(re.findall(r"`(test_\w+)`", text)) - defined
    cited = {
        name
        for names in re.findall(r"xplorer:? ((?:`\w+`,?\s*)+)", text)
        for name in re.findall(r"\w+", names)
    }
    assert len(cited) > 20
    assert not cited - GUARDS.keys()


def test_each_guard_of_the_explorer_is_listed_at_an_invariant() -> None:
    invariants = (FOLDER / "safety.md").read_text().partition("## No Double Write")[0]
    assert not [guard for guard in GUARDS if f"`{guard}`" not in invariants]

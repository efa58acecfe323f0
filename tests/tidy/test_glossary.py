"""The glossary defines each term once, in order; its links lead somewhere; classes keep to its words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.test_tidy import broken, links_of
from tests.tidy.words import allowed, without_allowed

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/tidegate"
GLOSSARY = ROOT / "docs/glossary.md"
ONE_MEANING = "## Words with one meaning"
WITHOUT_SLOTS = ("consumer", "verify", "sink/lakehouse")
"""Rooms that write and read the tables of a target, each in a folder, and never write to a sink."""
SLOT = re.compile(r"(?<![A-Za-z])(?<!__)(?:[Ss]lot|SLOT)[sS]?(?![a-z=]|__)")
"""The word, also in a name. Python's own `__slots__` and `slots=True` do not count."""


class Rule(NamedTuple):
    """Modules whose classes may have a word as their name, or in a longer name."""

    alone: set[str]
    longer: set[str]


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def terms(page: str) -> list[str]:
    """The terms in the order of the page; a row may define several."""
    return [row[0] for row in cells(page.partition(ONE_MEANING)[0])]


def rules(page: str) -> dict[str, Rule]:
    rows = cells(page.partition(ONE_MEANING)[2])
    return {word: Rule(*(set(re.findall(r"`([^`]+)`", each)) for each in given)) for word, *given in rows}


def sorted_wrongly(found: Sequence[str]) -> list[tuple[str, str]]:
    """Neighbours that are not in alphabetic order. Hyphens, spaces and capitals do not count."""
    plain = [(re.sub(r"\W", "", term).casefold(), term) for term in found]
    return [(before[1], after[1]) for before, after in pairwise(plain) if before[0] > after[0]]


def twice(found: Sequence[str]) -> list[str]:
    each = [name for term in found for name in re.split(r", ", term)]
    return sorted({name for name in each if each.count(name) > 1})


def classes() -> Iterator[tuple[str, str]]:
    """(module, class) for each class of the package."""
    for path in sorted(SOURCE.rglob("*.py")):
        if "proto" not in path.parts:
            for name in re.findall(r"^\s*class (\w+)", path.read_text(), re.MULTILINE):
                yield path.relative_to(SOURCE).as_posix(), name


def misnamed(given: dict[str, Rule], found: Iterator[tuple[str, str]]) -> list[str]:
    wrong = []
    for module, name in found:
        parts = re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)
        words = {part.casefold() for part in parts}
        for part in (words | {word.removesuffix("s") for word in words}) & given.keys():
            places = given[part].alone if len(parts) == 1 else given[part].longer
            if module not in places:
                wrong.append(f"{module}:{name}")
    return wrong


def test_each_term_is_defined_once_and_in_alphabetic_order() -> None:
    page = GLOSSARY.read_text()
    found = terms(page)
    assert len(found) > 40
    assert not twice(found)
    assert not sorted_wrongly(found)
    assert not sorted_wrongly(list(rules(page)))
    assert rules(page).keys() <= set(found), "a word with one meaning is defined above"


def test_links_of_the_glossary_lead_somewhere() -> None:
    assert not broken(links_of(GLOSSARY), GLOSSARY.parent)


def test_modules_that_the_glossary_names_exist_and_have_such_classes() -> None:
    held: dict[str, str] = {}
    for module, name in classes():
        held[module] = held.get(module, "") + name.casefold() + " "
    for word, rule in rules(GLOSSARY.read_text()).items():
        assert not [module for module in rule.alone | rule.longer if word not in held.get(module, "")], word


def test_a_class_is_named_as_the_glossary_says() -> None:
    exceptions = {phrase for _, phrase in allowed()}
    found = [name for name in misnamed(rules(GLOSSARY.read_text()), classes()) if name not in exceptions]
    assert not found, f"see {ONE_MEANING[3:]} in docs/glossary.md"


def test_the_folder_of_a_table_is_not_called_a_slot() -> None:
    modules = [path for room in WITHOUT_SLOTS for path in sorted((SOURCE / room).rglob("*.py"))]
    assert {path.parent.name for path in modules} >= {"consumer", "verify", "lakehouse"}
    names = {path.relative_to(ROOT).as_posix(): path.read_text() for path in modules}
    assert not [name for name, text in names.items() if SLOT.search(without_allowed(name, text))]
    assert not SLOT.search("@dataclass(slots=True) __slots__ slotted")
    assert all(map(SLOT.search, ["a slot.", "slot_path", "self._slot", "SLOTS", "SlotFiles", "_slots(1)"]))


def test_what_the_glossary_forbids_is_found() -> None:
    page = f"| a | b |\n|---|---|\n| b, c | 1 |\n| a-b | 2 |\n| c | 3 |\n\n{ONE_MEANING}\n\n"
    page += "| w | x | y |\n|---|---|---|\n| slot | `a.py` | `b.py` `c.py` |\n"
    assert (twice(terms(page)), sorted_wrongly(terms(page))) == (["c"], [("b, c", "a-b")])
    given = rules(page)
    assert given == {"slot": Rule({"a.py"}, {"b.py", "c.py"})}
    places = [
        ("a.py", "Slot"),
        ("b.py", "_Slots"),
        ("c.py", "SlotTaken"),
        ("a.py", "SlotTaken"),
        ("d.py", "Slotted"),
    ]
    assert misnamed(given, iter(places)) == ["b.py:_Slots", "a.py:SlotTaken"]

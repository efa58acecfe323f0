"""The guards of tools/guards.txt are in this source, and docs/guarantees.md names only what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools import guards
from tools.guards import PAGE, ROOT, SOURCE, Guard, Wrong, functions, known

from tests.control.sharing import CASES
from tests.simulator.test_guards import CASES as SIMULATED

SAFETY = ROOT / "docs" / "internals" / "safety.md"
WEAKER = "## Thirteen ways to weaken the protocol\n"
LINES = PAGE.read_text().splitlines()
SECTIONS = re.split(r"^### ", PAGE.read_text().partition("## The guards")[0], flags=re.MULTILINE)[1:]
NAMED = re.compile(r"`(?:([\w./-]*\.(?:py|txt)|[\w./-]+/)(?:::(\w+)(?:\[[^`]*\])?)?|make ([a-z-]+)[^`]*)`")
"""A file or folder, with a test in it, or a target of the Makefile. A file without a folder is next to the
one that is named before it."""


def named(text: str) -> tuple[list[Path], list[str]]:
    """The files and folders that a text names, and what it names that is not there."""
    files: list[Path] = []
    gone: list[str] = []
    folder = ROOT
    for name, test, target in NAMED.findall(text):
        if target:
            if f"\n{target}:" not in (ROOT / "Makefile").read_text():
                gone.append(f"make {target}")
            continue
        bases = (ROOT if "/" in name else folder, SOURCE / "tidegate")
        found = next((base / name for base in bases if (base / name).exists()), None)
        if found is None or (test and f"def {test}(" not in found.read_text()):
            gone.append(f"{name}::{test}" if test else name)
        else:
            files.append(found)
            folder = found if found.is_dir() else found.parent
    return files, gone


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("guard", known(), ids=lambda guard: guard.name)
def test_a_guard_can_be_removed_and_its_tests_are_there(guard: Guard) -> None:
    source = (SOURCE / "tidegate" / guard.file).read_text()
    compile(guard.removed(source), guard.file, "exec")
    function = functions(source)[guard.where]
    body = "\n".join(source.splitlines()[function.lineno - 1 : function.end_lineno])
    for change in guard.changes:
        assert "\n".join(change.lines) in body, f"not in {guard.where}"
    assert guard.tests
    for test in guard.tests:
        file, _, name = test.partition("::")
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / file).read_text(), test


def test_names_of_guards_are_unique() -> None:
    names = [guard.name for guard in known()]
    assert len(set(names)) == len(names) > 40


def test_the_table_of_guards_is_what_the_list_says() -> None:
    assert PAGE.read_text() == guards.drawn(PAGE.read_text()), "run: make docs"


def test_lines_that_have_changed_are_reported() -> None:
    (guard,) = guards.guards("promise a: it holds\n\nguard one: it is kept\ncode a.py f\n-    a\n+    b\n")
    assert guard.removed("def f():\n    a\n") == "def f():\n    b\n"
    for text in ("def f():\n    ab\n", "def f():\n    a\n    a\n", "def f():\n        a\n"):
        with pytest.raises(Wrong, match="not once"):
            guard.removed(text)
    for text in ("code a.py f\n", "guard one: it is kept\nwhat is this\n"):
        with pytest.raises(Wrong, match="line"):
            guards.guards(text)


def test_a_test_that_fails_for_another_reason_shows_nothing(tmp_path: Path) -> None:
    failed = "FAILED tests/a.py::test_b - "
    assert (
        guards.judged("one", 1, f"E   assert 1 == 2\n{failed}assert 1 == 2\n", tmp_path)
        == "failed as it must"
    )
    with pytest.raises(Wrong, match="no test has failed"):
        guards.judged("one", 1, "ERROR tests/a.py::test_b\nFAILED is no test\n", tmp_path)
    with pytest.raises(Wrong, match=r"what is not there .*no attribute '_gone'"):
        guards.judged("one", 1, f"E   AttributeError: 'A' has no attribute '_gone'\n{failed}Attr", tmp_path)


CODE = """
def one(): return 1
def two(): return 2
def three(): return 3
"""
TESTS = """
import pytest
from tidegate.a import one, three, two
@pytest.fixture
def service(): raise RuntimeError("it does not start")
def test_absent(service): pass
def test_one(): assert one() == 1
@pytest.fixture
def lost(): assert two() == 2
def test_two(lost): pass
def test_three(): pass
"""
GUARDS = "promise a: it holds\n" + "".join(
    f"guard {name}: it is kept\ncode a.py {code}\ntest tests/test_a.py::test_{name}\n"
    f"-def {code}(): return {number}\n+def {code}(): return 0\n"
    for name, code, number in (
        ("absent", "one", 1),
        ("two", "two", 2),
        ("three", "three", 3),
        ("one", "one", 1),
    )
)


def test_a_guard_that_cannot_be_tried_is_reported_and_the_others_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    files = {
        "src/tidegate/a.py": CODE,
        "src/tidegate/__init__.py": "",
        "src/tidegate/kernel.py": "",
        "tests/test_a.py": TESTS,
        "list": GUARDS,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    places = {"ROOT": "", "SOURCE": "src", "COPY": "copy", "LIST": "list"}
    for name, place in places.items():
        monkeypatch.setattr(guards, name, tmp_path / place)
    # All texts of a.py have one size, and two may be of one second, by which compiled files are found.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert guards.main([]) == 2
    said = capfd.readouterr().out
    outcomes = dict(re.findall(r"^\| (\w+) \| a.py .* \| (\D+) \(\d+ s\) \|$", said, re.MULTILINE))
    assert outcomes == {
        "absent": "NOT TRIED", "two": "NOT TRIED", "three": "SURVIVED", "one": "failed as it must"
    }  # fmt: skip
    assert "4 guards, 1 survived, 2 not tried\n" in said
    assert re.search(r"^absent: tests/test_a.py::test_absent does not pass although all", said, re.MULTILINE)
    assert re.search(r"^two: .* no test has failed", said, re.MULTILINE)
    assert guards.main(["--only", "three"]) == 1


def test_a_guards_test_may_have_parameters() -> None:
    (guard,) = guards.guards("guard one: it is kept\ntest tests/a.py::test_b\ntest tests/c.py\n")
    mine = "tests/a.py::test_b", "tests/a.py::test_b[x y]", "tests/c.py::test_d"
    assert all(guards.tries(guard, test) for test in mine)
    assert not any(guards.tries(guard, test) for test in ("tests/a.py::test_bc", "tests/c.pyx::test_d"))


def test_each_way_to_weaken_the_protocol_names_what_finds_it() -> None:
    """A guard is in the list of its column, and each row has a guard or a test."""
    section = SAFETY.read_text().partition(WEAKER)[2]
    table = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| ")][2:]
    simulated = {name for case in SIMULATED for name in case.guards}
    lists = CASES.keys(), simulated, {guard.name for guard in known()}
    for what, *columns, found in table:
        names = [set(re.findall(r"`([^`]+)`", column)) for column in columns]
        assert [column - known_names for column, known_names in zip(names, lists, strict=True)] == [set()] * 3
        tests, gone = named(found)
        assert not gone, what
        assert tests or any(names), what
    assert len(table) == 13


def test_files_tests_and_targets_that_the_guarantees_name_are_there() -> None:
    assert named(PAGE.read_text())[1] == []


def test_what_the_guarantees_name_wrongly_is_found() -> None:
    text = "`tests/test_guards.py::test_it`, `gone.py`, `make tea`"
    files, gone = named(f"`eventstore/order.py`, `records.py`, `pieces.py`, {text}")
    assert [file.name for file in files] == ["order.py", "records.py"]
    assert gone == ["pieces.py", "tests/test_guards.py::test_it", "gone.py", "make tea"]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_each_guarantee_names_the_code_that_keeps_it_and_its_tests(section: str) -> None:
    kept, _, checked = section.partition("- Checked by:")
    _, _, kept = kept.partition("- Kept by:")
    code = [file for file in named(kept)[0] if SOURCE in file.parents]
    assert code, "no code"
    cited = f"docs/guarantees.md#{anchor(section.splitlines()[0])}"
    texts = [file.read_text() for file in code if file.is_file()]
    assert any(re.search(rf"{cited}\b(?!-)", text) for text in texts), f"no line cites {cited}"
    assert [file for file in named(checked)[0] if ROOT / "tests" in file.parents], "no test"

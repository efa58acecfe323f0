"""The rules by which tests share a capture, without one: when another is started, and when it is stopped."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.integration.conftest import sharing_follows
from tests.integration.running import IDS, Namespace, SharedCapture, outside

HERE = Path(__file__).parent


class Counted:
    """Captures that are only counted, and what is done with them, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self.left: list[str] = []
        self.shared = SharedCapture(self._start, lambda cluster, number: self._record(f"ids {number // IDS}"))
        monkeypatch.setattr("tests.integration.running.feeds_of", lambda *given: self.left)
        monkeypatch.setattr(Namespace, "remove_feeds", lambda one: self._record(f"end {one.namespace}"))

    def _start(self) -> Any:
        self._record("start")
        stop: Callable[[], None] = lambda: self._record("stop")  # noqa: E731
        return SimpleNamespace(pd="", server="", folder=Path(), children={}, stop=stop)

    def _record(self, what: str) -> None:
        self.done.append(what)

    def test(self, schema: str, *, failed: bool = False) -> None:
        """A test that has a namespace."""
        one = self.shared.namespace(Path(), "", schema, "open-protocol", "")
        self.shared.take_back([one], failed=failed)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def test_each_test_has_ids_and_changefeeds_of_its_own_in_one_capture(counted: Counted) -> None:
    counted.test("a")
    counted.test("b")
    assert counted.done == ["start", "ids 1", "end test-1", "ids 2", "end test-2"]


@pytest.mark.parametrize(("failed", "again"), [(False, "a"), (True, "b")])
def test_the_next_test_gets_another_capture_if_it_must(counted: Counted, failed: bool, again: str) -> None:
    """After a failure, or if an earlier test has made its schema."""
    counted.test("a", failed=failed)
    counted.test(again)
    once = ["start", "ids 1", "end test-1"]
    assert counted.done == [*once, "stop", *once]


def test_a_changefeed_that_is_left_fails_the_test_that_left_it(counted: Counted) -> None:
    counted.left = ["forgotten"]
    with pytest.raises(AssertionError, match="left"):
        counted.test("a")
    assert counted.done[-1] == "stop"


def test_a_rule_that_may_match_another_schema_is_found() -> None:
    assert outside(["shop.*", "!shop.tmp_*"], "shop") == []
    assert outside(["*.*", "shop.*", "!other.*", "shop2.*"], "shop") == ["*.*", "!other.*", "shop2.*"]


def test_the_page_says_which_tests_share_a_capture() -> None:
    lines = (HERE.parents[1] / "CONTRIBUTING.md").read_text().splitlines()
    rows = [line.split(" | ")[:2] for line in lines if re.match(r"\| `test_.* \| (yes|no) \|", line)]
    listed = {name: answer for names, answer in rows[::-1] for name in re.findall(r"`(test_\w+)`", names)}
    files = {
        path.stem: path.read_text() for path in HERE.glob("test_*.py") if path.stem != Path(__file__).stem
    }
    assert listed == {name: "yes" if "(share: " in text else "no" for name, text in files.items()}


def items(*named: tuple[str, bool], slow: tuple[str, ...] = ()) -> list[Any]:
    """Tests of these files, and whether they share a capture. `slow`: files with a slow test."""
    session = SimpleNamespace(items=list[Any]())
    for file, shares in named:
        given = {"path": Path(file), "nodeid": file, "session": session, "number": len(session.items)}
        given["get_closest_marker"] = lambda name, is_slow=file in slow: name if is_slow else None
        session.items.append(SimpleNamespace(**given, fixturenames=("share",) if shares else ()))
    return session.items


def test_files_that_share_a_capture_come_first_and_slow_ones_next() -> None:
    found = items(
        ("tests/a.py", False),
        ("tests/d.py", False),
        ("tests/integration/b.py", False),
        ("tests/integration/c.py", True),
        ("tests/integration/c.py", False),
        slow=("tests/d.py",),
    )
    pytest_collection_modifyitems(found)
    assert [item.nodeid[-4:] for item in found] == ["c.py", "c.py", "b.py", "d.py", "a.py"]


def test_the_capture_is_kept_as_long_as_a_file_that_uses_it_follows() -> None:
    found = items(("c.py", False), ("c.py", True), ("c.py", False), ("d.py", False))
    assert [sharing_follows(item) for item in (*found, None)] == [True, True, False, False, False]

"""The processes of a run rewrite the assertions of each test file once, together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fixtures import rewritten


def imported(root: Path, number: int, asked: str = "tests") -> list[str]:
    """The names that one of two processes of a run imports. Three of the modules raise something."""
    names: list[str] = []

    def take(name: str) -> None:
        names.append(name)
        if name.endswith("broken"):
            raise SyntaxError
        if name.endswith("marked"):
            pytest.fail("an unknown mark")
        if name.endswith("skipped"):
            pytest.skip("a module may skip itself", allow_module_level=True)

    given = {"workerid": f"gw{number}", "workercount": 2}
    config = SimpleNamespace(rootpath=root, args=[asked], workerinput=given)
    session: Any = SimpleNamespace(config=config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rewritten, "import_module", take)
        rewritten.pytest_sessionstart(session)
    return names


def test_each_file_is_in_the_share_of_one_process(tmp_path: Path) -> None:
    (tmp_path / "tests/room").mkdir(parents=True)
    for name in ("test_a", "test_broken", "room/test_c", "helper", "test_d", "test_marked", "test_skipped"):
        (tmp_path / f"tests/{name}.py").touch()
    assert imported(tmp_path, 0) == ["tests.room.test_c", "tests.test_broken", "tests.test_marked"]
    other = ["tests.test_a", "tests.test_d", "tests.test_skipped"]
    assert imported(tmp_path, 1, str(tmp_path / "tests")) == other
    assert imported(tmp_path, 0, "tests/room") == [], "few files are not worth it"

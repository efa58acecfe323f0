"""Verdicts on tables: each name judged once for all changefeeds with equal rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.server.test_schema_tracker import rules_of
from tidegate.filter.verdicts import SharedVerdicts
from tidegate.mounter.table_version import Parsed, TableVersion
from tidegate.tidb.table_filter import TableFilter

NAMES = [("a", "t1"), ("a", "t2"), ("b", "t1"), ("mysql", "user")]
RULES = [("*.*",), ("a.*",), ("*.t1", "!b.*"), ("b.*", "a.t2")]


def version(name: tuple[str, str], *, eligible: bool = True, is_view: bool = False) -> TableVersion:
    more = {"eligible": eligible, "is_view": is_view, "cache": Parsed()}
    return TableVersion(1, 2, *name, 3, (1,), b"", **more)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.booleans(), st.booleans()), max_size=12),
    st.lists(st.tuples(st.sampled_from(RULES), st.booleans(), st.booleans()), max_size=12),
)
def test_shared_verdicts_equal_each_filters_own_as_filters_come_and_go(
    tables: list[tuple[Any, bool, bool]], filters: list[tuple[tuple[str, ...], bool, bool]]
) -> None:
    versions = [version(name, eligible=eligible or view, is_view=view) for name, eligible, view in tables]
    shared, held = SharedVerdicts(lambda: versions), []
    for rules, force, stays in filters:
        own = rules_of(*rules, force_replicate=force)
        verdicts = shared.of(own)
        expected = [t for t in versions if own.follows(t)], [t for t in versions if own.leaves_out(t)]
        assert verdicts.split(versions) == expected
        for table in versions:
            assert verdicts.follows(table) is own.follows(table)
            assert verdicts.leaves_out(table) is own.leaves_out(table)
        if stays:
            held.append(verdicts)
    assert len({verdicts.place for verdicts in held}) == len(set(held)), "nobody has another's bits"


def test_a_name_is_judged_once_for_all_feeds_with_equal_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    judge = TableFilter.judge

    def counted(self: TableFilter, names: Any) -> Any:
        judged.append(len(names))
        return judge(self, names)

    monkeypatch.setattr(TableFilter, "judge", counted)
    versions = [version(name) for name in NAMES]
    shared = SharedVerdicts(lambda: versions)
    feeds = [shared.of(rules_of("a.*", "# a comment")), shared.of(rules_of("a.*"))]
    assert feeds[0] is feeds[1]
    for verdicts in feeds:
        verdicts.split(versions)
    assert judged == [len(NAMES)]
    versions.append(version(("a", "t3")))
    assert [verdicts.follows(versions[-1]) for verdicts in feeds] == [True, True]
    assert judged == [len(NAMES), 1], "a changed table is one name"
    assert shared.of(rules_of("a.*", force_replicate=True)) is not feeds[0]
    assert shared.of(rules_of("A.*")) is feeds[0], "rules without case"
    assert shared.of(rules_of("a.*", case_sensitive=True)) is not feeds[0]


def test_bits_are_given_back() -> None:
    versions = [version(name) for name in NAMES]
    shared = SharedVerdicts(lambda: versions)
    for number in range(50):
        shared.of(rules_of(f"a.t{number}")).split(versions)
    assert max(table.verdicts.bit_length() for table in versions) <= 4

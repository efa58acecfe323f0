"""A span is without rows if its floor names the manifest that was noted, and that has no rows left."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.eventstore.few_spans import NAMES, START, FewSpans
from tidegate.eventstore.floors import FloorReader
from tidegate.eventstore.last_rows import LastRows
from tidegate.model.ts_by_span import SpanOrder

AT = 1


@pytest.fixture
def store(tmp_path: Path) -> FewSpans:
    found = FewSpans(tmp_path)
    found.receive(NAMES[AT], 110, True)
    found.publish()
    return found


def is_without_rows(store: FewSpans, after: int, *, noted: bool = True) -> bool:
    rows = LastRows(SpanOrder(NAMES))
    if noted:
        rows.note(AT, store.manifests[NAMES[AT]])
    frontier = FloorReader(store.folder).read()
    (found,) = rows.without_rows(frontier, np.array([AT]), np.array([after], np.uint64))
    return bool(found)


def test_its_last_row_counts(store: FewSpans) -> None:
    assert [is_without_rows(store, after) for after in (START, 109, 110, 120)] == [False, False, True, True]


def test_a_manifest_that_was_not_read_says_nothing(store: FewSpans) -> None:
    assert not is_without_rows(store, 120, noted=False)


def test_a_manifest_that_the_floor_does_not_name_says_nothing(store: FewSpans) -> None:
    store.change(NAMES[AT])
    assert not is_without_rows(store, 110)
    store.publish()
    assert is_without_rows(store, 110)


def test_notes_follow_their_spans_into_another_order(store: FewSpans) -> None:
    rows = LastRows(SpanOrder(NAMES))
    rows.note(AT, store.manifests[NAMES[AT]])
    assert rows.in_order(rows.order) is rows
    frontier, order = FloorReader(store.folder).read(), SpanOrder(["0" * 16, NAMES[AT], NAMES[0]])
    found = rows.in_order(order).without_rows(frontier, np.arange(3), np.full(3, 110, np.uint64))
    assert found.tolist() == [False, True, False]


def test_notes_keep_the_last_row_and_what_was_dropped(tmp_path: Path) -> None:
    store, (first, second, _) = FewSpans(tmp_path), NAMES
    for name in (first, second):
        store.receive(name, 110, True)
    store.drop(second, 110)
    store.publish()
    rows = LastRows(SpanOrder(NAMES))
    for place, name in enumerate(NAMES[:2]):
        rows.note(place, store.manifests[name])
    frontier, turned = FloorReader(store.folder).read(), rows.in_order(SpanOrder([second, first]))
    for after, found in ((109, [False, False]), (110, [True, True])):
        assert turned.without_rows(frontier, np.arange(2), np.full(2, after, np.uint64)).tolist() == found


def test_rows_that_were_dropped_are_not_taken_for_none(store: FewSpans) -> None:
    store.drop(NAMES[AT], 110)
    store.publish()
    assert not is_without_rows(store, 105)
    assert is_without_rows(store, 110)

"""The part of a span that was pulled from earlier comes in front, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.eventstore.test_store import SPAN, put, read
from tidegate.disk import DiskFull
from tidegate.eventstore.order import block_of
from tidegate.eventstore.span_store import SpanStore
from tidegate.eventstore.store import EventStore


class Stores:
    """A store that is complete from 100 on, and another one that has the changes before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open()
        self.live.begin(100)
        self.append(self.live, 110, 120)
        self.append(self.live, 130)
        self.aside = EventStore(folder / "backfill")
        self.pulled = self.aside.open_span(SPAN)
        self.pulled.begin(10)

    def open(self) -> None:
        self.store = EventStore(self.folder)
        self.live = self.store.open_span(SPAN)

    def append(self, span: SpanStore, *each: int) -> None:
        """Rows at these commit ts, sealed up to the last."""
        span.append(block_of([put(ts) for ts in each]))
        span.seal(each[-1])
        self.store.publish()

    def kept(self, after: int, upto: int) -> list[int]:
        return [entry.commit_ts for entry in read(self.store, self.live, after, upto)]


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def test_a_span_begins_earlier_and_continues_where_it_was(stores: Stores) -> None:
    for ts in (20, 60, 100):
        stores.append(stores.pulled, ts)
    with pytest.raises(Exception, match="no longer has"):
        stores.kept(10, 130)
    assert stores.live.prepend(stores.pulled, 10, 100)
    assert (stores.live.complete_from, stores.live.resolved) == (10, 130)
    assert stores.kept(10, 130) == [20, 60, 100, 110, 120, 130]
    stores.append(stores.live, 140)
    stores.aside.close()
    stores.store.close()
    stores.open()  # as after a restart
    assert (stores.live.complete_from, stores.live.resolved) == (10, 140)
    assert stores.kept(10, 140) == [20, 60, 100, 110, 120, 130, 140]
    stores.live.drop_below(100)
    assert stores.live.complete_from == 100
    assert stores.kept(100, 140) == [110, 120, 130, 140]


def test_nothing_before_is_a_beginning_too(stores: Stores) -> None:
    stores.pulled.seal(100)
    assert stores.live.prepend(stores.pulled, 10, 100)
    assert stores.kept(10, 130) == [110, 120, 130]


def test_a_part_that_was_released_meanwhile_is_no_hole(stores: Stores) -> None:
    """The rows in between are in neither."""
    stores.append(stores.pulled, 20, 100)
    stores.live.drop_below(120)
    assert not stores.live.prepend(stores.pulled, 10, 100)
    assert stores.live.complete_from == 120
    assert stores.kept(120, 130) == [130]


def test_a_row_that_both_have_is_read_once(stores: Stores) -> None:
    """A segment goes when it holds nothing above a ts, so one that stays may hold rows below."""
    for ts in (140, 150):
        stores.append(stores.live, ts)
    stores.live.drop_below(125)
    first = stores.live.complete_from
    assert first == 120
    again = stores.aside.open_span(SPAN)
    stores.append(again, 20, 110, 120)
    assert stores.live.prepend(again, 10, first)
    assert stores.kept(10, 150) == [20, 110, 120, 130, 140, 150]


def test_without_room_for_the_manifest_nothing_has_changed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.append(stores.pulled, 20, 100)
    write = stores.live._files._file.write

    def full(manifest: object) -> int:
        raise DiskFull("the disk is full", where="here")

    monkeypatch.setattr(stores.live._files._file, "write", full)
    with pytest.raises(DiskFull):
        stores.live.prepend(stores.pulled, 10, 100)
    monkeypatch.setattr(stores.live._files._file, "write", write)
    assert stores.live.complete_from == 100
    assert [entry.commit_ts for entry in read(stores.aside, stores.pulled, 10, 100)] == [20, 100]
    stores.append(stores.live, 140)
    assert stores.kept(100, 140) == [110, 120, 130, 140]
    stores.store.close()
    stores.open()
    assert stores.live.complete_from == 100
    assert stores.kept(100, 140) == [110, 120, 130, 140]

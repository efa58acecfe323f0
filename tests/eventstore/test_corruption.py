"""Damaged files are refused with their name and place, and never served."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import Retryable
from tidegate.eventstore import damage, reader, store_view
from tidegate.eventstore.floors import FLOORS
from tidegate.eventstore.manifest import MANIFEST
from tidegate.eventstore.order import Entry, block_of, entries_of
from tidegate.eventstore.store import EventStore
from tidegate.model.span import Span, span_id

SPAN = Span(b"a", b"z")
ID = span_id(SPAN)
ROWS = [Entry(ts, 1, 1, b"key%03d" % ts, b"value" * 5, b"old") for ts in range(1, 60)]


def make(folder: Path) -> Path:
    store = EventStore(folder)
    span = store.open_span(SPAN)
    span.begin(0)
    span.append(block_of(ROWS))
    span.seal(100)
    store.publish()
    store.close()
    return folder / ID / span.manifest.segments[0].file


def read(folder: Path) -> list[Entry]:
    return [e for block in reader.read(folder, ID, 0, 100) for e in entries_of(block)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_segment_with_any_changed_byte_is_refused_or_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("store")
    path = make(folder)
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(bad))
    refusal: Retryable | None = None
    try:
        assert read(folder) == ROWS  # padding and unused fields
    except Retryable as error:
        refusal = error
    assert refusal is None or (str(path) in refusal.where and "byte" in refusal.where)


def test_a_changed_value_is_found_by_its_crc(tmp_path: Path) -> None:
    path = make(tmp_path)
    good = path.read_bytes()
    at = good.index(b"valuevalue")
    path.write_bytes(good[:at] + b"VALUE" + good[at + 5 :])
    with pytest.raises(Retryable, match="CRC32C of a batch"):
        read(tmp_path)


@pytest.mark.parametrize("size", [0, 7, 500])
def test_a_cut_segment_is_refused(tmp_path: Path, size: int) -> None:
    path = make(tmp_path)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(Retryable, match="corrupt"):
        read(tmp_path)


def test_a_missing_segment_is_refused_after_the_manifest_was_read_again(tmp_path: Path) -> None:
    make(tmp_path).unlink()
    with pytest.raises(Retryable, match="the file is not there"):
        read(tmp_path)


def test_readers_reject_a_corrupt_manifest_and_the_writer_replaces_it(
    tmp_path: Path,
) -> None:
    make(tmp_path)
    path = tmp_path / ID / MANIFEST
    good = path.read_bytes()
    assert good.count(b"ranges") == 1
    path.write_bytes(good.replace(b"ranges", b"Ranges", 1))
    with pytest.raises(Retryable, match="manifest of the event store is corrupt") as caught:
        read(tmp_path)
    assert str(path) in caught.value.where
    assert caught.value.fix
    notices: list[Retryable] = []
    store = EventStore(tmp_path, on_pulled_again=notices.append)
    assert str(path) in notices[0].where
    span = store.open_span(SPAN)
    assert (span.resolved, span.manifest.segments) == (0, ())
    store.close()


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_changed_byte_in_a_manifest_or_page_never_hides_a_row(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("store")
    make(folder)
    path = folder / data.draw(st.sampled_from([f"{ID}/{MANIFEST}", FLOORS]))
    bad = bytearray(path.read_bytes())
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(bad))
    refusal: Retryable | None = None
    try:
        assert read(folder) == ROWS
    except Retryable as error:
        refusal = error
    reported = any(report.file == MANIFEST for report in damage.reports(folder))
    assert (refusal is not None) == reported == (path.name == MANIFEST)


def test_a_corrupt_page_is_reported_and_the_manifest_suffices(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / FLOORS
    bad = bytearray(path.read_bytes())
    bad[40] ^= 1
    path.write_bytes(bytes(bad))
    notices: list[Retryable] = []
    store = EventStore(tmp_path, on_pulled_again=notices.append)
    assert [notice.where for notice in notices] == [str(path)]
    assert store.open_span(SPAN).resolved == 100
    assert read(tmp_path) == ROWS
    store.publish()
    assert store_view.read_frontier(tmp_path) == {ID: 100}
    store.close()

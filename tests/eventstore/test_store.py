"""The promises of a span's store to its readers."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.eventstore.entries import entries
from tidegate.disk import DiskFull
from tidegate.errors import Fatal, Retryable
from tidegate.eventstore import merging, reader, store_view
from tidegate.eventstore.floors import FLOORS
from tidegate.eventstore.manifest import MANIFEST, Manifest, ManifestFile
from tidegate.eventstore.merging import MERGE_COUNT
from tidegate.eventstore.order import Entry, block_of, entries_of, order_key, sort_entries
from tidegate.eventstore.segment import SegmentInfo
from tidegate.eventstore.span_files import FOLLOW_MS, SpanFiles
from tidegate.eventstore.span_store import SpanStore
from tidegate.eventstore.store import EventStore
from tidegate.model.span import Span
from tidegate.model.timestamp import compose, physical_ms

SPAN = Span(b"a", b"z")


def put(ts: int, key: bytes = b"k", value: bytes = b"v") -> Entry:
    return Entry(ts, ts - 1, 1, key, value, b"")


def read(store: EventStore, span: SpanStore, after: int, upto: int, max_rows: int = 65536) -> list[Entry]:
    return [e for b in reader.read(store.folder, span.id, after, upto, max_rows) for e in entries_of(b)]


@settings(max_examples=40, deadline=None)
@given(data=st.data(), memory=st.sampled_from([1, 400, 1 << 20]))
def test_any_mix_of_appends_seals_spills_and_restarts_reads_in_plain_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, memory: int
) -> None:
    folder = tmp_path_factory.mktemp("store")
    store = EventStore(folder, memory_bytes=memory)
    span = store.open_span(SPAN)
    span.begin(100)
    kept: list[Entry] = []
    resolved = 100
    for _ in range(data.draw(st.integers(1, 25))):
        fresh = [e._replace(commit_ts=resolved + e.commit_ts) for e in data.draw(entries(30, 12))]
        span.append(block_of(fresh))
        kept += fresh
        match data.draw(st.integers(0, 4)):
            case 0:
                resolved += data.draw(st.integers(0, 20))
                span.seal(resolved)
                store.publish()
            case 1:  # a restart: what was not published is pulled again
                store.close()
                store = EventStore(folder, memory_bytes=memory)
                span = store.open_span(SPAN)
                assert span.resolved == resolved
                span.append(block_of([e for e in kept if e.commit_ts > resolved]))
    span.seal(resolved + 40)
    store.publish()
    after = data.draw(st.integers(100, resolved))
    upto = data.draw(st.integers(after, resolved + 40))
    found = read(store, span, after, upto, data.draw(st.integers(1, 9)))
    assert [order_key(e) for e in found] == [order_key(e) for e in sort_entries(kept, after, upto)]
    store.close()


def test_readers_see_nothing_before_it_is_published_and_all_of_it_then(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(10)
    span.append(block_of([put(11), put(15)]))
    assert store_view.read_frontier(tmp_path) == {}
    span.seal(12)
    store.publish()
    assert store_view.read_frontier(tmp_path) == {span.id: 12}
    assert read(store, span, 10, 12) == [put(11)]
    with pytest.raises(Retryable, match="beyond the resolved ts"):
        read(store, span, 10, 15)


def test_an_idle_span_advances_on_the_page_alone_even_across_a_restart(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(10)
    manifest = (tmp_path / span.id / MANIFEST).read_bytes()
    span.seal(500)
    store.publish()
    assert (tmp_path / span.id / MANIFEST).read_bytes() == manifest
    assert read(store, span, 10, 500) == []
    store.close()
    assert EventStore(tmp_path).open_span(SPAN).resolved == 500


def test_the_manifest_of_an_idle_span_follows_after_a_minute_or_two(tmp_path: Path) -> None:
    """The time is that of upstream's timestamps."""
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(compose(0))
    written = (tmp_path / span.id / MANIFEST).stat().st_size
    for passed in range(50, 5 * FOLLOW_MS, 50):  # 6,000 ticks
        span.seal(compose(passed))
        store.publish()
        manifest = store_view.read_manifest(tmp_path, span.id)
        assert passed - physical_ms(manifest.resolved) <= 2 * FOLLOW_MS
    assert store_view.read_frontier(tmp_path)[span.id] == compose(passed)
    fresh = (tmp_path / span.id / MANIFEST).stat().st_size - written
    assert 0 < fresh < 6 * 64, "a short record each time"


def test_one_more_segment_costs_a_record_and_a_base_now_and_then(tmp_path: Path) -> None:
    """However many segments there are: so they are too large to be merged here."""
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(0)
    path, bases, sizes = tmp_path / span.id / MANIFEST, set(), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "MERGE_BELOW", 0)
        for ts in range(2, 1200):
            before = path.stat()
            span.append(block_of([put(ts)]))
            span.seal(ts)
            after = path.stat()
            if after.st_ino == before.st_ino and after.st_size > before.st_size:
                sizes.append(after.st_size - before.st_size)
            else:
                bases.add(ts)
    assert max(sizes) < 300
    assert 0 < len(bases) < 10
    assert len(store_view.read_manifest(tmp_path, span.id).segments) == 1198


def test_a_row_at_or_below_the_resolved_ts_is_refused(tmp_path: Path) -> None:
    span = EventStore(tmp_path).open_span(SPAN)
    span.begin(10)
    with pytest.raises(Fatal, match="at or below the resolved ts"):
        span.append(block_of([put(10)]))


def test_many_small_seals_leave_few_files(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(0)
    rows = [put(ts, b"k%d" % ts) for ts in range(2, 1000)]
    for row in rows:
        span.append(block_of([row]))
        span.seal(row.commit_ts)
    store.publish()
    assert len(span.manifest.segments) < 4 * MERGE_COUNT
    assert len(list((tmp_path / span.id).iterdir())) == len(span.manifest.segments) + 1
    assert read(store, span, 0, 999) == rows


def test_a_reader_that_began_before_a_merge_reads_to_its_end(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(0)
    rows = [put(ts) for ts in range(2, 2 + 3 * MERGE_COUNT)]
    for row in rows[: MERGE_COUNT - 1]:
        span.append(block_of([row]))
        span.seal(row.commit_ts)
    store.publish()
    opened = reader.read(tmp_path, span.id, 0, rows[MERGE_COUNT - 2].commit_ts, max_rows=1)
    found = entries_of(next(opened))
    for row in rows[MERGE_COUNT - 1 :]:
        span.append(block_of([row]))
        span.seal(row.commit_ts)
    found += [e for block in opened for e in entries_of(block)]
    assert found == rows[: MERGE_COUNT - 1]


def test_a_disk_that_is_full_at_a_merge_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(0)
    rows = [put(ts) for ts in range(2, 2 + 2 * MERGE_COUNT)]
    sealed = []
    written = []

    def full(file: ManifestFile, manifest: Manifest) -> int:
        # Only a merge makes the list of segments shorter.
        if written and len(manifest.segments) < len(written[-1].segments):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(manifest)
        return write(file, manifest)

    write = ManifestFile.write
    monkeypatch.setattr(ManifestFile, "write", full)

    def fill() -> None:
        for row in rows:
            span.append(block_of([row]))
            span.seal(row.commit_ts)
            store.publish()
            sealed.append(row)

    with pytest.raises(OSError, match="No space left"):
        fill()
    store.close()
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    assert span.resolved == sealed[-1].commit_ts
    assert read(store, span, 0, span.resolved) == sealed


def test_dropping_removes_whole_segments_and_says_what_is_gone(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(0)
    for low in (10, 20, 30):
        span.append(block_of([put(low), put(low + 5)]))
        span.seal(low + 5)
    store.publish()
    span.drop_below(27)
    assert [s.min_ts for s in span.manifest.segments] == [30]
    assert read(store, span, 25, 35) == [put(30), put(35)]
    with pytest.raises(Retryable, match="no longer has"):
        read(store, span, 20, 35)


def test_a_manifest_written_for_another_reason_keeps_the_announced_ts(
    tmp_path: Path,
) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(0)
    for ts in (10, 30):
        span.append(block_of([put(ts)]))
        span.seal(ts + 5)
    span.seal(500)
    store.publish()
    assert read(store, span, 20, 500) == [put(30)]
    span.drop_below(20)  # the page speaks of the manifest before this one
    assert read(store, span, 20, 500) == [put(30)]
    span.rewrite()
    assert read(store, span, 20, 500) == [put(30)]


def test_a_publish_that_fails_on_a_full_disk_succeeds_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(10)
    span.seal(20)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, data, at: 0)
        with pytest.raises(DiskFull):
            store.publish()
    assert store.pressure != ""
    assert store_view.read_frontier(tmp_path) == {}
    store.publish()
    assert store_view.read_frontier(tmp_path) == {span.id: 20}


def test_a_start_inside_the_held_range_is_ignored_and_one_outside_resets(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    span.append(block_of([put(110)]))
    span.seal(120)
    store.publish()
    span.begin(105)
    assert (span.complete_from, span.resolved, len(span.manifest.segments)) == (100, 120, 1)
    span.begin(50)
    assert (span.complete_from, span.resolved, len(span.manifest.segments)) == (50, 50, 0)
    assert store_view.read_frontier(tmp_path) == {}
    store.close()
    span = EventStore(tmp_path).open_span(SPAN)
    assert span.resolved == 50
    span.begin(300)
    assert (span.complete_from, span.resolved) == (300, 300)


def test_a_reader_that_meets_a_restarted_span_reports_it_and_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another feed has asked for an earlier ts between its looks at the frontier and at the manifest."""
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    span.append(block_of([put(110)]))
    span.seal(120)
    store.publish()
    read_manifest = store_view.read_manifest

    def begun_again(*given: object) -> Manifest:
        span.begin(50)
        return read_manifest(tmp_path, span.id)

    monkeypatch.setattr(store_view, "read_manifest", begun_again)
    with pytest.raises(Retryable, match="pulled again from an earlier ts"):
        read(store, span, 100, 120)


def test_a_concurrent_publish_does_not_announce_a_restarted_span(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(100)
    span.append(block_of([put(110)]))
    span.seal(120)
    store.publish()
    delete, seen = span._files.unload, []

    def publishing(manifest: Manifest, old: Sequence[SegmentInfo]) -> None:
        store.publish()
        delete(manifest, old)
        store.publish()
        seen.append(store_view.read_frontier(tmp_path))

    monkeypatch.setattr(SpanFiles, "unload", lambda self, *given: publishing(*given))
    span.begin(50)
    assert seen == [{}]


def test_a_durable_store_syncs_each_file_before_the_one_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = []

    def noted(force: Callable[[int], None]) -> Callable[[int], None]:
        def forcing(descriptor: int) -> None:
            forced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
            force(descriptor)

        return forcing

    store = EventStore(tmp_path, durable="fsync")
    span = store.open_span(SPAN)
    span.begin(10)
    store.publish()
    monkeypatch.setattr(os, "fsync", noted(os.fsync))
    monkeypatch.setattr(os, "fdatasync", noted(os.fdatasync))
    span.append(block_of([put(11)]))
    span.seal(12)
    store.publish()
    assert forced == [span.manifest.segments[0].file, MANIFEST, FLOORS]
    forced.clear()
    span.rewrite()
    assert forced == [f"{MANIFEST}.tmp", span.id]


def test_a_store_keeps_disk_space_free_and_resumes_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EventStore(tmp_path, keep_free=100)
    span = store.open_span(SPAN)
    span.begin(10)
    span.append(block_of([put(11)]))
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.eventstore.store.free_bytes", lambda folder: 99)
        with pytest.raises(DiskFull, match="leaves 0 MiB to others"):
            span.seal(12)
        store.recover()
        assert "the disk is full" in store.pressure
        assert span.resolved == 10
    store.recover()
    assert store.pressure == ""
    span.seal(12)
    store.publish()
    assert read(store, span, 10, 12) == [put(11)]


@pytest.mark.parametrize("name", ["frontier.json", "0123456789abcdef/manifest.json"])
def test_a_store_of_the_old_form_is_refused_and_left_as_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("{}")
    for _ in range(2):  # also the lock is free again
        with pytest.raises(Fatal, match="written by an earlier version") as caught:
            EventStore(tmp_path)
        assert caught.value.where == str(tmp_path)
        assert str(path) in caught.value.why
        assert "remove this folder" in caught.value.fix
    assert path.read_text() == "{}"


def test_a_second_process_is_kept_out(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    with pytest.raises(Retryable, match="in use"):
        EventStore(tmp_path)
    store.close()
    EventStore(tmp_path).close()


def test_pending_and_cut_follow_the_segments_without_opening_them(tmp_path: Path) -> None:
    store = EventStore(tmp_path, durable="fsync")
    span = store.open_span(SPAN)
    span.begin(0)
    for low in (100, 200, 300):
        span.append(block_of([put(low + i, b"k", b"v" * 99) for i in range(100)]))
        span.seal(low + 99)
    store.publish()
    manifest = store_view.read_manifest(tmp_path, span.id)
    assert store_view.pending(manifest, 0, 399) == (300, 30_000, 100, 399)
    assert store_view.pending(manifest, 399, 500) == (0, 0, 0, 0)
    rows, size, first, last = store_view.pending(manifest, 149, 249)
    assert (rows, size, first, last) == (100, 10_000, 150, 249)
    assert store_view.cut(manifest, 0, 399, 1 << 30) == 399
    assert store_view.cut(manifest, 0, 399, 1) == 100
    assert 195 <= store_view.cut(manifest, 0, 399, 10_000) <= 205
    assert store_view.cut(manifest, 150, 160, 1 << 30) == 160


def test_a_span_that_was_never_opened_is_reported_as_not_there_yet(tmp_path: Path) -> None:
    EventStore(tmp_path).close()
    with pytest.raises(Retryable, match="does not have this span yet"):
        store_view.read_manifest(tmp_path, "0" * 16)


def test_a_removed_span_leaves_nothing_and_starts_over_when_reopened(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span, other = store.open_span(SPAN), store.open_span(Span(b"z", b"zz"))
    for each in (span, other):
        each.begin(0)
        each.append(block_of([put(5)]))
        each.seal(10)
    store.publish()
    assert store_view.spans(tmp_path) == {span.id: (SPAN, 10), other.id: (other.span, 10)}
    assert set(store_view.spans(tmp_path, {other.id})) == {span.id}
    span.append(block_of([put(15)]))
    store.remove_span(SPAN)
    store.remove_span(SPAN)
    assert not (tmp_path / span.id).exists()
    assert store.held_bytes == 0
    span.seal(20)  # a puller that has not noticed yet
    store.publish()
    assert set(store_view.read_frontier(tmp_path)) == set(store_view.spans(tmp_path)) == {other.id}
    again = store.open_span(SPAN)
    assert (again.resolved, again.complete_from) == (0, 0)
    again.begin(30)
    assert again.complete_from == 30


def test_the_remains_of_an_interrupted_removal_go_at_the_next_start(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    for each in (SPAN, Span(b"z", b"zz")):
        span = store.open_span(each)
        span.begin(0)
        span.append(block_of([put(5)]))
        span.seal(10)
    store.publish()
    store.close()
    (tmp_path / span.id / MANIFEST).unlink()
    assert len(store_view.spans(tmp_path)) == 1
    EventStore(tmp_path).close()
    assert not (tmp_path / span.id).exists()
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 1


def test_a_span_with_runs_beyond_its_resolved_ts_says_how_far_they_reach(tmp_path: Path) -> None:
    store = EventStore(tmp_path)
    span = store.open_span(SPAN)
    span.begin(0)
    span.append(block_of([put(50)]))
    span.spill()
    span.append(block_of([put(3)]))
    span.seal(10)
    assert store_view.spans(tmp_path) == {span.id: (SPAN, 50)}

"""Removed segments give up their memory when new ones are written, and their names at once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.eventstore.test_store import SPAN, put, read
from tidegate.disk import DiskFull
from tidegate.eventstore import removed_files, segment
from tidegate.eventstore.order import block_of
from tidegate.eventstore.removed_files import KEPT_BYTES, QUOTA_SHARE, SMALL, UNUSED, RemovedFiles
from tidegate.eventstore.segment import Segment
from tidegate.eventstore.store import EventStore


def still_open(folder: Path) -> list[str]:
    """The removed files of a folder that this process has open, the oldest first."""
    targets = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    ends = [one.removesuffix(" (deleted)") for one in targets if one.endswith(" (deleted)")]
    return sorted(Path(one).name for one in ends if Path(one).is_relative_to(folder))


def removed(files: RemovedFiles, folder: Path, names: str, size: int = SMALL) -> None:
    """Make and remove a file for each letter."""
    for name in names:
        (folder / name).write_bytes(b"x")
        files.remove(folder / name, size)


def test_removed_files_are_closed_as_fast_as_new_ones_are_written(tmp_path: Path) -> None:
    files = RemovedFiles()
    removed(files, tmp_path, "abc")
    assert not list(tmp_path.iterdir())
    assert still_open(tmp_path) == ["a", "b", "c"]
    files.written(SMALL)
    assert still_open(tmp_path) == ["b", "c"]
    files.written(SMALL + 1)
    assert still_open(tmp_path) == []
    assert files.bytes == 0


def test_removed_files_are_closed_if_none_is_written_for_long(tmp_path: Path) -> None:
    files = RemovedFiles()
    removed(files, tmp_path, "a")
    files.tend(1 << 50)
    removed(files, tmp_path, "b")
    for _ in range(UNUSED - 1):
        files.tend(1 << 50)
    assert still_open(tmp_path) == ["a", "b"]
    files.tend(1 << 50)
    assert still_open(tmp_path) == ["b"]
    files.tend(1 << 50)
    assert still_open(tmp_path) == []


def test_removed_files_are_closed_when_others_fill_the_disk(tmp_path: Path) -> None:
    files = RemovedFiles()
    removed(files, tmp_path, "abc")
    files.tend(8 * 3 * SMALL)
    assert still_open(tmp_path) == ["a", "b", "c"]
    files.tend(8 * SMALL)
    assert still_open(tmp_path) == ["c"]
    files.tend(0)
    assert still_open(tmp_path) == []


def test_no_more_than_the_bounds_of_removed_files_stay_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = RemovedFiles()
    monkeypatch.setattr(removed_files, "free_bytes", lambda folder: 1 << 50)
    removed(files, tmp_path, "abc", KEPT_BYTES // 2)
    assert still_open(tmp_path) == ["b", "c"]
    monkeypatch.setattr(removed_files, "free_bytes", lambda folder: 8 * 2 * SMALL)
    removed(files, tmp_path, "def")
    assert still_open(tmp_path) == ["e", "f"]
    files.clear()
    assert still_open(tmp_path) == []
    limited = RemovedFiles(int(SMALL / QUOTA_SHARE))
    removed(limited, tmp_path, "gh")
    assert still_open(tmp_path) == ["h"]
    limited.clear()


def test_small_files_and_files_that_are_gone_are_not_kept_open(tmp_path: Path) -> None:
    files = RemovedFiles()
    removed(files, tmp_path, "a", SMALL - 1)
    files.remove(tmp_path / "b", SMALL)
    assert not list(tmp_path.iterdir())
    assert still_open(tmp_path) == []


def two_segments(folder: Path) -> EventStore:
    """A store with a segment at ts 110 and one at 120."""
    store = EventStore(folder)
    span = store.open_span(SPAN)
    span.begin(100)
    for ts in (110, 120):
        span.append(block_of([put(ts)]))
        span.seal(ts)
    store.publish()
    return store


def test_a_dropped_segment_is_closed_after_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removed_files, "SMALL", 1)
    store = two_segments(tmp_path)
    (span,) = store.open_spans()
    first = span.manifest.segments[0]
    reader = Segment(tmp_path / span.id, first)
    span.drop_below(110)
    assert not (tmp_path / span.id / first.file).exists()
    assert reader.batch(0).num_rows == 1  # a reader keeps what it has open
    assert store.removed.bytes == first.bytes
    assert still_open(tmp_path)
    del reader
    span.append(block_of([put(130)]))
    span.seal(130)
    assert still_open(tmp_path) == []
    store.publish()
    assert [entry.commit_ts for entry in read(store, span, 110, 130)] == [120, 130]
    store.close()


def test_a_full_disk_and_the_end_of_a_store_close_removed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise DiskFull("the disk is full", where="", why=os.strerror(errno.ENOSPC), fix="")

    monkeypatch.setattr(removed_files, "SMALL", 1)
    store = two_segments(tmp_path)
    (span,) = store.open_spans()
    span.drop_below(110)
    assert still_open(tmp_path)
    span.append(block_of([put(130)]))
    with monkeypatch.context() as failing:
        failing.setattr(segment, "write", full)
        with pytest.raises(DiskFull):
            span.seal(130)
    assert still_open(tmp_path) == []
    span.drop_below(120)
    assert still_open(tmp_path)
    store.close()
    assert still_open(tmp_path) == []


def test_removed_files_are_closed_before_a_disk_counts_as_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removed_files, "SMALL", 1)
    store = two_segments(tmp_path)
    (span,) = store.open_spans()
    span.drop_below(110)
    store.keep_free = 100
    monkeypatch.setattr(
        "tidegate.eventstore.store.free_bytes", lambda folder: 99 if store.removed.bytes else 100
    )
    store.admit()
    assert store.removed.bytes == 0
    store.close()


def test_a_store_whose_sealer_sleeps_closes_removed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sealed or published, for example while upstream is down."""
    monkeypatch.setattr(removed_files, "SMALL", 1)
    store = two_segments(tmp_path)
    (span,) = store.open_spans()
    span.drop_below(110)
    for _ in range(UNUSED):
        store.tend()
    assert still_open(tmp_path)
    store.tend()
    assert still_open(tmp_path) == []
    store.close()

"""The engine's contract: atomic batches, snapshots of one moment, durability."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.errors import Fatal
from tidegate.tikv import mvcc
from tidegate.tikv.engine import META, Engine
from tidegate.tikv.reader import Cursor


def entries(cursor: Cursor, start: bytes = b"") -> list[tuple[bytes, bytes]]:
    cursor.seek(start)
    found = []
    while cursor.valid():
        found.append((cursor.key(), cursor.value()))
        cursor.next()
    return found


def test_a_batch_spans_column_families_and_its_last_change_wins(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.write(
        [(mvcc.LOCK, b"k", b"1"), (mvcc.WRITE, b"k", b"2"), (mvcc.LOCK, b"k", None), (META, b"k", b"3")]
    )
    assert [engine.get(cf, b"k") for cf in (mvcc.DEFAULT, mvcc.LOCK, mvcc.WRITE, META)] == [
        None,
        None,
        b"2",
        b"3",
    ]
    engine.close()


def test_a_snapshot_and_its_cursors_stay_at_their_moment(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.write([(mvcc.LOCK, b"a", b"1"), (mvcc.WRITE, b"a", b"1"), (mvcc.DEFAULT, b"a", b"1")])
    snapshot = engine.snapshot()
    live = engine.cursor(mvcc.LOCK)
    engine.write([(mvcc.LOCK, b"a", None), (mvcc.LOCK, b"b", b"2"), (mvcc.DEFAULT, b"a", b"2")])
    assert entries(snapshot.cursor(mvcc.LOCK)) == [(b"a", b"1")]
    assert entries(snapshot.cursor(mvcc.LOCK)) == [(b"a", b"1")]
    assert entries(live) == [(b"a", b"1")], "a cursor is fixed when it is made"
    assert snapshot.get(mvcc.DEFAULT, b"a") == b"1"
    assert snapshot.get(mvcc.DEFAULT, b"b") is None
    assert entries(engine.cursor(mvcc.LOCK)) == [(b"b", b"2")]
    engine.close()


def test_a_cursor_ends_before_its_upper_bound(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.write([(mvcc.LOCK, key, b"") for key in (b"a", b"b", b"c")])
    assert entries(engine.cursor(mvcc.LOCK, b"c"), b"b") == [(b"b", b"")]
    engine.close()


def test_what_was_written_is_there_after_reopening(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.write([(mvcc.WRITE, b"k", b"v")])
    engine.sync()
    engine.close()
    again = Engine(tmp_path)
    assert again.get(mvcc.WRITE, b"k") == b"v"
    again.close()


def test_a_data_directory_is_open_once(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    with pytest.raises(Fatal, match="another") as refused:
        Engine(tmp_path)
    assert str(tmp_path) in str(refused.value)
    engine.close()


def test_a_cursor_keeps_the_bytes_of_its_bound(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    engine.write([(META, b"region/%d" % i, b"x") for i in range(3)] + [(META, b"tso", b"y")])
    for _ in range(50):
        cursor = engine.cursor(META, upper=b"region" + bytes([ord("/") + 1]))
        assert [len(bytes(7)) for _ in range(50)], "what was freed is used again"
        assert len(entries(cursor, b"region/")) == 3
    engine.close()

"""A reader's file: what it keeps, how it is cut, what it drops. The oracle takes one row at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sink.test_kafka_owner import event
from tidegate.config.reading import load_config
from tidegate.config.sink_uri import parse_sink_uri, reader_uri
from tidegate.errors import Fatal, Fenced, InvalidInput, Retryable
from tidegate.model.arrow_rows import ArrowRows
from tidegate.model.cells import DELETE, INSERT, UPDATE
from tidegate.model.progress import SpanProgress
from tidegate.sink.base import SinkFeed
from tidegate.sink.reader import sink as reader_sink
from tidegate.sink.reader.changes import Changes, Definition
from tidegate.sink.reader.sink import ReaderSink, ReaderWriter, pieces, typed

WORDS = {INSERT: "insert", UPDATE: "update", DELETE: "delete"}
Row = tuple[int, int, str | None, str | None]
"""Commit ts, op, old value, new value."""
TABLE: Any = SimpleNamespace(schema="s", table="t")
START = 10


def block(rows: Sequence[Row]) -> ArrowRows:
    old, new = (pa.record_batch({"v": pa.array([row[at] for row in rows], pa.string())}) for at in (2, 3))
    ts, op = np.array([row[0] for row in rows], np.uint64), np.array([row[1] for row in rows], np.uint8)
    return ArrowRows(TABLE, op, ts, np.arange(len(rows)), new, old)


def sink_in(folder: Path, max_kept: int = 1 << 30, hold_s: int = 3600) -> ReaderSink:
    uri = reader_uri("typed", hold_s, max_kept)
    config = load_config(None, parse_sink_uri("kafka://127.0.0.1:1/feed?protocol=open-protocol"))
    return ReaderSink(SinkFeed(1, "default", "r", "one", uri, config, (1, 1, 1), "here", folder))


class Place:
    """A reader's file with a writer and an owner."""

    def __init__(
        self, folder: Path, max_kept: int = 1 << 30, hold_s: int = 3600, info: dict[str, Any] | None = None
    ) -> None:
        self.changes = Changes(folder)
        first = Definition(START, -1, "s", "t", "s", "t", 0, "", info or {"id": 1})
        self.changes.begin("one", START, [first], round(time.time() * 1000))
        self.sink = sink_in(folder, max_kept, hold_s)
        self.sink.fence({"here": 2}, lambda: None)
        self.owner = self.sink.open_owner(None, lambda: None)
        self.writer: ReaderWriter = self.sink.writer(0, lambda: None)

    def write(self, *ts: int, size: int = 1) -> None:
        """A piece of one row a ts, of about so many bytes each: random, so that they stay as many."""
        rows = [(one, INSERT, None, np.random.default_rng(one).bytes(size).hex()) for one in ts]
        self.writer.write([block(rows)])
        self.writer.commit({"s": SpanProgress("one", (1, 1), 1, max(ts)).to_bytes()})

    def read(self, after: int, upto: int) -> list[int]:
        """The commit ts of what a task gets."""
        found = list[int]()
        for n in self.changes.numbers(after, upto, 0):
            rows = pa.ipc.open_stream(self.changes.piece(n, after).data).read_all()
            found += [ts for ts in rows["_tidegate_commit_ts"].to_pylist() if after < ts <= upto]
        return found


@given(
    st.lists(
        st.tuples(
            st.integers(1, (1 << 61) - 1),
            st.sampled_from([INSERT, UPDATE, DELETE]),
            st.text("ab"),
            st.text("ab"),
        ),
        min_size=1,
        max_size=20,
    )
)
def test_rows_have_their_operation_order_and_the_image_that_is_left(rows: list[Row]) -> None:
    given_rows = [
        (ts, op, None if op == INSERT else old, None if op == DELETE else new) for ts, op, old, new in rows
    ]
    found = typed(block(given_rows)).to_pylist()
    assert found == [
        {
            "_tidegate_op": WORDS[op],
            "_tidegate_commit_ts": ts,
            "_tidegate_seq": ts * 4 + (op != DELETE),
            "v": old if op == DELETE else new,
        }
        for ts, op, old, new in given_rows
    ]


def test_a_large_transaction_is_cut_into_pieces_and_a_large_row_goes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_sink, "PIECE_BYTES", 1000)
    rows: list[Row] = [(ts, INSERT, None, "x" * (5000 if ts == 7 else 10)) for ts in range(1, 200)]
    made = list(pieces("s", "t", [typed(block(rows[:100])), typed(block(rows[100:]))]))
    read = [pa.ipc.open_stream(one[-1]).read_all() for one in made]
    assert [ts for one in read for ts in one["_tidegate_commit_ts"].to_pylist()] == list(range(1, 200))
    assert len(made) > 5
    for row, one in zip(made, read, strict=True):
        stamps = one["_tidegate_commit_ts"].to_pylist()
        assert row[1:4] == (min(stamps), max(stamps), len(row[-1]))
        assert one.schema.metadata == {b"tidegate.schema": b"s", b"tidegate.table": b"t"}


def test_a_batch_is_what_is_between_however_pieces_and_batches_are_cut(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(11, 12, 15)
    place.write(13, 14)
    place.write(20, 30)
    place.owner.send_resolved(25)
    assert place.changes.progress().readable == 25
    for cuts in ([25], [12, 13, 25], [14, 20, 25], [11, 19, 25]):
        read = [place.read(after, upto) for after, upto in zip([10, *cuts], cuts, strict=False)]
        assert sorted(ts for one in read for ts in one) == [11, 12, 13, 14, 15, 20]
        assert [
            len([ts for ts in (11, 12, 13, 14, 15, 20) if a < ts <= b])
            for a, b in zip([10, *cuts], cuts, strict=False)
        ] == [len(one) for one in read]


def test_a_batch_takes_about_so_many_bytes_and_comes_on(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for ts in range(11, 31):
        place.write(ts, size=2000)
    assert place.changes.cut(10, 30, 0) == 30
    assert place.changes.cut(10, 40, 0) == 40
    assert place.changes.cut(30, 40, 0) == 30
    at, steps = 10, 0
    while (upto := place.changes.cut(at, 30, 12_000)) > at:
        assert place.changes.weight(at, upto) <= 12_000
        at, steps = upto, steps + 1
    assert (at, steps > 4) == (30, True)
    assert place.changes.cut(10, 30, 1) == 11, "one commit ts, though it is more"


def test_what_is_done_goes_and_the_file_gets_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.sink.reader.changes.SPARE_PAGES", 16)
    place = Place(tmp_path)
    for ts in range(11, 31):
        place.write(ts, ts + 1, size=50_000)
    place.owner.send_resolved(31)
    with closing(place.sink.connect()) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    size = place.changes.path.stat().st_size
    for confirmed_ts in range(12, 32):
        place.changes.receive(5, confirmed_ts)
    progress = place.changes.progress()
    assert (progress.confirmed_ts, progress.kept, progress.pending, progress.queried_ms) == (31, 0, False, 5)
    with closing(place.sink.connect()) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert place.changes.path.stat().st_size < size / 4
    place.changes.receive(6, 20)
    assert place.changes.progress().confirmed_ts == 31, "an older word changes nothing"
    with pytest.raises(InvalidInput, match="restored"):
        place.read(30, 31)
    with pytest.raises(InvalidInput, match="restored"):
        place.changes.piece(20, 30)


def test_a_piece_that_reaches_beyond_what_is_done_stays(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write(11, 14)
    place.write(12, 13)
    place.owner.send_resolved(14)
    place.changes.receive(1, 13)
    assert place.read(13, 14) == [14]
    assert 0 < place.changes.progress().kept < 2000


def test_a_full_reader_waits_for_its_query_only_if_rows_are_readable(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path, max_kept=5000)
    for ts in (11, 12, 13):  # nothing is readable: who waited would wait for ever
        place.write(ts, size=4000)
    place.owner.send_resolved(12)
    with pytest.raises(Retryable, match="have reached their limit"):
        place.write(14)
    assert place.read(10, 20) == [11, 12, 13], "nothing of it is there"
    place.changes.receive(1, 11)
    with pytest.raises(Retryable, match="have reached their limit"):
        place.write(14)
    place.changes.receive(1, 12)
    place.write(14)
    assert place.read(12, 20) == [13, 14]


def test_a_reader_keeps_more_while_resolved_ts_waits_but_not_without_end(tmp_path: Path) -> None:
    place = Place(tmp_path, max_kept=20_000)
    ts = 11
    while place.changes.progress().kept <= 40_000:
        place.write(ts, size=4000)
        ts += 1
    with pytest.raises(Retryable, match="have reached their limit"):
        place.write(ts, size=4000)


def test_a_reader_whose_query_is_silent_is_given_up_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, hold_s=100)
    place.write(11)
    place.changes.receive(round((time.time() - 200) * 1000))
    place.owner.send_resolved(12)
    assert place.read(10, 12) == [11], "its query had no time to come back: the capture may have been down"
    monkeypatch.setattr(reader_sink, "GRACE_S", -1.0)
    place.changes.receive(round((time.time() - 50) * 1000))
    place.owner.send_resolved(13)
    silent_ms = round((time.time() - 200) * 1000)
    place.changes.receive(silent_ms)
    assert not place.changes.stop("it sent a request meanwhile", silent_ms - 1)
    with pytest.raises(Fatal, match="ErrReaderSilent"):
        place.owner.send_resolved(14)
    progress = place.changes.progress()
    assert (progress.kept, "its query sent no request" in progress.stopped_why) == (0, True)
    place.changes.receive(round(time.time() * 1000))
    with pytest.raises(Fatal, match="ErrReaderSilent"):  # or it would continue with a gap
        place.sink.open_owner(None, lambda: None)


def test_a_task_that_comes_after_its_reader_was_given_up_fails(tmp_path: Path) -> None:
    """An empty answer would end its batch without these rows."""
    place = Place(tmp_path)
    place.write(11)
    place.write(12)
    first, second = place.changes.numbers(10, 12, 0)
    assert place.changes.stop("silent", place.changes.progress().queried_ms)
    for later in (
        lambda: place.changes.numbers(10, 12, 0),
        lambda: place.changes.numbers(10, 12, first),
        lambda: place.changes.piece(second, 10),
    ):
        with pytest.raises(InvalidInput, match="ErrReaderSilent"):
            later()


def test_a_machine_that_slept_does_not_take_its_own_silence_for_its_querys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, wall, watched_s, slept_s = time.monotonic(), time.time(), [0.0], [0.0]
    # A clock of the test's own: between two looks a busy machine may take longer than the grace time.
    clock = SimpleNamespace(
        monotonic=lambda: began + watched_s[0], time=lambda: wall + watched_s[0] + slept_s[0]
    )
    monkeypatch.setattr(reader_sink, "time", clock)
    monkeypatch.setattr(reader_sink, "GRACE_S", 0.3)
    place = Place(tmp_path, hold_s=100)
    watched_s[0] = 0.4
    place.owner.send_resolved(11)
    slept_s[0] = 200
    place.owner.send_resolved(12)
    watched_s[0] = 0.8
    with pytest.raises(Fatal, match="ErrReaderSilent"):
        place.owner.send_resolved(13)


def test_ddl_is_kept_and_what_is_below_it_can_be_read(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.owner.send_resolved(12)
    place.owner.send_ddl(replace(event(20), after={"id": 7}))
    place.owner.send_ddl(event(20, seq=1))
    place.owner.send_ddl(event(20, seq=1))
    assert place.changes.progress().readable == 19
    known = place.changes.definitions()
    assert [(one.ts, one.seq, one.info) for one in known] == [
        (10, -1, {"id": 1}),
        (20, 0, {"id": 7}),
        (20, 1, None),
    ]
    assert place.changes.progress().pending is False
    place.owner.send_resolved(20)
    progress = place.changes.progress()
    assert (progress.pending, progress.place, progress.ddl) == (True, 10, 3)


def test_ddl_is_found_by_where_a_batch_begins_and_ends(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for one in (event(20), event(20, seq=1), event(30)):
        place.owner.send_ddl(one)
    assert [place.changes.next_ddl(ts) for ts in (10, 19, 20, 30)] == [20, 20, 30, 0]
    reported = place.changes.statements(10, 20)
    assert [one[:2] for one in reported] == [(20, 0), (20, 1)]
    assert place.changes.statements(20, 29) == []


def test_the_checkpoint_shown_is_the_querys_or_how_far_there_is_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.owner.send_resolved(15)
    assert place.changes.progress().place == 15
    place.write(17)
    assert place.changes.progress().place == 15
    place.owner.send_resolved(18)
    assert place.changes.progress().place == 10
    place.changes.receive(1, 18)
    assert place.changes.progress().place == 18


def test_a_fenced_writer_commits_nothing_though_nobody_can_tell_it_so(tmp_path: Path) -> None:
    """Its slot was taken from it, it takes it back, and then its proof cannot be read: it may try again."""
    place = Place(tmp_path)

    def unknown() -> None:
        raise Retryable("the metadata store does not answer")

    place.writer.commits._prove = unknown
    later = sink_in(tmp_path)
    later.feed = replace(later.feed, grant=(1, 1, 2))
    later.fence({"here": 2}, lambda: None)
    for _ in range(2):
        with pytest.raises((Fenced, Retryable)):
            place.write(11)
    assert place.read(10, 20) == []


def test_a_reader_whose_file_was_removed_does_not_begin_another(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.changes.path.unlink()
    for begin in (
        lambda: place.sink.fence({"here": 2}, lambda: None),
        lambda: place.sink.writer(0, lambda: None),
    ):
        with pytest.raises(Fatal, match="gone"):
            begin()


def test_a_file_of_another_form_is_refused_in_one_line(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with closing(sqlite3.connect(place.changes.path)) as connection:
        connection.execute("PRAGMA user_version = 0")
    for use in (
        place.changes.progress,
        lambda: place.changes.numbers(10, 20, 0),
        lambda: place.sink.fence({"here": 2}, lambda: None),
        lambda: place.sink.writer(0, lambda: None),
    ):
        with pytest.raises(Fatal, match="form 0; this version of Tidegate reads form 1"):
            use()

"""The consumer's own files on a disk that gets full: it learns the cause, and nothing in part remains."""

from __future__ import annotations

import resource
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.consumer.test_job import bank_messages
from tests.consumer.test_net_effect import NAMES, any_changes
from tests.consumer.test_parted_bags import known_as
from tidegate.codec.base import BadMessage, Batch
from tidegate.codec.decode import decoder
from tidegate.codec.registry import codec_options
from tidegate.consumer.applying import part_file
from tidegate.consumer.applying.bad_rows import BadRows
from tidegate.consumer.applying.changes import BadRow
from tidegate.consumer.applying.part_file import PartFile, gathered
from tidegate.consumer.applying.parted import PartedTable
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.reading.fetch_spark import landed
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.reading.staging import stage
from tidegate.consumer.running.notices import Notices
from tidegate.consumer.running.progress import QUIET
from tidegate.disk import CONSUMER_ENDS, CONSUMER_WAITS, DiskFull
from tidegate.errors import Fatal
from tidegate.model.cells import DELETE, INSERT

LIMIT = 20_000


@contextmanager
def small_files(limit: int = LIMIT) -> Iterator[None]:
    """No file may have more bytes than `limit`, as if the disk were full then.

    Not a fixture, because the test's own output may be a file, too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def batch_of(count: int) -> pa.RecordBatch:
    return pa.record_batch({"a": pa.array(range(count), pa.int64())})


def table_of(op: int, count: int, file: Path) -> tuple[PartedTable, Any]:
    changes = any_changes([(1, op, (1, "x", at), (1, "x", at), 0) for at in range(count)])
    return PartedTable(("s", "t"), 2, 1, lambda: [(known_as(NAMES), changes)], file, True), changes


# Large rows fail at once, small ones when the buffer is written at the end.
@pytest.mark.parametrize("rows", [100_000, 10])
def test_a_full_disk_leaves_no_file(tmp_path: Path, rows: int) -> None:
    made = PartFile(tmp_path / "parts", 1)
    with small_files(), pytest.raises(DiskFull, match="the disk is full") as full:  # noqa: PT012
        for _ in range(LIMIT):
            made.add(0, batch_of(rows))
        made.end()
    assert full.value.fix == CONSUMER_ENDS
    with small_files():
        made.close()
        made.close()
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_file_may_find_the_disk_full(tmp_path: Path) -> None:
    made = PartFile(tmp_path / "parts", 1)
    made.add(0, batch_of(1))
    with small_files(10):
        with pytest.raises(DiskFull) as full:
            made.end()
        made.close()
    assert full.value.fix == CONSUMER_ENDS
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_during_the_cut_is_retried(tmp_path: Path) -> None:
    table, changes = table_of(INSERT, 5_000, tmp_path / "parts")
    with small_files(), pytest.raises(DiskFull):
        table.prepare()
    assert list(tmp_path.iterdir()) == [], "another attempt may need its space"
    found = [table.net_changes(part) for part in range(2)]
    assert sum(one.effect.inserts.num_rows for one in found if one is not None) == len(changes)  # type: ignore[union-attr]
    table.close()
    assert list(tmp_path.iterdir()) == []


def test_rows_that_cannot_be_read_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_file, "GATHERED_MAX", 1)

    def read() -> Iterator[Any]:
        yield known_as(NAMES), any_changes([(1, INSERT, (1, "x", 1), (1, "x", 1), 0)])
        assert (tmp_path / "parts").exists()
        raise Fatal("a row", where="here", why="it cannot be converted", fix="none")

    table = PartedTable(("s", "t"), 2, 1, read, tmp_path / "parts", True)
    with pytest.raises(Fatal, match="a row"):
        table.prepare()
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_during_the_search_leaves_no_file(tmp_path: Path) -> None:
    table, changes = table_of(DELETE, 10, tmp_path / "parts")
    held = pa.concat_tables([changes.old.select(NAMES)] * 1_000)
    with small_files():
        with pytest.raises(DiskFull):
            table.sift(held.to_batches())
        table.close()
    assert list(tmp_path.iterdir()) == []


def test_both_files_are_removed_whichever_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, changes = table_of(DELETE, 10, tmp_path / "parts")
    table.sift(changes.old.select(NAMES).to_batches())
    assert len(list(tmp_path.iterdir())) == 2
    remove = Path.unlink

    def refusing(path: Path, missing_ok: bool = False) -> None:
        if path.name == "parts":
            raise PermissionError
        remove(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", refusing)
    with pytest.raises(PermissionError):
        table.close()
    assert [path.name for path in tmp_path.iterdir()] == ["parts"]


def test_a_list_of_gathered_items_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_file, "GATHERED_BYTES", 10)
    monkeypatch.setattr(part_file, "GATHERED_MAX", 3)
    read = iter([4, 4, 4, 1, 1, 1, 90, 0])
    lists = gathered(read, lambda item: item)
    assert next(lists) == [4, 4, 4]
    assert next(read) == 1, "it is read only as far as necessary"
    assert list(lists) == [[1, 1, 90], [0]]


def test_rows_on_their_way_that_find_no_space_leave_no_file(tmp_path: Path) -> None:
    """Their range is fetched again: `Fetched.outage`."""
    messages = [message for partition, message in bank_messages() if partition == 1]
    batch = Batch([m.key for m in messages], [m.value for m in messages], range(len(messages)))
    decoded = decoder(codec_options({"protocol": "open-protocol"})).decode(batch)
    with small_files(1_000), pytest.raises(DiskFull) as here:
        stage(decoded, 1, tmp_path / "1-5.arrow")
    with small_files(), pytest.raises(DiskFull) as from_a_task:
        landed(Fetched(1, 5, 1), [("1-5.arrow", zlib.compress(bytes(2 * LIMIT)))], tmp_path)
    assert here.value.fix == from_a_task.value.fix == CONSUMER_WAITS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["message", "row"])
def test_a_quarantine_that_finds_the_disk_full_speaks_of_the_consumer(tmp_path: Path, kind: str) -> None:
    """The same file of a capture has words about changefeeds."""
    file, topic = tmp_path / "quarantine.jsonl", Topic("kafka://127.0.0.1/t?protocol=open-protocol")
    bad = b"x" * LIMIT
    with small_files(), pytest.raises(DiskFull) as full:  # noqa: PT012
        if kind == "row":
            row = BadRow(0, 1, 0, 5, "it is bad", {"n.a": bad}, INSERT)
            BadRows(file, topic.place).add(("s", "t"), [row])
        else:
            message = BadMessage(1, b"", bad, "it is bad")
            Notices(topic, file, QUIET).set_aside(Fetched(0, 2, 1, bad=(message,)))
    assert full.value.fix == CONSUMER_ENDS

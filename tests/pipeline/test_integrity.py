"""Row checksums in the pipeline: what is counted, what goes into quarantine, and what stops the feed."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.contracts.codec_rows import messages_of
from tests.pipeline.control_end import PATIENCE_S, ControlEnd
from tests.pipeline.recorded import RecordedFeed

from tidegate.codec.base import Batch
from tidegate.codec.decode import decoder
from tidegate.codec.readback import Misencoded, ReadBack
from tidegate.codec.registry import codec_options
from tidegate.errors import Fatal
from tidegate.model.cells import RowBlock
from tidegate.model.message import MessageBlock
from tidegate.model.span import Span
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Report
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.deliver import Worker
from tidegate.sink import quarantine
from tidegate.sink.base import Content
from tidegate.tidb import checksum, keys, row
from tidegate.workload.changelog import LogMutation, Txn

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"
DAMAGED = (3, 70, 400)
"""Which rows of the log have a bit flipped on their way."""


def checked(level: str) -> dict[str, Any]:
    return {"integrity": {"integrity-check-level": "correctness", "corruption-handle-level": level}}


class SealedFeed(RecordedFeed):
    """The log as a TiDB with the switch on would have written it, and damaged on its way."""

    def __init__(self, folder: Path, sink_uri: str = URI, damaged: tuple[int, ...] = DAMAGED) -> None:
        self.damaged, self.seen, self.lost = damaged, 0, list[tuple[int, bytes]]()
        super().__init__(folder, BANK, sink_uri, UPTO)

    def _take(self, txn: Txn) -> None:
        written = []
        for m in txn.mutations:
            table = keys.parse_record(m.key).table_id if keys.is_record(m.key) else 1 << 40
            if m.op in ("put", "insert") and table < 1 << 40:
                assert m.value[0] == row.V2
                m = LogMutation(m.op, m.key, checksum.sealed(m.value, m.key))
            written.append(m)
        super()._take(Txn(txn.start_ts, txn.commit_ts, txn.primary, tuple(written), txn.is_base))
        for m in written:
            if m.op in ("put", "insert") and m.value[1:2] in (b"\x02", b"\x03") and keys.is_record(m.key):
                self.seen += 1
                if self.seen in self.damaged:
                    self._damage(keys.parse_record(m.key).table_id, m.key)

    def _damage(self, table: int, key: bytes) -> None:
        rows = self.rows[table]
        at = max(i for i, one in enumerate(rows) if one[3] == key)
        ts, start_ts, op, key, value, old = rows[at]
        rows[at] = (ts, start_ts, op, key, value[:-6] + bytes([value[-6] ^ 4]) + value[-5:], old)
        self.lost.append((ts, key))

    def worker(self, settings: dict[str, Any], incarnation: int = 1) -> tuple[Worker, Keeper]:
        spec = FeedSpec.load(self.write(incarnation, settings=settings))
        keeper = Keeper()
        return Worker(LocalAccess(spec), lambda _: 3, keeper), keeper

    def ranges(self, after: int = 0, upto: int = 1 << 62) -> list[Range]:
        spans = Bounds.load(self.feed_dir / "bounds.json").spans
        return [Range(span, max(ts, after), min(self.last_ts, upto)) for span, ts in spans.items()]


class Keeper:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.rows = self.waiting = 0

    @contextmanager
    def writer(self) -> Iterator[Keeper]:
        yield self

    is_due = False
    room = 1 << 30
    granted = (Span(b"", b""),)

    def write(self, contents: Sequence[Content]) -> None:
        self.waiting += sum(len(one) for one in contents)

    def commit(self, progress: Mapping[str, bytes]) -> None:
        self.rows, self.waiting = self.rows + self.waiting, 0

    def abort(self) -> None:
        self.waiting = 0


def total(reports: list[Report], name: str) -> int:
    return sum(getattr(report, name) for report in reports)


def test_a_warned_feed_continues_counts_and_keeps_the_raw_rows(tmp_path: Path) -> None:
    feed = SealedFeed(tmp_path)
    worker, keeper = feed.worker(checked("warn"))
    reports = worker.deliver(feed.ranges())
    assert total(reports, "mismatched") == len(DAMAGED)
    assert total(reports, "matched") > 1000
    assert total(reports, "quarantined") == total(reports, "excused") == 0
    kept = quarantine.read(feed.feed_dir / "quarantine.jsonl")
    assert sorted((e["where"]["commit_ts"], e["key"]) for e in kept) == sorted(feed.lost)
    for entry in kept:
        found = entry["checksum"]
        assert found["version"] == 2
        assert found["expected"] != found["found"]
        assert found["found"] == checksum.raw_sum(entry["value"][:-4], entry["key"], 2)
        assert entry["where"]["image"] == "new"
        handle = keys.parse_record(entry["key"])
        assert entry["where"]["handle"] == (str(handle.int_handle) if handle.is_int else handle.handle.hex())
        for part in (entry["where"]["table"], entry["where"]["handle"], str(found["expected"])):
            assert part in entry["why"]
    assert keeper.rows == total(reports, "messages") > 0


class Listener(Keeper):
    """Keeps the messages, too."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[bytes | None] = []

    def write(self, contents: Sequence[Content]) -> None:
        super().write(contents)
        for block in contents:
            assert isinstance(block, MessageBlock)
            self.values += [message.value for _, message in messages_of(block)]


@pytest.mark.parametrize("level", ["correctness", "none"])
def test_messages_tell_the_checksums_of_their_rows(tmp_path: Path, level: str) -> None:
    feed = SealedFeed(tmp_path, URI.replace("open-protocol", "simple"))
    settings = {"integrity": {"integrity-check-level": level, "corruption-handle-level": "warn"}}
    spec, listener = FeedSpec.load(feed.write(1, settings=settings)), Listener()
    reports = Worker(LocalAccess(spec), lambda _: 3, listener).deliver(feed.ranges())
    reported = [value for value in listener.values if value is not None and b'"checksum":' in value]
    batch = Batch([None] * len(listener.values), listener.values, range(len(listener.values)))
    found = decoder(codec_options({"protocol": "simple"})).decode(batch)
    if level == "none":
        assert reported == found.bad == []
        return
    # An old value may carry none, and so may then the delete of it.
    assert len(reported) > total(reports, "messages") // 3
    # Each damaged row is marked; the sums of all others are those of their columns, or they would be bad.
    assert [bad.why.rpartition(" ")[2] for bad in found.bad] == ["corrupted"] * len(DAMAGED)


class Defect(ReadBack):
    """Reads back what an encoder with a defect wrote: the last digit of each message's balance is another."""

    def compare(
        self, block: RowBlock, messages: MessageBlock, partition: npt.NDArray[np.int32]
    ) -> list[Misencoded]:
        data = messages.data.copy()
        for start, length in zip(messages.value_start.tolist(), messages.value_length.tolist(), strict=True):
            at = data[start : start + length].tobytes().find(b'"balance":"')
            if at >= 0:
                data[start + at + len(b'"balance":"')] ^= 1
        return super().compare(block, replace(messages, data=data), partition)


def encoding(level: str) -> dict[str, Any]:
    return {"integrity": {"verify-encoded": True, "corruption-handle-level": level}}


SIMPLE = URI.replace("open-protocol", "simple")


@pytest.mark.parametrize("uri", [URI, SIMPLE, URI.replace("open-protocol", "canal-json")])
def test_what_is_encoded_as_it_should_be_passes(tmp_path: Path, uri: str) -> None:
    feed = SealedFeed(tmp_path, uri)
    worker, keeper = feed.worker(encoding("error"))
    reports = worker.deliver(feed.ranges())
    assert total(reports, "misencoded") == 0
    assert keeper.rows > 0
    assert quarantine.read(feed.feed_dir / "quarantine.jsonl") == []


def test_rows_that_are_encoded_otherwise_are_counted_kept_and_sent(tmp_path: Path) -> None:
    feed = SealedFeed(tmp_path, SIMPLE)
    worker, keeper = feed.worker(encoding("warn"))
    worker.plan = replace(worker.plan, read_back=Defect(worker.plan.codec))
    reports = worker.deliver(feed.ranges())
    kept = quarantine.read(feed.feed_dir / "quarantine.jsonl")
    assert total(reports, "misencoded") == len(kept) > 100
    assert total(reports, "mismatched") == total(reports, "quarantined") == 0
    assert keeper.rows == total(reports, "messages")
    for entry in kept:
        assert (entry["where"]["table"], entry["where"]["column"]) == ("bank.accounts", "balance")
        assert re.fullmatch(r"id = \d+", entry["where"]["row"])
        assert re.fullmatch("encoded otherwise: (its old value: )?it has another value", entry["why"])
        assert b'"balance":"' in entry["value"]


def test_a_feed_that_must_stop_sends_nothing_of_wrongly_encoded_rows(tmp_path: Path) -> None:
    feed = SealedFeed(tmp_path, SIMPLE)
    worker, keeper = feed.worker(encoding("error"))
    worker.plan = replace(worker.plan, read_back=Defect(worker.plan.codec))
    with pytest.raises(Fatal, match="a message does not say what its row is") as caught:
        worker.deliver(feed.ranges())
    reported = (
        r"table bank.accounts, row with id = \d+, commit ts \d+, column balance: .*it has another value \("
    )
    assert re.match(reported, caught.value.why)
    assert keeper.rows == 0


def test_a_feed_that_only_compares_messages_survives_an_undecodable_row(
    tmp_path: Path,
) -> None:
    feed = SealedFeed(tmp_path, damaged=())
    rows = next(r for t, r in feed.rows.items() if t < 1 << 40 and r)
    rows[0] = (*rows[0][:4], rows[0][4][:7], rows[0][5])
    worker, keeper = feed.worker(encoding("error"))
    assert total(worker.deliver(feed.ranges()), "quarantined") == 1
    assert keeper.rows > 0


def test_a_feed_that_must_stop_stops_before_the_damaged_block(tmp_path: Path) -> None:
    feed = SealedFeed(tmp_path)
    worker, keeper = feed.worker(checked("error"))
    with pytest.raises(Fatal, match=r"^\[CDC:ErrCorruptedDataMutation\]changefeed default/") as caught:
        worker.deliver(feed.ranges())
    assert "carries checksum" in caught.value.why
    assert "corruption-handle-level = 'warn'" in caught.value.fix
    assert keeper.rows == 0
    assert quarantine.read(feed.feed_dir / "quarantine.jsonl") != []


def test_an_undecodable_row_stops_such_a_feed_too(tmp_path: Path) -> None:
    feed = SealedFeed(tmp_path, damaged=())
    table, rows = next((t, r) for t, r in feed.rows.items() if t < 1 << 40 and r)
    ts, start_ts, op, key, value, old = rows[0]
    rows[0] = (ts, start_ts, op, key, value[:7], old)
    worker, _ = feed.worker(checked("error"))
    with pytest.raises(Fatal, match="ErrCorruptedDataMutation"):
        worker.deliver(feed.ranges())
    (entry,) = quarantine.read(feed.feed_dir / "quarantine.jsonl")
    assert entry["where"]["table"] in entry["why"]
    assert keys.parse_record(entry["key"]).table_id == table


def test_nothing_is_compared_unless_asked_and_a_paused_feed_can_be_asked(tmp_path: Path) -> None:
    feed = SealedFeed(tmp_path)
    middle = sorted(ts for ts, _ in feed.lost)[0]
    worker, _ = feed.worker({})
    reports = worker.deliver(feed.ranges(upto=middle))
    assert (total(reports, "mismatched"), total(reports, "matched")) == (0, 0)
    worker, _ = feed.worker(checked("warn"), incarnation=2)
    reports = worker.deliver(feed.ranges(after=middle))
    later = sum(ts > middle for ts, _ in feed.lost)
    assert total(reports, "mismatched") == later > 0


@pytest.mark.integration
def test_the_job_tells_the_control_process_why_it_stopped(
    tmp_path: Path, kafka: str, new_topic: Callable[..., str]
) -> None:
    feed = SealedFeed(tmp_path, f"kafka://{kafka}/{new_topic(3)}?protocol=open-protocol")
    with ControlEnd(feed.folder / "control.sock") as control:
        with (feed.feed_dir / "log").open("ab") as log:
            command = [
                sys.executable,
                "-m",
                "tidegate.pipeline.job",
                str(feed.write(settings=checked("error"))),
            ]
            job = subprocess.Popen(command, stdout=log, stderr=log)
        error = control.wait_failure()
        assert job.wait(PATIENCE_S) != 0
    assert error.what.startswith("[CDC:ErrCorruptedDataMutation]changefeed default/recorded-")
    assert error.retry is False
    assert "quarantine.jsonl" in error.where
    assert "carries checksum" in error.why
    assert error.fix.startswith("repair the rows upstream")

"""The Spark job over a recorded change log and a real broker: every row once, fenced, restartable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.fixtures.topic import read_committed
from tests.integration.validators import read_topic, validate
from tests.pipeline.control_end import PATIENCE_S, ControlEnd
from tests.pipeline.recorded import RecordedFeed, begin
from tests.sink.slots import deliver
from tools.processes import descendants

from tidegate.codec.protocols.simple.message import OPERATIONS
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.errors import Fenced
from tidegate.model.block import OP_PUT
from tidegate.model.progress import SpanProgress, span_key
from tidegate.pipeline.exchange.feed import FeedSpec

pytestmark = pytest.mark.integration
BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
"""The second snapshot line of the log."""
SECRET = "q7Zsecret"
"""Given, and of no use to this broker: without a user there is no SASL."""


@pytest.fixture
def feed(tmp_path: Path, kafka: str, new_topic: Callable[..., str]) -> RecordedFeed:
    uri = f"kafka://{kafka}/{new_topic(3)}?protocol=open-protocol&sasl-password={SECRET}"
    return RecordedFeed(tmp_path, BANK, uri, UPTO)


@pytest.fixture
def control(feed: RecordedFeed) -> Iterator[ControlEnd]:
    with ControlEnd(feed.folder / "control.sock") as end:
        yield end


def start(spec: Path) -> subprocess.Popen[bytes]:
    log = (spec.parent / "log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-m", "tidegate.pipeline.job", str(spec)], stdout=log, stderr=log
    )


def seen_by_others(pid: int) -> list[bytes]:
    """Command line and environment of a process and of all that it started."""
    found = []
    for each in (pid, *(child for child, _ in descendants(pid))):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found += [Path(f"/proc/{each}/{name}").read_bytes() for name in ("cmdline", "environ")]
    return found


def expected(feed: RecordedFeed) -> Counter[int]:
    """Rows per commit ts of the tables that are replicated; a delete of a row that never was is no change."""
    replicated = (row for table, rows in feed.rows.items() if table < 1 << 40 for row in rows)
    return Counter(ts for ts, _, op, _, _, old in replicated if op == OP_PUT or old)


def found(uri: str) -> Counter[int]:
    counts: Counter[int] = Counter()
    for decoded in read_topic(uri).values():
        for table in decoded.rows:
            counts.update(table.commit_ts.tolist())
    return counts


def test_every_row_of_a_recorded_log_is_on_the_topic_once_and_in_order(
    feed: RecordedFeed, control: ControlEnd
) -> None:
    job = start(feed.write())
    try:
        control.wait_spans(feed.last_ts)
        shown = seen_by_others(job.pid)
    finally:
        job.send_signal(signal.SIGTERM)
    assert job.wait(PATIENCE_S) == 0
    assert len(shown) >= 6, "the driver, Spark's JVM and its Python processes"
    assert not [line for line in shown if SECRET.encode() in line]
    assert SECRET not in (feed.feed_dir / "log").read_text()
    keys = {"bank.accounts": ("id",), "bank.transfers": ("region", "id"), "bank.orders": ("id",)}
    report = validate(feed.sink_uri, keys)
    assert report.faults == []
    assert report.duplicates == 0
    assert report.rows == expected(feed).total()
    assert not (feed.feed_dir / "quarantine.jsonl").exists()


def test_rows_of_simple_come_behind_their_tables_definitions(
    tmp_path: Path, kafka: str, new_topic: Callable[..., str]
) -> None:
    feed = RecordedFeed(tmp_path, BANK, f"kafka://{kafka}/{new_topic(3)}?protocol=simple", UPTO)
    with ControlEnd(feed.folder / "control.sock") as control:
        job = start(feed.write())
        try:
            control.wait_spans(feed.last_ts)
        finally:
            job.send_signal(signal.SIGTERM)
        assert job.wait(PATIENCE_S) == 0
    uri = parse_sink_uri(feed.sink_uri)
    rows = 0
    for messages in read_committed(uri.bootstrap, uri.topic).values():
        known = set()
        for body in (json.loads(message.value()) for message in messages):
            if "tableSchema" in body:
                known.add(tuple(body["tableSchema"][name] for name in ("schema", "table", "version")))
            if body["type"] in OPERATIONS:
                assert (body["database"], body["table"], body["schemaVersion"]) in known
                rows += 1
    assert rows == expected(feed).total()
    assert found(feed.sink_uri) == expected(feed)


def test_what_another_feed_of_the_same_name_has_delivered_does_not_count(feed: RecordedFeed) -> None:
    spec = FeedSpec.load(feed.write())
    starts = begin(spec).starts
    span = min(starts)
    writer = spec.sink.writer(0, spec.prove)
    for instance, reported in (("another", starts), (spec.instance, starts | {span: UPTO})):
        record = SpanProgress(instance, (9, 9), 1, UPTO, rules=spec.rules).to_bytes()
        deliver(writer, [], {span_key(span, spec.rules): record})
        assert begin(spec).starts == reported


def test_a_new_incarnation_fences_every_slot_before_it_reads_progress(feed: RecordedFeed) -> None:
    spec = FeedSpec.load(feed.write(incarnation=1))
    begin(spec)
    old = [spec.sink.writer(slot, spec.prove) for slot in (0, spec.slots - 1)]
    begin(FeedSpec.load(feed.write(incarnation=2)))
    for writer in old:
        with pytest.raises(Fenced):
            deliver(writer, [], {"late": b"{}"})


def test_a_killed_driver_is_replaced_and_nothing_is_lost_or_doubled(
    feed: RecordedFeed, control: ControlEnd
) -> None:
    first = start(feed.write())
    control.wait_any_checkpoint()
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    second = start(feed.write(incarnation=2))
    try:
        control.wait_spans(feed.last_ts)
    finally:
        second.kill()
        second.wait()
    assert found(feed.sink_uri) == expected(feed)


def test_a_job_that_is_no_longer_granted_says_so_and_ends(feed: RecordedFeed, control: ControlEnd) -> None:
    spec = feed.write(incarnation=1)
    feed.grant(incarnation=2)
    with pytest.raises(Fenced, match="another incarnation"):
        begin(FeedSpec.load(spec))
    job = start(spec)
    assert job.wait(PATIENCE_S) != 0
    error = control.wait_failure()
    assert "another incarnation" in error.what
    assert found(feed.sink_uri) == Counter()

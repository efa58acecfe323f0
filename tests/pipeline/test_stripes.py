"""Tables that share a stripe: a feed delivers of them what it would with a span for each, and no more."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.validators import validate
from tests.pipeline.recorded import RecordedFeed, begin

from tidegate.eventstore.store import EventStore
from tidegate.eventstore.store_view import Unresolved
from tidegate.model.block import ENTRY_SCHEMA
from tidegate.model.message import MessageBlock
from tidegate.model.progress import SpanProgress, outlived, rules_key, span_key, span_progress
from tidegate.model.span import Span
from tidegate.model.timestamp import compose
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Report
from tidegate.pipeline.host.backlog import Backlog
from tidegate.pipeline.worker.access import LocalAccess, local
from tidegate.pipeline.worker.deliver import Worker, open_worker
from tidegate.server.catalogue.stripes import Stripes, spans_json, table_task
from tidegate.sink.base import Content
from tidegate.tidb import keys

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol&max-batch-size=1"
WIDTH = 64
"""The log's three tables lie in one stripe of so many."""


class StripedFeed(RecordedFeed):
    """The log with its tables in one stripe, next to a table that no catalogue knows."""

    unknown = 64
    behind = 0
    """A table whose range has not moved since the start."""

    def _fill(self) -> dict[str, dict[str, Any]]:
        if not self.store_dir.exists():
            rows = [row for table, found in self.rows.items() if table < 1 << 40 for row in found]
            ts, start_ts, op, _, value, old = rows[-1]
            rows.append((ts, start_ts, op, keys.int_record(self.unknown, 1), value, old))
            users = {table: found for table, found in self.rows.items() if table < 1 << 40}
            self.rows = {table: found for table, found in self.rows.items() if table not in users}
            super()._fill()
            self.rows |= users
            store = EventStore(self.store_dir, memory_bytes=self.store_bytes)
            span = store.open_span(keys.stripe_span(self.unknown, WIDTH))
            span.begin(self.start_ts)
            columns = list(zip(*rows, strict=True))
            batch = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
            span.append(pa.RecordBatch.from_arrays(batch, schema=ENTRY_SCHEMA))
            if self.behind:
                edges = [
                    span.span.start,
                    *map(keys.table_prefix, (self.behind, self.behind + 1)),
                    span.span.end,
                ]
                parts = [Span(*edge) for edge in itertools.pairwise(edges)]
                far = [self.last_ts + 1, self.start_ts, self.last_ts + 1]
                span.keep(list(zip(parts, far, strict=True)))
            else:
                span.seal(self.last_ts + 1)
            store.publish()
            store.close()
        return self.reported([table for table in self.rows if table < 1 << 40])

    def reported(self, tables: Sequence[int]) -> dict[str, Any]:
        """Return the entry of the stripe in `bounds.json` when these tables are wanted."""
        return spans_json(Stripes(WIDTH).begin(table_task(table, self.start_ts) for table in tables))


class Keeper:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, bytes]] = []
        self.records: dict[str, bytes] = {}

    @contextmanager
    def writer(self) -> Iterator[Keeper]:
        yield self

    is_due = False
    room = 1 << 30
    granted = (Span(b"", b""),)

    def write(self, contents: Sequence[Content]) -> None:
        for one in contents:
            assert isinstance(one, MessageBlock)
            keys_at, values_at = (
                zip(starts.tolist(), lengths.tolist(), strict=True)
                for starts, lengths in (
                    (one.key_start, one.key_length),
                    (one.value_start, one.value_length),
                )
            )
            self.messages += [
                (one.data[k : k + kn].tobytes(), one.data[v : v + vn].tobytes())
                for (k, kn), (v, vn) in zip(keys_at, values_at, strict=True)
            ]

    def commit(self, progress: Mapping[str, bytes]) -> None:
        self.records |= progress


def settings(*rules: str, width: int) -> dict[str, Any]:
    chosen = {"filter": {"rules": list(rules)}} if rules else {}
    return chosen | {"tidegate": {"ids-per-stripe": width}}


def delivered(feed: RecordedFeed, *rules: str, width: int = 1) -> tuple[Keeper, list[Report], FeedSpec]:
    """All of the log, by one worker."""
    spec = FeedSpec.load(feed.write(settings=settings(*rules, width=width)))
    keeper = Keeper()
    worker = Worker(LocalAccess(spec), lambda _: 1, keeper)  # type: ignore[arg-type]
    spans = Bounds.load(feed.feed_dir / "bounds.json").spans
    reports = worker.deliver([Range(span, ts, feed.last_ts) for span, ts in spans.items()])
    assert not (feed.feed_dir / "quarantine.jsonl").exists()
    return keeper, reports, spec


@pytest.mark.parametrize("rules", [(), ("bank.orders",), ("bank.*", "!bank.accounts")])
def test_a_stripe_delivers_what_spans_of_its_tables_deliver(tmp_path: Path, rules: tuple[str, ...]) -> None:
    striped = StripedFeed(tmp_path / "striped", BANK, URI, UPTO)
    keeper, reports, spec = delivered(striped, *rules, width=WIDTH)
    assert len(reports) == 1
    # With a span a table the control process names those that are wanted; here they are chosen by hand.
    plain = RecordedFeed(tmp_path / "plain", BANK, URI, UPTO)
    schemas = Worker(LocalAccess(spec), lambda _: 1, keeper).schemas  # type: ignore[arg-type]
    assert schemas is not None
    store = schemas.upto(striped.last_ts)
    names = {table: store.version_at(table, striped.last_ts) for table in plain.rows if table < 1 << 40}
    passing = {
        "": list(names),
        "bank.orders": [t for t, v in names.items() if v is not None and v.name == "bank.orders"],
        "bank.*": [t for t, v in names.items() if v is not None and v.name != "bank.accounts"],
    }[rules[0] if rules else ""]
    plain.rows = {table: rows for table, rows in plain.rows.items() if table in passing or table >= 1 << 40}
    wanted, one_by_one, _ = delivered(plain)
    assert sorted(keeper.messages) == sorted(wanted.messages)
    assert len(wanted.messages) > 0
    assert reports[0].messages == sum(report.messages for report in one_by_one)
    assert (reports[0].ts, reports[0].quarantined) == (striped.last_ts, 0)


def test_progress_in_a_stripe_counts_only_under_the_rules_that_made_it(tmp_path: Path) -> None:
    feed = StripedFeed(tmp_path, BANK, URI, UPTO)
    keeper, (report,), spec = delivered(feed, "bank.orders", width=WIDTH)
    assert span_progress(keeper.records, spec.instance, spec.rules)[report.span].ts == feed.last_ts
    wider = FeedSpec.load(feed.write(settings=settings("bank.*", width=WIDTH)))
    assert span_progress(keeper.records, wider.instance, wider.rules) == {}
    forced = FeedSpec.load(
        feed.write(settings=settings("bank.orders", width=WIDTH) | {"force-replicate": True})
    )
    assert span_progress(keeper.records, forced.instance, forced.rules) == {}
    again = FeedSpec.load(feed.write(settings=settings("bank.orders", width=WIDTH)))
    assert list(span_progress(keeper.records, again.instance, again.rules)) == [report.span]
    record = SpanProgress.from_bytes(keeper.records[span_key(report.span, again.rules)])
    assert SpanProgress.from_bytes(record.to_bytes()) == record


@pytest.mark.integration
def test_a_stripe_restarts_under_other_rules_and_sends_only_new_rows(
    tmp_path: Path, kafka: str, new_topic: Callable[..., str]
) -> None:
    """The rows of a table that was not wanted before lie among those that are durable."""
    uri = f"kafka://{kafka}/{new_topic(1)}?protocol=open-protocol"
    feed = StripedFeed(tmp_path, BANK, uri, UPTO)
    narrow, wide = (settings(rules, width=WIDTH) for rules in ("bank.orders", "bank.*"))
    spec = FeedSpec.load(feed.write(1, settings=narrow))
    ((stripe, start_ts),) = begin(spec).starts.items()
    assert start_ts == feed.start_ts
    (first,) = open_worker(LocalAccess(spec)).deliver([Range(stripe, start_ts, feed.last_ts)])
    assert begin(FeedSpec.load(feed.write(2, settings=narrow))).starts == {stripe: feed.last_ts}
    wider = FeedSpec.load(feed.write(3, settings=wide))
    begun = begin(wider)
    assert begun.starts == {stripe: feed.start_ts}
    assert outlived(begun.records, wider.instance, wider.rules) == {
        span_key(stripe, spec.rules): feed.last_ts,
        rules_key(spec.rules): feed.last_ts,
    }
    (second,) = open_worker(LocalAccess(wider)).deliver([Range(stripe, start_ts, feed.last_ts)])
    assert min(first.rows, second.rows) > 0
    keys_of = {"bank.orders": ("id",), "bank.accounts": ("id",), "bank.audit": ("id",)}
    found = validate(uri, keys_of)
    assert (found.faults, found.duplicates) == ([], 0)
    _, (whole,), _ = delivered(StripedFeed(tmp_path / "whole", BANK, URI, UPTO), "bank.*", width=WIDTH)
    assert first.rows + second.rows == whole.rows


def test_a_feed_passes_a_lagging_table_that_it_does_not_want(tmp_path: Path) -> None:
    """Also to a DDL, or target ts, that is little above that table's position."""
    plain, (whole,), spec = delivered(
        StripedFeed(tmp_path / "whole", BANK, URI, UPTO), "bank.*", "!bank.accounts", width=WIDTH
    )
    schemas = Worker(LocalAccess(spec), lambda _: 1, plain).schemas  # type: ignore[arg-type]
    assert schemas is not None
    feed = StripedFeed(tmp_path / "behind", BANK, URI, UPTO)
    tables = [table for table in feed.rows if table < 1 << 40]
    names = {table: schemas.upto(feed.last_ts).version_at(table, feed.last_ts) for table in tables}
    (feed.behind,) = (t for t, v in names.items() if v is not None and v.name == "bank.accounts")
    path = feed.write(settings=settings("bank.*", "!bank.accounts", width=WIDTH))
    file = feed.feed_dir / "bounds.json"
    bounds = json.loads(file.read_text())
    store = EventStore(feed.store_dir)
    store.open_span(keys.ddl_span()).seal(feed.last_ts + compose(60_000))
    store.publish()
    store.close()

    def due(*tables: int) -> list[Range]:
        file.write_text(json.dumps(bounds | {"spans": feed.reported(tables)}))
        backlog = Backlog(FeedSpec.load(path), dict.fromkeys(feed.reported(tables), feed.start_ts))
        return backlog.look()[0]

    assert due(*tables) == []
    (one,) = due(*(table for table in tables if table != feed.behind))
    assert one.upto == feed.last_ts
    keeper = Keeper()
    worker = Worker(local(str(path)), lambda _: 1, keeper)  # type: ignore[arg-type]
    (report,) = worker.deliver([one])
    assert (report.ts, report.rows) == (one.upto, whole.rows)
    assert sorted(keeper.messages) == sorted(plain.messages)
    assert due(*tables) == []
    with pytest.raises(Unresolved):
        worker.deliver([one])


def test_a_stripe_with_rows_of_others_alone_makes_no_batch(tmp_path: Path) -> None:
    feed = StripedFeed(tmp_path, BANK, URI, UPTO)
    path = feed.write(settings=settings(width=WIDTH))
    spec = FeedSpec.load(path)
    bounds = json.loads((feed.feed_dir / "bounds.json").read_text())

    def due(*tables: int) -> list[Range]:
        (feed.feed_dir / "bounds.json").write_text(json.dumps(bounds | {"spans": feed.reported(tables)}))
        return Backlog(spec, dict.fromkeys(feed.reported(tables), feed.start_ts)).look()[0]

    stripe = next(iter(bounds["spans"]))
    tables = sorted(table for table in feed.rows if table < 1 << 40)
    everything = [Range(stripe, feed.start_ts, feed.last_ts)]
    assert due(*tables) == everything
    assert due(tables[0] + 1) == []  # the id of a job: no table ever has it
    assert due(tables[0] + 1, tables[0]) == everything

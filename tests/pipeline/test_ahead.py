"""Whatever cuts and rules a feed has had, and wherever it was killed: no row goes out twice, none is lost.

A feed is begun again and again over the same rows, each time with another cut of the key space into spans,
inside tables too, or with other rules. Each time it delivers a part and is killed. The sink here is a list of
messages and a map of records, which grow together or not at all.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.pipeline.large import TABLE_ID, LargeFeed, row
from tests.pipeline.recorded import RecordedFeed

from tidegate.eventstore.store import EventStore
from tidegate.model.block import ENTRY_SCHEMA, OP_PUT
from tidegate.model.message import MessageBlock
from tidegate.model.progress import span_progress
from tidegate.model.span import Span, span_id
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.begin import resume
from tidegate.pipeline.worker.deliver import Worker
from tidegate.sink.base import Content
from tidegate.tidb import keys

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol&max-batch-size=1"
Sent = tuple[bytes, bytes]


class Killed(Exception):
    """The end of an incarnation."""


class Topic:
    """Messages and records that are durable, and a writer that dies after some commits."""

    def __init__(self, chance: Random, room: int) -> None:
        self.messages: list[Sent] = []
        self.records: dict[str, bytes] = {}
        self.lives = 1 << 40
        """Commits until the writer dies in the next one."""
        self._chance, self.room = chance, room
        self._open: list[Sent] = []
        self.granted = (Span(b"", b""),)

    @contextmanager
    def writer(self) -> Iterator[Topic]:
        self._open = []
        yield self

    @property
    def is_due(self) -> bool:
        return self._chance.random() < 0.5

    def write(self, contents: Sequence[Content]) -> None:
        for one in contents:
            assert isinstance(one, MessageBlock)
            parts = [(one.key_start, one.key_length), (one.value_start, one.value_length)]
            found = [
                [one.data[at : at + size].tobytes() for at, size in zip(*pair, strict=True)] for pair in parts
            ]
            self._open += zip(*found, strict=True)

    def commit(self, progress: Mapping[str, bytes]) -> None:
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        self.messages += self._open
        self.records |= progress
        self._open = []


class CutFeed:
    """A feed whose spans and rules are chosen at each incarnation.

    `raw`: updates that change a key are sent as such, in the next incarnation.
    """

    def __init__(self, feed: RecordedFeed, topic: Topic, *, width: int = 64) -> None:
        self.feed, self.topic, self.width, self.raw = feed, topic, width, False
        self.checkpoint, self.incarnation = feed.start_ts, 0
        self.lives = [0, 1, 2, 3, 5, 8, 1 << 40]
        """One of them is how many commits an incarnation makes before it is killed."""
        self.rows = sorted(
            (row for table, rows in feed.rows.items() if table < 1 << 40 for row in rows),
            key=lambda row: (row[3], row[0]),
        )
        feed.write()

    def begin(self, cuts: Sequence[bytes], rules: Sequence[str]) -> tuple[FeedSpec, dict[str, int]]:
        """The next incarnation; its spans and where each begins."""
        self.incarnation += 1
        edges = [b"t", *sorted(set(cuts)), b"u"]
        spans = [Span(start, end) for start, end in itertools.pairwise(edges)]
        reported = {
            span_id(span): {
                "start": span.start.hex(),
                "end": span.end.hex(),
                "physical_id": 0,
                "start_ts": self.checkpoint,
            }
            for span in spans
        }
        for span in spans:
            self._store(span)
        feed = self.feed
        feed._fill = lambda: reported  # type: ignore[method-assign]
        settings: dict[str, Any] = {
            "tidegate": {"ids-per-stripe": self.width},
            "sink": {"kafka-config": {"output-raw-change-event": self.raw}},
        }
        spec = FeedSpec.load(
            feed.write(self.incarnation, settings=settings | {"filter": {"rules": list(rules)}})
        )
        begun = resume(spec, self.topic.records)
        return spec, {span: ts for span, ts in begun.starts.items() if span in reported}

    def _store(self, span: Span) -> None:
        if (self.feed.store_dir / span_id(span)).exists():
            return
        store = EventStore(self.feed.store_dir, memory_bytes=1 << 30)
        opened = store.open_span(span)
        rows = [row for row in self.rows if span.contains(row[3])]
        columns = list(zip(*rows, strict=True)) or [[] for _ in ENTRY_SCHEMA]
        batch = [pa.array(c, f.type) for c, f in zip(columns, ENTRY_SCHEMA, strict=True)]
        opened.append(pa.RecordBatch.from_arrays(batch, schema=ENTRY_SCHEMA))
        opened.seal(self.feed.last_ts + 1)
        store.publish()
        store.close()

    def run(
        self, cuts: Sequence[bytes], rules: Sequence[str], chance: Random, *, to_the_end: bool = False
    ) -> None:
        """An incarnation that delivers some of what there is, or all of it."""
        spec, spans = self.begin(cuts, rules)
        worker = Worker(LocalAccess(spec), lambda _: 1, self.topic)  # type: ignore[arg-type]
        self.topic.lives = 1 << 40 if to_the_end else chance.choice(self.lives)
        last = self.feed.last_ts
        try:
            while any(ts < last for ts in spans.values()):
                some = [
                    span for span, ts in spans.items() if ts < last and (to_the_end or chance.random() < 0.7)
                ]
                ends = {span: last if to_the_end else chance.randint(spans[span] + 1, last) for span in some}
                for report in worker.deliver([Range(span, spans[span], ends[span]) for span in some]):
                    spans[report.span] = report.ts
                if not to_the_end and chance.random() < 0.4:
                    break
        except Killed:
            pass
        durable = span_progress(self.topic.records, spec.instance, spec.rules)
        reached = [max(ts, durable[span].ts if span in durable else 0) for span, ts in spans.items()]
        self.checkpoint = chance.randint(self.checkpoint, max(self.checkpoint, min(reached)))

    def some_cuts(self, chance: Random) -> list[bytes]:
        """At the edges of tables and inside them."""
        tables = [keys.record_span(keys.parse_record(row[3]).table_id).start for row in self.rows]
        inside = [row[3] for row in self.rows]
        return chance.sample(tables, min(2, len(tables))) + chance.sample(inside, chance.randrange(4))


def everything(feed: CutFeed, rules: Sequence[str] = ("*.*",)) -> list[Sent]:
    """Return the messages of a feed whose rules never change."""
    topic, kept = Topic(Random(0), 1 << 30), feed.topic
    feed.topic = topic
    feed.run([], rules, Random(0), to_the_end=True)
    feed.topic, feed.checkpoint = kept, feed.feed.start_ts
    return topic.messages


RULES = (("bank.orders",), ("bank.*",), ("bank.*", "!bank.accounts"))


@pytest.mark.parametrize("seed", range(6))
def test_no_row_is_sent_twice_or_lost_under_any_cuts_and_rules(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    topic = Topic(chance, chance.choice([1 << 12, 1 << 16, 1 << 30]))
    feed = CutFeed(RecordedFeed(tmp_path, BANK, URI, UPTO), topic)
    whole = {rules: Counter(everything(feed, rules)) for rules in RULES}
    always, anything = Counter(whole[RULES[0]]), Counter(whole[RULES[1]])
    assert all(count == 1 for count in anything.values())
    assert len(always) < len(whole[RULES[2]]) < len(anything)
    for _ in range(10):
        feed.run(feed.some_cuts(chance), chance.choice(RULES), chance)
    before, checkpoint = Counter(topic.messages), feed.checkpoint
    last = chance.choice(RULES)
    feed.run(feed.some_cuts(chance), last, chance, to_the_end=True)
    found = Counter(topic.messages)
    assert found <= anything, "rows went out twice, or rows of others went out"
    assert always <= found, "rows that every rule follows are lost"
    # Rows that only the last rules follow are owed from the checkpoint on; the rest may be out from before.
    owed = Counter(sent for sent in whole[last] if commit_ts(sent) > checkpoint)
    assert owed <= found
    assert found - before <= whole[last]


def commit_ts(sent: Sent) -> int:
    """Return the commit ts of an open-protocol message of one row."""
    found: int = json.loads(sent[0][16:])["ts"]
    return found


class TwinFeed(LargeFeed):
    """At each commit ts a second transaction, of other rows."""

    def __init__(self, folder: Path, sizes: Sequence[int]) -> None:
        super().__init__(folder, URI, sizes, 30)
        for ts in {entry.commit_ts for entry in self.entries}:
            for handle in range(1000, 1003):
                key, value = row(handle, handle, f"{ts} twin {handle}")
                self.rows[TABLE_ID].append((ts, ts - 2, OP_PUT, key, value, b""))


@pytest.mark.parametrize("seed", range(10))
def test_nor_is_a_change_of_a_transaction_that_was_cut_in_its_midst(tmp_path: Path, seed: int) -> None:
    """Updates of unique keys are split, so a transaction goes out in up to five ranks."""
    chance = Random(seed)
    topic = Topic(chance, 1 << 30)
    feed = CutFeed(TwinFeed(tmp_path, [40, 3, 60, 1, 9]), topic)
    whole = Counter(everything(feed))
    assert set(whole.values()) == {1}
    for _ in range(25):
        # A range that was large may be small in the next incarnation.
        topic.room = chance.choice([300, 2000, 1 << 30])
        feed.run(feed.some_cuts(chance)[: chance.randrange(4)], ("*.*",), chance)
    feed.run(feed.some_cuts(chance), ("*.*",), chance, to_the_end=True)
    assert Counter(topic.messages) == whole


@pytest.mark.parametrize("seed", range(10))
def test_nor_is_an_update_by_half_when_from_then_on_none_is_split(tmp_path: Path, seed: int) -> None:
    """Each update that changes a key goes out either whole or as its two halves."""
    chance = Random(seed)
    topic = Topic(chance, 1 << 30)
    feed = CutFeed(TwinFeed(tmp_path, [40, 60, 9]), topic)
    feed.lives = list(range(1, 30))
    halves = Counter(everything(feed))
    feed.raw = True
    whole = Counter(everything(feed))
    assert len(whole - halves) * 2 == len(halves - whole) > 0
    for _ in range(15):
        feed.raw, topic.room = chance.random() < 0.5, chance.choice([300, 300, 300, 2000, 1 << 30])
        feed.run(feed.some_cuts(chance)[: chance.randrange(4)], ("*.*",), chance)
    feed.run(feed.some_cuts(chance), ("*.*",), chance, to_the_end=True)
    found = Counter(topic.messages)
    assert set(found.values()) == {1}
    assert halves & whole <= found <= halves | whole
    as_updates, as_halves = (changed(part) for part in (found & (whole - halves), found & (halves - whole)))
    assert set(as_halves.values()) <= {2}
    assert as_updates.keys() | as_halves.keys() == changed(whole - halves).keys()
    assert not as_updates.keys() & as_halves.keys()


def changed(messages: Counter[Sent]) -> Counter[str]:
    """The changed rows of which these messages speak, by the ts and handle in their texts."""
    found: Counter[str] = Counter()
    for _, value in messages:
        body = json.loads(value[8:])
        stamp, _, handle, *_ = next(iter(body.values()))["v"]["v"].split(" ")
        found[f"{stamp} {handle}"] += 1
    return found

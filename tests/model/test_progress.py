"""Records of progress: whose they are, and what they say."""

from __future__ import annotations

import json
from dataclasses import replace

from tidegate.model.position import Position, Rank
from tidegate.model.progress import (
    JOURNAL_KEY,
    Journal,
    LoadProgress,
    SpanProgress,
    journal,
    load_key,
    load_progress,
    span_progress,
)

LOADS = {
    "mine": LoadProgress("mine", (1, 2), 3, 50, 7, "6b"),
    "done": LoadProgress("mine", (1, 2), 3, 50, 9, None),
    "foreign": LoadProgress("another", (1, 2), 3, 50, 8, None),
    "earlier": LoadProgress("mine", (1, 2), 3, 40, 8, None),
}
SPANS = {
    "span": SpanProgress("mine", (1, 2), 3, 60, Position(61, 59, Rank.UPDATES, b"k")),
    "other": SpanProgress("another", (1, 2), 3, 70),
}
RECORDS = (
    {load_key(name): one.to_bytes() for name, one in LOADS.items()}
    | {span: one.to_bytes() for span, one in SPANS.items()}
    | {JOURNAL_KEY: Journal(5, 1, 8, "mine").to_bytes()}
)


def test_only_the_records_of_this_feeds_load_at_its_ts_count() -> None:
    assert load_progress(RECORDS, "mine", 50) == {name: LOADS[name] for name in ("mine", "done")}


def test_only_this_feeds_spans_count() -> None:
    assert span_progress(RECORDS, "mine") == {"span": SPANS["span"]}
    assert span_progress(RECORDS, "nobody") == {}


def test_a_journal_of_an_earlier_feed_says_nothing() -> None:
    assert journal(RECORDS, "mine") == Journal(5, 1, 8, "mine")
    assert journal(RECORDS, "another") == journal({}, "another") == Journal(instance="another")


def test_a_record_of_former_versions_has_no_position() -> None:
    written = json.loads(SPANS["span"].to_bytes())
    del written["position"]
    assert SpanProgress.from_bytes(json.dumps(written).encode()) == replace(SPANS["span"], position=None)

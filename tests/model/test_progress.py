"""Records of progress: whose they are, and what they say."""

from __future__ import annotations

import json
from dataclasses import replace

from tidegate.model.position import Position, Rank
from tidegate.model.progress import (
    JOURNAL_KEY,
    Delivered,
    Journal,
    LoadProgress,
    SpanProgress,
    TableRules,
    delivered,
    journal,
    load_key,
    load_progress,
    outlived,
    rules_key,
    span_key,
    span_progress,
    table_rules,
)
from tidegate.model.span import Span

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


OLD, NEW = TableRules(("*.*",), False, False, 1), TableRules(("a.*",), True, False, 64)
BOUNDS = Span(b"ta", b"tb")


def of_rules(rules: TableRules, ts: int, position: Position | None = None) -> SpanProgress:
    return SpanProgress("mine", (1, 2), 3, ts, position, rules.digest, BOUNDS)


RULED = RECORDS | {
    span_key("one", OLD.digest): of_rules(OLD, 60, Position(70, 59, Rank.DONE, b"")).to_bytes(),
    span_key("one", NEW.digest): of_rules(NEW, 80).to_bytes(),
    span_key("two", NEW.digest): of_rules(NEW, 90).to_bytes(),
    rules_key(OLD.digest): OLD.to_bytes(),
    rules_key(NEW.digest): NEW.to_bytes(),
}


def test_under_other_rules_a_span_has_a_record_apart() -> None:
    assert span_progress(RULED, "mine", OLD.digest) == {
        "one": of_rules(OLD, 60, Position(70, 59, Rank.DONE, b""))
    }
    assert span_progress(RULED, "mine", NEW.digest) == {"one": of_rules(NEW, 80), "two": of_rules(NEW, 90)}
    assert table_rules(RULED) == {OLD.digest: OLD, NEW.digest: NEW}


def test_what_other_spans_and_rules_have_delivered_stays_delivered() -> None:
    own = {span_key("one", NEW.digest)}
    old = Delivered(BOUNDS, OLD.digest, 60, Position(70, 59, Rank.DONE, b""))
    assert delivered(RULED, "mine", own, 50) == [old, Delivered(BOUNDS, NEW.digest, 90, None)]
    assert delivered(RULED, "mine", own, 69) == [old, Delivered(BOUNDS, NEW.digest, 90, None)]
    assert delivered(RULED, "mine", own, 70) == [Delivered(BOUNDS, NEW.digest, 90, None)]
    assert delivered(RULED, "another", own, 50) == []
    # Whose rules are not known says nothing; a record of a feed of keys speaks of all rows.
    assert delivered({k: v for k, v in RULED.items() if k != rules_key(OLD.digest)}, "mine", own, 50) == [
        Delivered(BOUNDS, NEW.digest, 90, None)
    ]
    keys = {"k": replace(of_rules(OLD, 60), rules="").to_bytes()}
    assert delivered(keys, "mine", (), 50) == [Delivered(BOUNDS, "", 60, None)]


def test_a_record_is_outlived_when_no_row_it_speaks_of_can_come_again() -> None:
    assert outlived(RULED, "mine", NEW.digest) == {
        "span": 61,
        "other": 0,
        span_key("one", OLD.digest): 70,
        rules_key(OLD.digest): 70,
    }
    unused = RULED | {rules_key("0123"): OLD.to_bytes()}
    assert outlived(unused, "mine", NEW.digest)[rules_key("0123")] == 0


def test_a_record_of_another_feed_of_the_name_expires_unless_overwritten() -> None:
    """It expires at once."""
    assert outlived(RULED, "later", NEW.digest) == {
        "span": 0,
        "other": 0,
        span_key("one", OLD.digest): 0,
        rules_key(OLD.digest): 0,
    }


def test_a_digest_tells_rules_apart() -> None:
    others = [
        OLD,
        NEW,
        replace(OLD, patterns=("*.*", "!a.*")),
        replace(OLD, case_sensitive=True),
        replace(OLD, force_replicate=True),
        replace(OLD, width=2),
    ]
    assert len({one.digest for one in others}) == len(others)
    assert [TableRules.from_bytes(one.to_bytes()) for one in others] == others


def test_a_journal_of_an_earlier_feed_says_nothing() -> None:
    assert journal(RECORDS, "mine") == Journal(5, 1, 8, "mine")
    assert journal(RECORDS, "another") == journal({}, "another") == Journal(instance="another")


def test_a_record_of_former_versions_has_no_position() -> None:
    written = json.loads(SPANS["span"].to_bytes())
    del written["position"]
    assert SpanProgress.from_bytes(json.dumps(written).encode()) == replace(SPANS["span"], position=None)

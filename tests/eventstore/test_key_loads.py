"""Which keys of a span have changed lately, as its newest segments have them; and the same as an answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.errors import Retryable
from tidegate.eventstore import key_loads as module
from tidegate.eventstore.key_loads import LATELY, KeyLoads, key_loads
from tidegate.eventstore.order import Entry, block_of
from tidegate.eventstore.store import EventStore
from tidegate.model.span import Span
from tidegate.server.captures.key_loads_client import as_json, from_json

ROWS, SEALS = 300, 20


def put(ts: int, handle: int) -> Entry:
    return Entry(ts, ts - 1, 1, b"k%05d" % handle, b"v" * 50, b"o" * 20)


@pytest.fixture
def store(tmp_path: Path) -> EventStore:
    """Segments of which each has all keys once, and one key ten times."""
    made = EventStore(tmp_path, memory_bytes=1 << 20)
    span = made.open_span(Span(b"a", b"z"))
    span.begin(100)
    for number in range(SEALS):
        ts = 1_000 * (number + 1)
        span.append(block_of([put(ts + at, at) for at in range(ROWS)]))
        span.append(block_of([put(ts + ROWS + at, 77) for at in range(10)]))
        span.seal(ts + 999)
    made.publish()
    return made


def span_of(store: EventStore) -> str:
    return store.open_span(Span(b"a", b"z")).id


def test_the_bytes_of_each_key_are_counted(store: EventStore) -> None:
    found = key_loads(store.folder, span_of(store))
    assert found.rows == SEALS * (ROWS + 10)
    assert sum(found.weights) == found.rows * (6 + 50 + 20)
    weight = dict(zip(found.starts, found.weights, strict=True))[b"k00077"]
    assert weight == 11 * SEALS * (6 + 50 + 20)


def test_of_many_blocks_some_are_read_and_of_many_rows_some_are_taken(
    store: EventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = key_loads(store.folder, span_of(store))
    monkeypatch.setattr(module, "BLOCKS_MAX", 1)
    fewer = key_loads(store.folder, span_of(store))
    assert 0 < fewer.rows < whole.rows or len(store.open_span(Span(b"a", b"z")).manifest.segments) == 1
    monkeypatch.setattr(module, "BLOCKS_MAX", 32)
    monkeypatch.setattr(module, "ROWS_MAX", 1_000)
    some = key_loads(store.folder, span_of(store))
    assert 800 < some.rows < 1_200
    assert some.starts[0] < b"k00020"
    assert some.starts[-1] > b"k00280"


def test_a_segment_that_was_dropped_meanwhile_is_left_out(tmp_path: Path) -> None:
    """The manifest that was read still names it."""
    made = EventStore(tmp_path, memory_bytes=1 << 20)
    span = made.open_span(Span(b"a", b"z"))
    span.begin(100)
    for number in range(2):
        span.append(block_of([put(1_000 * (number + 1) + at, at) for at in range(ROWS)]))
        span.seal(1_000 * (number + 1) + 999)
    made.publish()
    infos = span.manifest.segments
    assert len(infos) == 2
    (tmp_path / span.id / infos[0].file).unlink()
    assert key_loads(tmp_path, span.id).rows == ROWS


def test_rows_that_wait_for_long_do_not_count(tmp_path: Path) -> None:
    """Otherwise keys that changed hours ago would outweigh those that change now."""
    store = EventStore(tmp_path, memory_bytes=1 << 20)
    span = store.open_span(Span(b"a", b"z"))
    span.begin(100)
    span.append(block_of([put(1_000 + at, at) for at in range(ROWS)]))
    span.seal(2_000)
    now = 1_000 + ROWS + LATELY
    span.append(block_of([put(now + at, ROWS + at) for at in range(ROWS)]))
    span.seal(now + ROWS)
    store.publish()
    found = key_loads(tmp_path, span.id)
    assert (found.rows, found.starts[0]) == (ROWS, b"k%05d" % ROWS)


def test_a_span_that_a_capture_never_had_has_no_answer(tmp_path: Path) -> None:
    EventStore(tmp_path, memory_bytes=1 << 20).publish()
    with pytest.raises(Retryable):
        key_loads(tmp_path, "00ff")


def test_an_answer_is_read_again_and_a_wrong_one_refused(store: EventStore) -> None:
    found = key_loads(store.folder, span_of(store))
    answer = as_json(found) | {"weights": list(found.weights)}  # a list once it was sent
    assert from_json(answer) == found
    assert from_json({"starts": [], "weights": [], "rows": 0}) == KeyLoads()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"starts": answer["starts"][::-1]}, "not ascending"),
        ({"weights": answer["weights"][1:]}, "not so many"),
        ({"weights": [0, *answer["weights"][1:]]}, "no number above 0"),
        ({"starts": ["xx", *answer["starts"][1:]]}, "hexadecimal"),
        ({"starts": [1, *answer["starts"][1:]]}, "not so many"),
        ({"starts": [f"{at:06x}" for at in range(300)], "weights": [1] * 300}, "not so many"),
        ({"rows": "many"}, "no number above 0"),
        ({"more": 1}, "other members"),
    ]
    for change, why in wrong:
        with pytest.raises(ValueError, match=why):
            from_json(answer | change)

"""The state of changefeeds that a worker process keeps between pieces of work, and when it drops it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.recorded import RecordedFeed

from tidegate.errors import Fenced, Retryable
from tidegate.model.progress import SpanProgress, span_key
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.work import Begin, Deliver, Lease
from tidegate.pipeline.worker import kept
from tidegate.pipeline.worker.access import Access, local
from tidegate.pipeline.worker.deliver import Worker, open_worker
from tidegate.pipeline.worker.kept import with_worker

BANK = Path(__file__).parents[1] / "golden" / "changelog" / "bank.jsonl.gz"
UPTO = 470612974612512768
URI = "kafka://127.0.0.1:1/t?protocol=open-protocol"


class Kept:
    """Replaces a worker and its slot: both are only opened and closed here."""

    lease: Lease

    def __init__(self, access: Access) -> None:
        self.access, self.slot, self.closed = access, self, False

    def close(self) -> None:
        self.closed = True


class Opened:
    """Counts what is opened."""

    def __init__(self) -> None:
        self.all: list[Kept] = []

    def __call__(self, access: Access) -> Any:
        self.all.append(Kept(access))
        return self.all[-1]


@pytest.fixture
def opened() -> Iterator[Opened]:
    kept.WORKERS.clear()
    yield Opened()
    kept.WORKERS.clear()


def piece_of(folder: Path) -> Deliver:
    """For a changefeed of its own."""
    folder.mkdir(exist_ok=True)
    return Deliver(str(RecordedFeed(folder, BANK, URI, UPTO).write()), ())


def nothing(worker: Worker) -> None:
    """Work that does nothing."""


def test_what_was_opened_for_an_incarnation_serves_its_next_piece_too(tmp_path: Path, opened: Opened) -> None:
    one, two = piece_of(tmp_path / "one"), piece_of(tmp_path / "two")
    for path in (one, two, one, two):
        with_worker(path, nothing, opened)
    assert len(opened.all) == 2
    assert not any(each.closed for each in opened.all)


def test_of_a_piece_that_failed_nothing_is_kept(tmp_path: Path, opened: Opened) -> None:
    """Its writer may be in any state, and its incarnation is over."""
    one = piece_of(tmp_path / "one")

    def fails(worker: Worker) -> None:
        raise Retryable("the sink is gone")

    for _ in range(2):
        with pytest.raises(Retryable):
            with_worker(one, fails, opened)
    assert [each.closed for each in opened.all] == [True, True]


def test_what_is_not_used_and_what_has_been_replaced_goes(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, three = (piece_of(tmp_path / name) for name in ("one", "two", "three"))
    for path in (one, two):
        with_worker(path, nothing, opened)
    Path(one.spec).unlink()  # as the next incarnation does
    with_worker(three, nothing, opened)
    assert len(kept.WORKERS) == 2
    assert [each.closed for each in opened.all] == [True, False, False]
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + kept.IDLE_S + 1)
    kept.rest()
    assert not kept.WORKERS
    assert all(each.closed for each in opened.all)


def test_no_more_are_kept_than_a_process_may_have(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "WORKERS_MAX", 2)
    paths = [piece_of(tmp_path / name) for name in ("one", "two", "three")]
    for path in (paths[0], paths[1], paths[0], paths[2]):
        with_worker(path, nothing, opened)
    assert [each.closed for each in opened.all] == [False, True, False], "the one used longest ago"


def test_a_process_that_has_become_large_is_to_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "PROCESS_BYTES_MAX", 1 << 50)  # who runs all tests is larger than a worker
    assert not kept.rest()
    monkeypatch.setattr(kept, "PROCESS_BYTES_MAX", 1 << 20)
    assert kept.rest()


def test_without_what_was_found_durable_nothing_is_delivered(tmp_path: Path) -> None:
    """Else what is out beyond the offsets would go out again."""
    access = local(piece_of(tmp_path / "one").spec)
    with pytest.raises(Fenced, match="has been replaced"):
        open_worker(access)


# --- how an incarnation begins ------------------------------------------------------------------------------


@dataclass
class Fencing:
    """A sink that can only fence."""

    records: dict[str, bytes] = field(default_factory=dict)
    """The records that are durable by the time all writers are fenced."""
    meanwhile: Callable[[], None] = lambda: None
    fenced: list[dict[str, int]] = field(default_factory=list)

    def fence(
        self, writers: Mapping[str, int], prove: Callable[[], None], *, check: Callable[[], None]
    ) -> dict[str, bytes]:
        self.fenced.append(dict(writers))
        self.meanwhile()
        prove()
        return self.records


def test_an_incarnation_fences_all_writers_and_resumes_at_what_they_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, sink = RecordedFeed(tmp_path, BANK, URI, UPTO), Fencing()
    path = feed.write()
    spec = FeedSpec.load(path)
    starts = Bounds.load(feed.feed_dir / "bounds.json").spans
    span = min(starts)
    record = SpanProgress(spec.instance, spec.token, 1, UPTO, rules=spec.rules).to_bytes()
    monkeypatch.setattr(FeedSpec, "sink", sink)
    sink.meanwhile = lambda: sink.records.update({span_key(span, spec.rules): record})
    assert kept.begin(Begin(str(path))).spans == starts | {span: UPTO}
    assert sink.fenced == [spec.writers]
    assert spec.writers


def test_a_replaced_incarnation_that_begins_late_fences_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fence the writers of its successor."""
    feed, sink = RecordedFeed(tmp_path, BANK, URI, UPTO), Fencing()
    path = feed.write()
    monkeypatch.setattr(FeedSpec, "sink", sink)
    feed.grant(2)
    with pytest.raises(Fenced):
        kept.begin(Begin(str(path)))
    assert sink.fenced == []


def test_an_incarnation_that_is_replaced_while_it_fences_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = RecordedFeed(tmp_path, BANK, URI, UPTO)
    path = feed.write()
    monkeypatch.setattr(FeedSpec, "sink", Fencing(meanwhile=lambda: feed.grant(2)))
    with pytest.raises(Fenced):
        kept.begin(Begin(str(path)))
    assert not FeedSpec.load(path).durable_file.exists()

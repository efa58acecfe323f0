"""Slots across processes and cut files: a producer is used again only while nobody else can have had it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.pipeline.recorded import CAPTURE, RecordedFeed, begin
from tests.pipeline.test_job import BANK, UPTO

from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.control.grants import GrantedRange
from tidegate.errors import Fenced
from tidegate.eventstore import store_view
from tidegate.model.progress import span_progress
from tidegate.model.span import Span
from tidegate.pipeline.exchange.feed import FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.exchange.work import Lease
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.deliver import open_worker
from tidegate.pipeline.worker.slots import Slot

pytestmark = pytest.mark.integration


@pytest.fixture
def spec(kafka: str, new_topic: Callable[..., str], tmp_path: Path) -> FeedSpec:
    uri = parse_sink_uri(f"kafka://{kafka}/{new_topic(1)}?protocol=open-protocol")
    nowhere = tmp_path / "nowhere"
    config = merge_config({}, uri)
    return FeedSpec(
        cluster_id=1,
        namespace="default",
        name=uri.topic,
        sink_uri=uri,
        config=config,
        token=(1, 1),
        instance="f00d",
        incarnation=1,
        slots=2,
        capture="here",
        ranges=(Span(b"", b""),),
        givers={},
        store_dir=nowhere,
        feed_dir=tmp_path,
        metadata=str(nowhere),
        socket_path=nowhere,
    )


class Counted(LocalAccess):
    """Proves nothing: there is no metadata store."""

    def __init__(self, spec: FeedSpec) -> None:
        super().__init__(spec)
        self.proofs: list[Lease] = []

    def granted(self, lease: Lease) -> tuple[Span, ...]:
        self.proofs.append(lease)
        return self.spec.ranges


def test_a_writer_is_used_again_under_the_same_lease_only(spec: FeedSpec) -> None:
    access = Counted(spec)
    slot = Slot(access, spec.sink, Lease(0, 1))
    with slot.writer() as first:
        pass
    with slot.writer() as again:
        assert again is first
    slot.lease = Lease(0, 3)  # somebody else has had it meanwhile
    with slot.writer() as after:
        assert after is not first
    with slot.writer() as last:
        assert last is after
    slot.lease = Lease(1, 4)
    with slot.writer() as other:
        assert other is not after
    assert access.proofs == [Lease(0, 1), Lease(0, 3), Lease(1, 4)], "proved whenever it is opened"


def test_what_is_not_confirmed_is_not_committed(spec: FeedSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was given up may have been stopped since it last got a message."""
    access = Counted(spec)
    lost: list[Lease] = []

    def confirm(lease: Lease) -> None:
        lost.append(lease)
        raise Fenced("the slot was given to another worker")

    monkeypatch.setattr(access, "confirm", confirm)
    nobody = dict[str, int]()
    assert spec.sink.fence(nobody, lambda: None) == {}
    slot = Slot(access, spec.sink, Lease(0, 1))
    with pytest.raises(Fenced, match="another worker"), slot.writer() as writer:
        writer.commit({"key": b"record"})
    assert lost == [Lease(0, 1)]
    assert spec.sink.fence(nobody, lambda: None) == {}


def test_a_worker_whose_range_was_taken_is_fenced_and_writes_no_more_of_it(
    tmp_path: Path, kafka: str, new_topic: Callable[..., str]
) -> None:
    feed = RecordedFeed(tmp_path, BANK, f"kafka://{kafka}/{new_topic(1)}?protocol=canal-json", UPTO)
    spec = FeedSpec.load(feed.write())
    begun = begin(spec)
    worker = open_worker(LocalAccess(spec))
    kept, lost, *_ = (
        Range(span, after, feed.last_ts)
        for span, after in begun.starts.items()
        if store_view.pending(store_view.read_manifest(spec.store_dir, span), after, feed.last_ts)[0] > 10
    )
    middle = store_view.cut(store_view.read_manifest(spec.store_dir, lost.span), lost.after, lost.upto, 500)
    worker.deliver([replace(lost, upto=middle)])

    still_ours = store_view.read_manifest(spec.store_dir, kept.span).span
    feed.grant(1, ranges=(GrantedRange(still_ours, (1, 1)),))
    taker = replace(spec, capture="there", givers={CAPTURE: spec.slots})
    known = span_progress(taker.sink.fence(taker.writers, lambda: None), spec.instance, spec.rules)
    assert known[lost.span].ts == middle

    reports = worker.deliver([kept, replace(lost, after=middle)])
    assert {one.span: one.ts for one in reports} == {kept.span: kept.upto, lost.span: middle}
    after = span_progress(taker.sink.fence(taker.writers, lambda: None), spec.instance, spec.rules)
    assert (after[kept.span].ts, after[lost.span].ts) == (kept.upto, middle)

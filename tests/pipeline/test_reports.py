"""A worker reports what is durable while it still works on a piece, and never more than that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.pipeline.recorded import RecordedFeed
from tests.pipeline.test_stripes import BANK, UPTO, URI, Keeper

from tidegate.errors import Retryable
from tidegate.model.progress import span_progress
from tidegate.pipeline.exchange.feed import Bounds, FeedSpec
from tidegate.pipeline.exchange.ranges import Range
from tidegate.pipeline.worker.access import LocalAccess
from tidegate.pipeline.worker.deliver import Worker


class Failing(Keeper):
    """A writer that takes little at once, wants a commit after each piece, and fails at one of them."""

    is_due = True
    room = 2 << 10
    commits_left = 5

    def commit(self, progress: Mapping[str, bytes]) -> None:
        if not self.commits_left:
            raise Retryable("The broker does not answer.")
        self.commits_left -= 1
        super().commit(progress)


def test_only_what_is_durable_is_reported_before_a_piece_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.pipeline.worker.deliver.REPORT_S", 0.0)
    feed = RecordedFeed(tmp_path, BANK, URI, UPTO)
    spec = FeedSpec.load(feed.write())
    starts = Bounds.load(feed.feed_dir / "bounds.json").spans
    keeper, reported = Failing(), dict(starts)

    def report(spans: Mapping[str, int]) -> None:
        durable = span_progress(keeper.records, spec.instance, spec.rules)
        for span, ts in spans.items():
            assert ts <= (durable[span].ts if span in durable else starts[span])
        reported.update(spans)

    worker = Worker(LocalAccess(spec), lambda _: 1, keeper)  # type: ignore[arg-type]
    with pytest.raises(Retryable):
        worker.deliver([Range(span, ts, feed.last_ts) for span, ts in starts.items()], report)
    durable = span_progress(keeper.records, spec.instance, spec.rules)
    assert reported == starts | {span: one.ts for span, one in durable.items()}
    assert reported != starts

"""The sums of what a feed's pipeline has reported, for the API and the metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate import metrics
from tidegate.control.metadata import FeedId
from tidegate.log import event

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class Totals:
    """The sums of what the pipeline has reported since the control process started."""

    rows: int = 0
    messages: int = 0
    bytes: int = 0
    quarantined: int = 0
    matched: int = 0
    """Images of rows that match their checksums; the next three count those without a checksum, old ones that
    may differ after a DDL, and damaged ones (mounter.integrity.Tally).
    """
    unchecked: int = 0
    excused: int = 0
    mismatched: int = 0
    misencoded: int = 0
    """Rows whose messages, decoded again, differ from them (codec.readback)."""
    batches: int = 0
    batch_ms: int = 0
    lag_ms: int = 0
    ddl_events: int = 0
    starts: int = 0
    """How often the pipeline has been started."""

    def count(self, feed: FeedId, stats: Mapping[str, int], folder: Path) -> None:
        """Add the counts of one batch, here and to the metrics; `folder`: the feed's."""
        labels = (feed.namespace, feed.name)
        for name, counter in (
            ("rows", metrics.rows),
            ("messages", metrics.messages),
            ("bytes", metrics.sink_bytes),
        ):
            amount = stats.get(name, 0)
            setattr(self, name, getattr(self, name) + amount)
            counter.labels(*labels).inc(amount)
        self.quarantined += stats.get("quarantined", 0)
        for name in metrics.INTEGRITY_OUTCOMES:
            amount = stats.get(name, 0)
            setattr(self, name, getattr(self, name) + amount)
            metrics.integrity_images.labels(*labels, name).inc(amount)
        if stats.get("mismatched", 0):
            event(
                LOG,
                logging.WARNING,
                "rows do not match their checksums",
                changefeed=str(feed),
                images=stats["mismatched"],
                quarantine=str(folder / "quarantine.jsonl"),
            )
        misencoded = stats.get("misencoded", 0)
        self.misencoded += misencoded
        metrics.misencoded_rows.labels(*labels).inc(misencoded)
        if misencoded:
            event(
                LOG,
                logging.WARNING,
                "messages differ from their rows",
                changefeed=str(feed),
                rows=misencoded,
                quarantine=str(folder / "quarantine.jsonl"),
            )
        metrics.alignment_marks.labels(*labels).inc(stats.get("alignments", 0))
        self.batches += 1
        self.batch_ms, self.lag_ms = stats.get("batch_ms", 0), stats.get("lag_ms", 0)
        metrics.batch_s.labels(*labels).observe(self.batch_ms / 1000)

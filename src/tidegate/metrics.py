"""Metric names, labels and units, declared once. Names follow TiCDC's owner metrics where there is one.

The registry is our own, so that importing this module has no effect on the process-wide one.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REGISTRY: Final = CollectorRegistry()
FEED: Final = ("namespace", "changefeed")

checkpoint_ts: Final = Gauge(
    "tidegate_owner_checkpoint_ts",
    "The checkpoint: every change up to it is at the sink",
    FEED,
    registry=REGISTRY,
)
checkpoint_lag_s: Final = Gauge(
    "tidegate_owner_checkpoint_ts_lag_seconds",
    "PD's time minus the checkpoint",
    FEED,
    registry=REGISTRY,
)
resolved_ts: Final = Gauge(
    "tidegate_owner_resolved_ts",
    "The least resolved ts of the spans: every change up to it was read",
    FEED,
    registry=REGISTRY,
)
status: Final = Gauge(
    "tidegate_owner_status",
    "The state: 0 normal, 1 warning, 2 pending, 3 failed, 4 stopped, 5 finished",
    FEED,
    registry=REGISTRY,
)
rows: Final = Counter("tidegate_sink_rows", "Row changes delivered", FEED, registry=REGISTRY)
messages: Final = Counter("tidegate_sink_messages", "Messages delivered", FEED, registry=REGISTRY)
sink_bytes: Final = Counter("tidegate_sink_bytes", "Bytes of messages delivered", FEED, registry=REGISTRY)
INTEGRITY_OUTCOMES: Final = ("matched", "unchecked", "excused", "mismatched")
"""The outcomes of comparing an image of a row with its checksum: the fields of `mounter.integrity.Tally`."""
integrity_images: Final = Counter(
    "tidegate_integrity_images",
    "Images of rows, by the outcome of comparing them with their checksums",
    (*FEED, "outcome"),
    registry=REGISTRY,
)
misencoded_rows: Final = Counter(
    "tidegate_misencoded_rows",
    "Row changes whose messages do not decode to the same row, found by verify-encoded",
    FEED,
    registry=REGISTRY,
)
alignment_marks: Final = Counter(
    "tidegate_alignment_marks",
    "Alignment marks written by the dispatcher conflict, one for all partitions of a topic",
    FEED,
    registry=REGISTRY,
)
batch_s: Final = Histogram(
    "tidegate_pipeline_batch_seconds",
    "Time from giving a worker a batch until the batch is durable",
    FEED,
    buckets=(0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 5, 10),
    registry=REGISTRY,
)
clock_differs_s: Final = Gauge(
    "tidegate_clock_ahead_of_pd_seconds",
    "This machine's wall clock minus PD's physical time",
    registry=REGISTRY,
)
restarts: Final = Counter(
    "tidegate_process_restarts", "Restarts of child processes", ("process",), registry=REGISTRY
)
ddl_events: Final = Counter("tidegate_owner_ddl_events", "DDL events delivered", FEED, registry=REGISTRY)


def forget_feed(namespace: str, changefeed: str) -> None:
    """Remove the gauges of a changefeed when this capture does not own it any more."""
    for gauge in (checkpoint_ts, checkpoint_lag_s, resolved_ts, status):
        with suppress(KeyError):
            gauge.remove(namespace, changefeed)


def render() -> bytes:
    """All metrics in Prometheus' text form."""
    return bytes(generate_latest(REGISTRY))

"""Metric names, labels and units, declared once. Names follow TiCDC's owner metrics where there is one.

Labels have few values, except those of ranges and tables (`PartGauges`), of which `PARTS_MAX` have samples.

The registry is our own, so that importing this module has no effect on the process-wide one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

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

PARTS_MAX: Final = 100
"""The most ranges with samples of their own, of all changefeeds of an owner together; and the most tables."""
OTHERS: Final = "others"
"""The name of the ranges, or tables, of a changefeed that have no samples of their own: they are summed."""
RANGE_STATES: Final = ("running", "held", "not running")
"""The states of ranges: the values of `control.range_reasons.Delivery`."""


@dataclass(frozen=True, slots=True)
class PartFigures:
    """The figures of a range or table, or of all others of a changefeed: sums, and the greatest lags."""

    labels: Sequence[str]
    """A range's id and capture, or a table's name."""
    checkpoint_lag_s: float
    resolved_lag_s: float
    bytes_per_s: float
    state: str = ""
    """The state of a range; empty: there are several."""


@dataclass(frozen=True, slots=True)
class FeedFigures:
    """The figures of a changefeed and its parts, `PARTS_MAX` and one at most."""

    feed: tuple[str, str]
    bytes_per_s: float
    states: Mapping[str, int]
    """The number of its ranges in each state."""
    ranges: Sequence[PartFigures]
    tables: Sequence[PartFigures]


class PartGauges(Collector):
    """Gauges of ranges and tables. They are worked out when the page is read, because ranges come and go."""

    def __init__(self) -> None:
        self.sources: dict[object, Callable[[], Iterable[FeedFigures]]] = {}
        """The owners of changefeeds in this process; each removes itself when it does not own them any more.
        """

    def describe(self) -> list[GaugeMetricFamily]:
        """The gauges without samples."""
        lags = "PD's time minus the checkpoint", "PD's time minus the resolved ts"
        load = "Bytes of changes a second that upstream sends, averaged over some ten seconds"
        of_range, of_table = (*FEED, "range", "capture"), (*FEED, "table")
        return [
            GaugeMetricFamily(f"tidegate_{name}", text, labels=labels)
            for name, text, labels in (
                ("changefeed_ranges", "The number of ranges in a state", (*FEED, "state")),
                ("changefeed_changed_bytes_per_second", f"{load}: all ranges", FEED),
                ("range_state", "A range's state: 0 running, 1 held, 2 not running", of_range),
                ("range_checkpoint_ts_lag_seconds", f"A range: {lags[0]}", of_range),
                ("range_resolved_ts_lag_seconds", f"A range: {lags[1]}", of_range),
                ("range_changed_bytes_per_second", f"A range: {load[0].lower()}{load[1:]}", of_range),
                ("table_checkpoint_ts_lag_seconds", f"A table: {lags[0]} of its slowest range", of_table),
                ("table_resolved_ts_lag_seconds", f"A table: {lags[1]} of its slowest range", of_table),
                ("table_changed_bytes_per_second", f"A table: {load[0].lower()}{load[1:]}", of_table),
            )
        ]

    def collect(self) -> list[GaugeMetricFamily]:
        """The gauges with their samples now."""
        families = self.describe()
        states, whole, range_state, *parts = families
        of_range, of_table = parts[:3], parts[3:]
        for feed in (one for source in list(self.sources.values()) for one in source()):
            for state in RANGE_STATES:
                states.add_metric([*feed.feed, state], feed.states.get(state, 0))
            whole.add_metric(feed.feed, feed.bytes_per_s)
            for one in feed.ranges:
                if one.state:
                    range_state.add_metric([*feed.feed, *one.labels], RANGE_STATES.index(one.state))
                _add(of_range, feed, one)
            for one in feed.tables:
                _add(of_table, feed, one)
        return families


def _add(gauges: Sequence[GaugeMetricFamily], feed: FeedFigures, one: PartFigures) -> None:
    values = one.checkpoint_lag_s, one.resolved_lag_s, one.bytes_per_s
    for gauge, value in zip(gauges, values, strict=True):
        gauge.add_metric([*feed.feed, *one.labels], value)


parts: Final = PartGauges()
REGISTRY.register(parts)


def forget_feed(namespace: str, changefeed: str) -> None:
    """Remove the gauges of a changefeed when this capture does not own it any more."""
    for gauge in (checkpoint_ts, checkpoint_lag_s, resolved_ts, status):
        with suppress(KeyError):
            gauge.remove(namespace, changefeed)


def render() -> bytes:
    """All metrics in Prometheus' text form."""
    return bytes(generate_latest(REGISTRY))

"""Metrics of a running consumer: names, labels and units, declared once.

All samples of one scrape come from the last report of the driver. Lags are computed with the clock of the
scrape, so they also grow while the driver reports nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from tidegate.consumer.running.lag import Partition, seconds_behind
from tidegate.consumer.running.progress import Progress
from tidegate.model.timestamp import physical_ms

PLACE: Final = ("topic", "partition")

COUNTERS: Final[dict[str, tuple[str, Callable[[Progress], int]]]] = {
    "rows": ("Row changes taken in this run", lambda one: one.rows),
    "snapshots": ("Snapshots completed in this run", lambda one: one.snapshots),
    "ddls": ("DDLs executed in this run", lambda one: one.ddls),
}
"""By name: `tidegate_consumer_NAME_total`."""
GAUGES: Final[dict[str, tuple[str, Callable[[Progress], int]]]] = {
    "quarantined": ("Messages and rows set aside, earlier runs included", lambda one: one.quarantined),
    "set_aside_tables": ("Tables whose changes are not applied", lambda one: one.set_aside),
    "waiting_rows": ("Rows that are read and not applied", lambda one: one.waiting_rows),
    "trouble": ("1 while something keeps the consumer from moving", lambda one: int(bool(one.trouble))),
}
"""By name: `tidegate_consumer_NAME`."""
MOMENTS: Final[dict[str, tuple[str, Callable[[Partition], int]]]] = {
    "resolved_ts": ("The last Resolved that was read", lambda one: one.watermark),
    "applied_ts": ("The ts up to which all rows are at the target", lambda one: one.applied),
}
"""For each partition: `tidegate_consumer_NAME` in physical ms, and `tidegate_consumer_NAME_lag_seconds`."""
COUNTS: Final[dict[str, tuple[str, Callable[[Partition], int | None]]]] = {
    "messages_behind": ("Messages that are not applied yet", lambda one: one.to_apply),
    "messages_unread": ("Messages that are not read yet", lambda one: one.to_read),
}
"""For each partition: `tidegate_consumer_NAME`."""


class Gauges:
    """The metrics of one consumer. `update` and `render` may be called from different threads."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """`now_ms`: the wall clock, in ms since 1970."""
        self._now_ms = now_ms
        self._last: tuple[Progress, int] | None = None
        """The last report, and when it came in ms since 1970."""
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def update(self, progress: Progress) -> None:
        """Take a report of the driver."""
        # One assignment: a scrape on another thread finds a report with its own time, never with another's.
        self._last = progress, self._now_ms()

    def render(self) -> bytes:
        """All metrics in Prometheus' text form; nothing before the first report."""
        return bytes(generate_latest(self._registry))

    def collect(self) -> Iterator[Any]:
        """The samples; called by the registry at each scrape."""
        if self._last is None:
            return
        (progress, reported_ms), now_ms = self._last, self._now_ms()
        for name, (text, value) in COUNTERS.items():
            yield CounterMetricFamily(f"tidegate_consumer_{name}", text, value(progress))
        for name, (text, value) in GAUGES.items():
            yield _gauge(name, text, value(progress))
        yield _gauge(
            "report_age_seconds", "Time since the driver's last report", (now_ms - reported_ms) / 1000
        )
        if progress.ts:
            yield _gauge("snapshot_ts", "The newest snapshot", physical_ms(progress.ts))
            lag_s = seconds_behind(progress.ts, now_ms)
            yield _gauge("snapshot_ts_lag_seconds", "Age of the newest snapshot", lag_s)
        yield from _of_partitions(progress.partitions, now_ms)


def _of_partitions(partitions: tuple[Partition, ...], now_ms: int) -> Iterator[Any]:
    for name, (text, ts_of) in MOMENTS.items():
        there = [(one, ts_of(one)) for one in partitions if ts_of(one)]
        moments = [(one, physical_ms(ts)) for one, ts in there]
        yield _family(name, text, moments)
        ages = [(one, seconds_behind(ts, now_ms)) for one, ts in there]
        yield _family(f"{name}_lag_seconds", f"{text}: its age", ages)
    for name, (text, count_of) in COUNTS.items():
        counts = [(one, count) for one in partitions if (count := count_of(one)) is not None]
        yield _family(name, text, counts)


def _gauge(name: str, text: str, value: float) -> Any:
    return GaugeMetricFamily(f"tidegate_consumer_{name}", text, value)


def _family(name: str, text: str, values: Sequence[tuple[Partition, float]]) -> Any:
    family = GaugeMetricFamily(f"tidegate_consumer_{name}", text, labels=PLACE)
    for one, value in values:
        family.add_metric(one.name.rsplit("/", 1), value)
    return family

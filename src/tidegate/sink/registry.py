"""Finds the sink for a URI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.sink.base import Sink, SinkFeed
from tidegate.sink.kafka.sink import KafkaSink
from tidegate.sink.reader.sink import ReaderSink

SINKS: Final[dict[str, Callable[[SinkFeed], Sink]]] = {
    "kafka": KafkaSink,
    "kafka+ssl": KafkaSink,
    "reader": ReaderSink,
}
"""Sinks by the scheme of the URI, which `config` has checked."""


def same_place(before: Sink, after: Sink) -> bool:
    """Whether `after` finds what `before` has written. Raises Retryable if that cannot be found out."""
    return type(before) is type(after) and after.same_place(before)


def sink_of(feed: SinkFeed) -> Sink:
    """The sink of a feed."""
    return SINKS[feed.uri.scheme](feed)

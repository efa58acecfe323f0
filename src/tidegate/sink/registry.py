"""Finds the sink for a URI."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.errors import InvalidInput
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


def widen(sink: Sink, partitions: int) -> None:
    """Give the feed's topic at least `partitions` partitions.

    Raises InvalidInput if the sink has no partitions, or they cannot be added; Retryable if the downstream
    does not answer.
    """
    if not isinstance(sink, KafkaSink):
        raise InvalidInput("This sink has no partitions.", fix="only Kafka's topics have")
    sink.widen(partitions)


def sink_of(feed: SinkFeed) -> Sink:
    """The sink of a feed."""
    return SINKS[feed.uri.scheme](feed)

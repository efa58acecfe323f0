"""Which sink a URI means."""

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
"""By the scheme of the URI, which `config` has checked."""


def same_place(before: Sink, after: Sink) -> bool:
    """Whether what one has written is there for the other. Raises Retryable when that cannot be told."""
    return type(before) is type(after) and after.same_place(before)


def widen(sink: Sink, partitions: int) -> None:
    """See to it that the feed's topic has so many partitions at least.

    Raises InvalidInput where there are no partitions, or they cannot be added; Retryable when the downstream
    does not answer.
    """
    if not isinstance(sink, KafkaSink):
        raise InvalidInput("This sink has no partitions.", fix="only Kafka's topics have")
    sink.widen(partitions)


def sink_of(feed: SinkFeed) -> Sink:
    """The sink of a feed."""
    return SINKS[feed.uri.scheme](feed)

"""A slot's writer used as a task does, for a transaction that is known from the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.model.progress import JOURNAL_KEY, TOPICS_KEY, SpanProgress
from tidegate.sink.base import Content, SlotTaken, Writer
from tidegate.sink.kafka.client import read_records


def deliver(writer: Writer, contents: Sequence[Content], progress: Mapping[str, bytes]) -> None:
    """Rows and progress in one transaction; once more when the slot was taken and has been taken back."""
    try:
        _deliver(writer, contents, progress)
    except SlotTaken:
        _deliver(writer, contents, progress)


def _deliver(writer: Writer, contents: Sequence[Content], progress: Mapping[str, bytes]) -> None:
    writer.write(contents)
    writer.commit(progress)


def read_progress(uri: SinkUri, config: ReplicaConfig, topic: str) -> dict[str, SpanProgress]:
    """The progress of spans in a progress topic of Kafka."""
    records = read_records(uri, config.sink.kafka_config, topic)
    own = (JOURNAL_KEY, TOPICS_KEY)
    return {key: SpanProgress.from_bytes(one) for key, one in records.items() if key not in own}

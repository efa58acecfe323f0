"""A slot's writer used as a task does, for a transaction that is known from the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.model.message import MessageBlock
from tidegate.sink.kafka_slot import SlotTaken, SlotWriter


def deliver(
    writer: SlotWriter,
    topic: str,
    blocks: Sequence[MessageBlock],
    progress_topic: str,
    progress: Mapping[str, bytes],
) -> None:
    """Rows and progress in one transaction; once more when the slot was taken and has been taken back."""
    try:
        _deliver(writer, topic, blocks, progress_topic, progress)
    except SlotTaken:
        _deliver(writer, topic, blocks, progress_topic, progress)


def _deliver(
    writer: SlotWriter,
    topic: str,
    blocks: Sequence[MessageBlock],
    progress_topic: str,
    progress: Mapping[str, bytes],
) -> None:
    for block in blocks:
        writer.produce(topic, block)
    writer.commit(progress_topic, progress)

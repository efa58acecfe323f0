"""Fetches from Kafka to staged Arrow. The driver chooses offset ranges; tasks fetch and decode them.

A task reads one partition's range read_committed, decodes it with the protocol's decoder, and writes the
rows, table by table, into staging files (`consumer.reading.staging`). Only a `Fetched` goes back to the
driver: descriptors, marks and DDLs, no rows. A worker process keeps its Kafka client until it ends.

Bounds: a task fetches at most `Range.max_bytes` of messages. They may expand to far more, or name objects
that are far larger, so they are decoded and written in pieces, each into a file of its own
(`codec.decoding.opening`, `consumer.reading.claims`). If a partition does not answer for `STALL_S`, the task
returns what it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidegate.codec import registry
from tidegate.codec.base import BadMessage, Batch, Decoded
from tidegate.consumer.engine.fetched import Fetched, Range
from tidegate.consumer.reading.mark_headers import layouts, mark_headers, split_resolved, unsound_marks
from tidegate.consumer.reading.source import ADMIN_TIMEOUT_S, Topic
from tidegate.consumer.reading.staging import stage
from tidegate.consumer.reading.topic_decoder import TopicDecoder
from tidegate.errors import TidegateError
from tidegate.model.layout import Layout
from tidegate.sink.kafka.client import take

CONSUME_MESSAGES: Final = 10_000
LOOK_BACK_MESSAGES: Final = 20_000
"""The first window in which definitions are searched: TiCDC repeats a table's after 10,000 of its rows."""
STALL_S: Final = 5.0

_readers: dict[str, tuple[Consumer, TopicDecoder]] = {}
"""One client per topic in this worker process: connecting costs more than a small fetch."""


def fetch(topic: Topic, wanted: Range, staging: Path) -> Fetched:
    """Read and decode one range into staging files. Runs in a Spark task or a worker process."""
    reader, decoder = _reader(topic)
    reader.assign([TopicPartition(*topic.place(wanted.partition), wanted.start)])
    try:
        taken = _take(reader, wanted)
    finally:
        # The client is kept. It would continue fetching a partition that is still assigned, into its own
        # memory.
        reader.unassign()
    batch = batch_of(taken.messages)
    found = Fetched(wanted.partition, taken.next_offset, len(taken.messages), trouble=taken.trouble)
    try:
        whole = _staged(topic, decoder, batch, found, staging)
        unknown = unknown_versions(whole.bad)
        if unknown:
            _drop(whole)
            trouble = look_back(topic, reader, decoder, wanted, unknown)
            if trouble:
                return Fetched(wanted.partition, wanted.start, trouble=trouble)
            whole = _staged(topic, decoder, batch, found, staging)
    except TidegateError as error:
        return Fetched(wanted.partition, wanted.start, outage=(error.what, error.where, error.why, error.fix))
    return whole


def _staged(topic: Topic, decoder: TopicDecoder, batch: Batch, found: Fetched, staging: Path) -> Fetched:
    """`found` with everything that the messages hold; each piece of rows is in a file of its own."""
    unmarked = registry.codec(topic.options.protocol).unmarked
    try:
        for piece in decoder.pieces(batch):
            file = staging / f"{found.partition}-{found.next_offset}-{time.monotonic_ns()}.arrow"
            headers = mark_headers(batch, piece.resolved)
            bad = (*found.bad, *unsound_marks(batch, headers), *piece.bad)
            resolved, aligns = split_resolved(piece.resolved, headers)
            found = replace(
                found,
                segments=(
                    *found.segments,
                    *stage(
                        *(piece, found.partition, file, topic.clock, topic.soft_deletes),
                        whole_old=topic.whole_old,
                    ),
                ),
                resolved=(*found.resolved, *resolved),
                aligns=(*found.aligns, *aligns),
                lost_aligns=(*found.lost_aligns, *((at, headers.unsound[at]) for at in headers.lost)),
                ddls=(*found.ddls, *piece.ddls),
                bad=bad,
                **_of_partitions(found, piece, layouts(batch, piece)),
                unmarked=found.unmarked
                or (unmarked is not None and unmarked.shown(sound_values(decoder, batch, bad), piece)),
            )
    except TidegateError:
        # Only this function knows these files by now, so nobody else would remove them.
        _drop(found)
        raise
    return found


def _of_partitions(found: Fetched, piece: Decoded, reported: Mapping[int, Layout]) -> dict[str, Any]:
    """The changes of the number of partitions in the messages so far."""
    unsaid = [one for one in piece.repartitions if one[1] not in reported]
    return {
        "repartitions": (*found.repartitions, *unsaid),
        "layouts": tuple(dict.fromkeys((*found.layouts, *reported.values()))),
    }


def _drop(found: Fetched) -> None:
    """Remove the staging files of a range that will be fetched again."""
    for file in {segment.file for segment in found.segments}:
        Path(file).unlink(missing_ok=True)


def sound_values(decoder: TopicDecoder, batch: Batch, messages: Iterable[BadMessage]) -> list[bytes | None]:
    """The first value that could be decoded, decompressed, in a list; an empty list when there is none."""
    bad = {message.offset for message in messages}
    for value, offset in zip(batch.values, batch.offsets, strict=True):
        if value is not None and int(offset) not in bad:
            return [decoder.opened(value)]
    return []


def batch_of(messages: Sequence[Message]) -> Batch:
    """Messages of one partition, for a decoder."""
    headers = [message.headers() for message in messages]
    return Batch(
        [message.key() for message in messages],
        [message.value() for message in messages],
        np.array([message.offset() for message in messages], np.int64),
        headers if any(headers) else None,
    )


def unknown_versions(messages: Iterable[BadMessage]) -> set[tuple[str, str, int]]:
    """The table versions of rows that wait for their definition."""
    return {bad.unknown for bad in messages if bad.unknown is not None}


def look_back(
    topic: Topic, reader: Consumer, decoder: TopicDecoder, wanted: Range, unknown: set[tuple[str, str, int]]
) -> str:
    """Search the messages before the range for the definitions of these table versions, for the decoder.

    Reads the partition backwards, in windows that double, until all are found or the partition's oldest
    message is reached. A producer repeats a definition regularly, so it is usually in the first window. Rows
    whose definition is not found stay undecodable, and their next decoding reports that. Returns why the
    broker did not answer; empty when it did.
    """
    definitions = registry.reader_of(topic.options).definitions
    assert definitions is not None, "only such a protocol has rows that wait"
    left = set(unknown)
    try:
        place = TopicPartition(*topic.place(wanted.partition))
        oldest, _ = reader.get_watermark_offsets(place, timeout=ADMIN_TIMEOUT_S)
        end, window = wanted.start, LOOK_BACK_MESSAGES
        while left and end > oldest:
            start = max(oldest, end - window)
            reported, trouble = _definitions(
                topic,
                reader,
                Range(wanted.partition, start, end),
                lambda value: definitions.may_define(decoder.opened(value) or b""),
            )
            if trouble:
                return trouble
            if reported:
                # To decode them is enough: the decoder keeps the definitions that it meets.
                for _ in decoder.pieces(batch_of(reported)):
                    pass
                left -= {
                    version
                    for message in reported
                    for version in definitions.versions(decoder.opened(message.value()) or b"")
                }
            end, window = start, 2 * window
    except KafkaException as error:
        return str(error)
    return ""


def _definitions(
    topic: Topic, reader: Consumer, window: Range, may_define: Callable[[bytes], bool]
) -> tuple[list[Message], str]:
    """The messages of a window that may define a table version, and the broker's error, if any."""
    reported, at = [], window.start
    while at < window.end:
        reader.assign([TopicPartition(*topic.place(window.partition), at)])
        try:
            taken = _take(reader, Range(window.partition, at, window.end))
        finally:
            reader.unassign()
        reported += [message for message in taken.messages if may_define(message.value() or b"")]
        if taken.trouble or taken.next_offset == at:
            return reported, taken.trouble
        at = taken.next_offset
    return reported, ""


def _reader(topic: Topic) -> tuple[Consumer, TopicDecoder]:
    if topic.text not in _readers:
        _readers[topic.text] = (Consumer(topic.settings()), TopicDecoder(topic))
    return _readers[topic.text]


@dataclass(slots=True)
class _Taken:
    next_offset: int
    messages: list[Message] = field(default_factory=list)
    trouble: str = ""


def _take(reader: Consumer, wanted: Range) -> _Taken:
    """Read the range until its end, the size limit, or `STALL_S` without an answer."""
    taken, size, received = _Taken(wanted.start), 0, time.monotonic()
    at_end = False
    while taken.next_offset < wanted.end and size < wanted.max_bytes and not at_end:
        found = take(reader, min(CONSUME_MESSAGES, max(wanted.max_bytes // 1024, 1)), 0.2)
        if found:
            received = time.monotonic()
        # Whole lists at a time: a loop over the messages takes a fifth of the time of reading them.
        sound = [message for message in found if message.error() is None]
        if sound:
            taken.messages += sound
            taken.next_offset = sound[-1].offset() + 1
            size += sum(map(len, sound))
        for message in found if len(sound) < len(found) else ():
            error = message.error()
            if error is None:
                continue
            if error.code() == KafkaError._PARTITION_EOF:
                # Only transaction markers follow the last message, so the partition is read to its end.
                taken.next_offset, at_end = max(taken.next_offset, message.offset()), True
            else:
                taken.trouble = str(error)
        if taken.trouble or time.monotonic() - received > STALL_S:
            taken.trouble = taken.trouble or f"no answer for {STALL_S:.0f} s"
            break
    return taken

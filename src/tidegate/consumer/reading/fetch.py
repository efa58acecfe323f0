"""Fetches from Kafka to staged Arrow. The driver chooses offset ranges; tasks fetch and decode them.

A task reads one partition's range read_committed, decodes it with the protocol's decoder, and writes the
rows, table by table, into staging files (`consumer.reading.staging`). Only a `Fetched` goes back to the
driver: descriptors, marks and DDLs, no rows. A worker process keeps its Kafka client and the memory of its
messages until it ends.

Bounds: a task fetches at most `Range.max_bytes` of messages. They may expand to far more, or name objects
that are far larger, so they are decoded and written in pieces, each into a file of its own
(`codec.decoding.opening`, `consumer.reading.claims`). If a partition does not answer for `STALL_S`, the task
returns what it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message

from tidegate.codec import registry
from tidegate.codec.base import BadMessage, Batch, Decoded, Headers
from tidegate.codec.decoding.assemble import at
from tidegate.consumer.engine.fetched import Fetched, Range
from tidegate.consumer.reading.arena import Arena
from tidegate.consumer.reading.mark_headers import layouts, mark_headers, split_resolved, unsound_marks
from tidegate.consumer.reading.message_client import MessageClient, client_of
from tidegate.consumer.reading.source import ADMIN_TIMEOUT_S, Topic
from tidegate.consumer.reading.staging import stage
from tidegate.consumer.reading.topic_decoder import TopicDecoder
from tidegate.errors import TidegateError
from tidegate.model.layout import Layout

CONSUME_MESSAGES: Final = 10_000
LOOK_BACK_MESSAGES: Final = 20_000
"""The first window in which definitions are searched: TiCDC repeats a table's after 10,000 of its rows."""
STALL_S: Final = 5.0

_readers: dict[str, tuple[MessageClient, TopicDecoder]] = {}
"""One client per topic in this worker process: connecting costs more than a small fetch."""
_arena: Final = Arena()
"""The messages of the range that this worker process fetches. It fetches one at a time."""


def fetch(topic: Topic, wanted: Range, staging: Path) -> Fetched:
    """Read and decode one range into staging files. Runs in a Spark task or a worker process."""
    reader, decoder = _reader(topic)
    taken = _take(topic, reader, wanted, _arena)
    batch = _arena.batch()
    # A range that broke off is not lost: what arrived is decoded, and the next round begins behind it.
    found = Fetched(wanted.partition, taken.next_offset, len(batch), trouble=taken.trouble)
    try:
        whole = _staged(topic, decoder, batch, found, staging)
        unknown = unknown_versions(whole.bad)
        if unknown:
            # The first pass could not decode these rows. Its files would hold the others of the range twice.
            _drop(whole)
            trouble = look_back(topic, reader, decoder, wanted, unknown)
            if trouble:
                # To give up here would put rows into quarantine whose definition is on the topic.
                return Fetched(wanted.partition, wanted.start, trouble=trouble)
            whole = _staged(topic, decoder, batch, found, staging)
    except TidegateError as error:
        # The next offset is the start: nothing of the range counts as read, although some messages were
        # decoded. As texts, because Spark would lose the parts of an exception.
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
    for number, offset in enumerate(batch.offsets):
        if int(offset) not in bad and (value := at(batch.values, number)) is not None:
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
    topic: Topic,
    reader: MessageClient,
    decoder: TopicDecoder,
    wanted: Range,
    unknown: set[tuple[str, str, int]],
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
        oldest = reader.oldest(*topic.place(wanted.partition), ADMIN_TIMEOUT_S)
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
            if len(reported):
                # To decode them is enough: the decoder keeps the definitions that it meets.
                for _ in decoder.pieces(reported):
                    pass
                left -= {
                    version
                    for value in reported.values
                    for version in definitions.versions(decoder.opened(value) or b"")
                }
            end, window = start, 2 * window
    except KafkaException as error:
        return str(error.args[0].str())
    return ""


def _definitions(
    topic: Topic, reader: MessageClient, window: Range, may_define: Callable[[bytes], bool]
) -> tuple[Batch, str]:
    """The messages of a window that may define a table version, and the broker's error, if any."""
    # Not the arena of the range itself, whose messages are decoded once more after this.
    arena, next_offset, trouble = Arena(), window.start, ""
    keys, values, offsets, headers = list[Any](), list[Any](), list[int](), list[Headers]()
    while next_offset < window.end and not trouble:
        taken = _take(topic, reader, replace(window, start=next_offset), arena)
        batch = arena.batch()
        for number, offset in enumerate(batch.offsets):
            value = at(batch.values, number)
            if may_define(value or b""):
                keys.append(at(batch.keys, number))
                values.append(value)
                offsets.append(int(offset))
                headers.append(batch.headers[number] if batch.headers is not None else None)
        trouble = taken.trouble
        if taken.next_offset == next_offset:
            break
        next_offset = taken.next_offset
    return Batch(keys, values, offsets, headers if any(headers) else None), trouble


def _reader(topic: Topic) -> tuple[MessageClient, TopicDecoder]:
    if topic.text not in _readers:
        _readers[topic.text] = (client_of(topic.settings()), TopicDecoder(topic))
    return _readers[topic.text]


@dataclass(slots=True)
class _Taken:
    next_offset: int
    trouble: str = ""


def _take(topic: Topic, reader: MessageClient, wanted: Range, arena: Arena) -> _Taken:
    """Read the range into an arena until its end, the size limit, or `STALL_S` without an answer."""
    arena.clear()
    reader.assign(*topic.place(wanted.partition), wanted.start)
    try:
        return _taken(reader, wanted, arena)
    finally:
        # The client is kept. It would continue fetching a partition that is still assigned, into its own
        # memory.
        reader.unassign()


def _taken(reader: MessageClient, wanted: Range, arena: Arena) -> _Taken:
    taken, received, at_end = _Taken(wanted.start), time.monotonic(), False
    most = min(CONSUME_MESSAGES, max(wanted.max_bytes // 1024, 1))
    while taken.next_offset < wanted.end and arena.size < wanted.max_bytes and not at_end:
        count = arena.count
        others = reader.take(arena, most, 0.2)
        if others or arena.count > count:
            received = time.monotonic()
        if arena.count > count:
            taken.next_offset = arena.next_offset
        for error, offset in others:
            if error.code() == KafkaError._PARTITION_EOF:
                # Only transaction markers follow the last message, so the partition is read to its end.
                taken.next_offset, at_end = max(taken.next_offset, offset), True
            else:
                taken.trouble = error.str()
        if taken.trouble or time.monotonic() - received > STALL_S:
            taken.trouble = taken.trouble or f"no answer for {STALL_S:.0f} s"
            break
    return taken

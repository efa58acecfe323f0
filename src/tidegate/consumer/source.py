"""From Kafka to staged Arrow: the driver decides offset ranges, Spark tasks fetch and decode them.

A source is one topic or several of one changefeed; their partitions are known by number (`places`).

A task reads one partition's range read_committed, decodes it with the protocol's decoder and writes the
rows, table by table, as Arrow IPC streams into a staging file; back to the driver goes only a `Fetched`:
descriptors, marks and DDLs, no rows. Staging files are disposable: what is lost with them is read again from
the offsets kept with the target. A worker process keeps its Kafka client for its life.

Bounds: a task fetches at most `Range.max_bytes` of messages. What they expand to, or only name, may be far
more: it is decoded and written in pieces, each into a file of its own (`codec.opening`, `consumer.claims`). A
partition without an answer for `STALL_S` ends its task with what it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import IO, Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidegate.claim_check import ClaimStorage
from tidegate.codec import registry
from tidegate.codec.base import (
    BadMessage,
    Batch,
    CodecOptions,
    DdlMessage,
    Decoded,
    DecodedTable,
    Decoder,
)
from tidegate.codec.compression import NONE, ExpandError
from tidegate.codec.decode import decoder as decoder_of
from tidegate.codec.entry import Loss
from tidegate.codec.large import LargeOptions
from tidegate.codec.opening import in_pieces, opened, opening
from tidegate.codec.schema_book import SchemaBook, look_up_missing
from tidegate.config.reading import load_config
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_source_uri
from tidegate.config.values import revealed
from tidegate.consumer.assembler import Segment
from tidegate.consumer.claims import ClaimReader
from tidegate.consumer.handle_keys import RowReader
from tidegate.consumer.mark_headers import layouts, mark_headers, split_resolved, unsound_marks
from tidegate.consumer.places import number_of, place_of
from tidegate.consumer.soft_delete import SoftDelete, column_for
from tidegate.errors import InvalidInput, TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.model.layout import Layout
from tidegate.model.timestamp import physical_ms
from tidegate.schema_registry import ConfluentRegistry
from tidegate.sink.kafka.client import client_settings, take

MAX_BYTES: Final = 48 << 20
ADMIN_TIMEOUT_S: Final = 4.0
"""How long the broker may take for an answer: short, since whoever wants to end waits for it too."""
CONSUME_MESSAGES: Final = 10_000
LOOK_BACK_MESSAGES: Final = 20_000
"""The first window in which definitions are looked for: TiCDC repeats a table's after 10,000 of its rows."""
STALL_S: Final = 5.0
META: Final = ("_op", "_commit_ts", "_offset", "_seq")
SAID_TS: Final = "_said_ts"
"""Of topics read by offset, behind `META`: the commit ts that the rows say, 0 where they do not. Their
`_commit_ts` is the offset + 1."""
"""First columns of a staged batch; then `n.NAME` of the after image and `o.NAME` of the before image."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one partition to read."""

    partition: int
    """Its number, as everywhere behind the source."""
    start: int
    end: int
    max_bytes: int = MAX_BYTES
    """About how many bytes of messages are read of it at once."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one task found."""

    partition: int
    next_offset: int
    messages: int = 0
    segments: tuple[Segment, ...] = ()
    resolved: tuple[tuple[int, int], ...] = ()
    """(ts, offset), in offset order; without alignment marks."""
    ddls: tuple[DdlMessage, ...] = ()
    bad: tuple[BadMessage, ...] = ()
    unmarked: bool = False
    """Written without what its protocol needs for watermarks: nothing in it can be one."""
    repartitions: tuple[tuple[int, int], ...] = ()
    """(partitions, offset): the producer changed the number of partitions it writes, and its message does not
    say since when."""
    layouts: tuple[Layout, ...] = ()
    """What its Resolved say of the number of partitions: each different one once, in their order."""
    trouble: str = ""
    """Why the broker gave nothing, when it did not; the range stays to be read."""
    outage: tuple[str, str, str, str] | None = None
    """What, where, why and what to do: a schema registry gives no schemas; the range stays to be read."""
    aligns: tuple[tuple[int, int], ...] = ()
    """(commit ts, offset) of alignment marks."""
    lost_aligns: tuple[tuple[int, str], ...] = ()
    """(offset, why) of alignment marks that cannot be read; they are in `bad`, too."""


class Clock(Enum):
    """What rows say of their commit ts."""

    EXACT = 0
    MILLISECONDS = 1
    SECONDS = 1000
    NONE = -1

    def tick(self, ts: int) -> int:
        """A ts in the unit in which rows say it."""
        return ts if self is Clock.EXACT else physical_ms(ts) // abs(self.value)


def clock_of(lost: frozenset[Loss]) -> Clock:
    """That of a protocol that loses so much."""
    if lost & {Loss.COMMIT_TS, Loss.DELETED_TS}:
        return Clock.NONE
    if Loss.SECONDS in lost:
        return Clock.SECONDS
    return Clock.MILLISECONDS if Loss.LOGICAL_TS in lost else Clock.EXACT


class Topic:
    """One topic or several, as the URI names them: `kafka://host:port/topic[,topic]?protocol=..`.

    Cheap, picklable by its URI.
    """

    def __init__(
        self,
        text: str,
        time_zone: str = "",
        pd: str = "",
        by_offset: bool = False,
        soft_delete: tuple[str, ...] = (),
    ) -> None:
        """`time_zone`: what the user says of TIMESTAMP texts; empty: nothing.

        `pd`: the address of upstream's PD, for rows of which only the handle key is on the topic.
        `by_offset`: offsets are the progress, since there are no watermarks. `soft_delete`: rules for tables
        of which deleted rows are kept, so that their old values are staged whole. Raises InvalidInput for a
        wrong URI, protocol, option or rule.
        """
        self.text, self.given_zone, self.pd, self.by_offset = text, time_zone, pd, by_offset
        self._soft_delete = soft_delete
        self.soft_deletes = tuple(map(SoftDelete.of, soft_delete))
        self.time_zone = time_zone or "UTC"
        """For what must be read before anybody has told the zone."""
        check_zone(self.time_zone)
        with _about_the_source():
            uri, names = parse_source_uri(text)
            self.uri: SinkUri = uri
            self.names: tuple[str, ...] = names
            """Sorted: a partition's number is the same, in whatever order they are named."""
            self.config: ReplicaConfig = registry.settled(load_config(None, self.uri), reading=True)
            settings = self.config.codec_settings() | {"time-zone": self.time_zone}
            self.options: CodecOptions = registry.codec_options(settings)
            _check_readable(self.options)

    def __reduce__(self) -> tuple[type[Topic], tuple[str, str, str, bool, tuple[str, ...]]]:
        return Topic, (self.text, self.given_zone, self.pd, self.by_offset, self._soft_delete)

    @property
    def name(self) -> str:
        """The topic's name; of several, all of them."""
        return ",".join(self.names)

    def number(self, name: str, partition: int) -> int:
        """The number of a topic's partition."""
        return number_of(self.names, name, partition)

    def place(self, number: int) -> tuple[str, int]:
        """The topic and partition of a number."""
        return place_of(self.names, number)

    def names_of(self, numbers: Iterable[int]) -> set[str]:
        """The topics of some partitions."""
        return {self.place(number)[0] for number in numbers}

    def where(self, number: int) -> str:
        """A partition, in words."""
        name, partition = self.place(number)
        return f"topic {name}, partition {partition}"

    @property
    def clock(self) -> Clock | None:
        """What rows say of their commit ts, if the topic is read by offset."""
        return clock_of(registry.reader_of(self.options).losses(self.options)) if self.by_offset else None

    @property
    def zone(self) -> str:
        """Zone of the TIMESTAMP texts that its messages decode to; empty: its messages do not say it.

        A DDL header may, see `ddl_header.timestamp_zone`.
        """
        reader = registry.reader_of(self.options)
        return "UTC" if reader.utc else self.time_zone if reader.tells_zone else self.given_zone

    @property
    def learns_zone(self) -> bool:
        """Whether the zone is what the user or a DDL header says."""
        reader = registry.reader_of(self.options)
        return not (reader.utc or reader.tells_zone)

    def settings(self) -> dict[str, Any]:
        """Settings of a reader for librdkafka. Holds secrets: never log it."""
        return client_settings(self.uri, self.config.sink.kafka_config) | {
            "group.id": f"tidegate-consumer.{self.name}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 65_536,
        }


def _check_readable(options: CodecOptions) -> None:
    """Refuse messages that do not tell what their values are."""
    found = registry.reader_of(options)
    unread = found.unread(options)
    if unread:
        raise InvalidInput(
            f"messages of {found.name} written with {unread} cannot be read",
            where="sink URI",
            why="they do not tell the types of their columns",
            fix="create a changefeed without it, into a new topic, and read that one",
        )


@contextmanager
def _about_the_source() -> Iterator[None]:
    """The settings of a feed's sink are read by the same code: say that it is the source that is wrong."""
    try:
        yield
    except InvalidInput as error:
        fix = error.fix.replace("sink URI", "source URI")
        raise InvalidInput(error.what, where="source URI", why=error.why, fix=fix) from None


def check_zone(name: str) -> None:
    """Raises InvalidInput unless it is a time zone of this machine's database."""
    try:
        ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise InvalidInput(
            f"there is no time zone '{name[:100]}'",
            where="--time-zone",
            why="it is not in this machine's time zone database",
            fix="use a name such as UTC or Asia/Shanghai: the one the changefeed writes TIMESTAMPs in",
        ) from None


class TopicDecoder:
    """A topic's decoder, and the schema registry it needs, if its protocol needs one."""

    def __init__(self, topic: Topic) -> None:
        """Reaches nothing yet."""
        options = topic.options
        self._schemas = registry.reader_of(options).schemas
        if self._schemas is not None:
            self._book = SchemaBook()
            self._registry = ConfluentRegistry(revealed(topic.config.sink.schema_registry))
            options = self._schemas.placed(options, topic.uri.topic, "", self._book)
        self._options = options
        self._claims: ClaimReader | None = None
        large = registry.reader_of(options).large
        if large is None or not isinstance(options, LargeOptions):
            self._decoder: Decoder = decoder_of(options)
            return
        inner = decoder_of(replace(options, large_message_handle_compression=NONE))
        self._decoder = opening(inner, options, large)
        uri = topic.config.sink.kafka_config.large_message_handle.claim_check_storage_uri
        if uri or topic.pd:
            storage = ClaimStorage(uri) if uri else None
            upstream = RowReader(PdClient(topic.pd), ZoneInfo(topic.time_zone)) if topic.pd else None
            self._claims = ClaimReader(storage, inner, options, large, upstream)

    def pieces(self, batch: Batch) -> Iterator[Decoded]:
        """What a batch held, with the rows that lie in a storage, if the source URI names one.

        In the order of the messages, in pieces of bounded size: usually one. Raises Retryable while a schema
        is not known and the registry does not answer, or a row is not there.
        """
        if self._schemas is not None:
            look_up_missing(self._book, self._registry, self._schemas.named(batch))
        for piece in in_pieces(self._decoder, batch):
            if self._claims is None:
                yield piece
            else:
                yield from self._claims.pieces(piece)

    def opened(self, value: bytes | None) -> bytes | None:
        """A message's value without its compression; as it is when it cannot be expanded."""
        large = registry.reader_of(self._options).large
        if value is None or large is None or not isinstance(self._options, LargeOptions):
            return value
        try:
            return opened(value, self._options.large_message_handle_compression, framed=large.framed)
        except ExpandError:
            return value


_readers: dict[str, tuple[Consumer, TopicDecoder]] = {}
"""One client per topic in this worker process: connecting costs more than a small fetch."""


def fetch(topic: Topic, wanted: Range, staging: Path) -> Fetched:
    """Read and decode one range into a staging file. Runs in a Spark task."""
    reader, decoder = _reader(topic)
    reader.assign([TopicPartition(*topic.place(wanted.partition), wanted.start)])
    try:
        taken = _take(reader, wanted)
    finally:
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
    """What was fetched, with all that the messages held; each piece of rows is in a file of its own."""
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
                    *stage(piece, found.partition, file, topic.clock, topic.soft_deletes),
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
        _drop(found)
        raise
    return found


def _of_partitions(found: Fetched, piece: Decoded, reported: Mapping[int, Layout]) -> dict[str, Any]:
    """What messages so far say of the number of partitions."""
    unsaid = [one for one in piece.repartitions if one[1] not in reported]
    return {
        "repartitions": (*found.repartitions, *unsaid),
        "layouts": tuple(dict.fromkeys((*found.layouts, *reported.values()))),
    }


def _drop(found: Fetched) -> None:
    """Remove the staging files of what will be fetched once more."""
    for file in {segment.file for segment in found.segments}:
        Path(file).unlink(missing_ok=True)


def sound_values(decoder: TopicDecoder, batch: Batch, messages: Iterable[BadMessage]) -> list[bytes | None]:
    """The first value that could be decoded, without its compression; none when there is none."""
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
    """Let the decoder meet the definitions of these table versions, which lie before the range.

    Reads the partition backwards, in windows that double, until it has found all of them or is at the
    partition's oldest message. A producer repeats a definition every now and then, so the first window
    usually has it. What is not there is then said by the rows themselves. Returns why the broker did not
    answer; empty when it did.
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
                lambda value: definitions.tells(decoder.opened(value) or b""),
            )
            if trouble:
                return trouble
            if reported:
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
    topic: Topic, reader: Consumer, window: Range, tells: Callable[[bytes], bool]
) -> tuple[list[Message], str]:
    """The messages of a window that may tell a table version, and the broker's trouble, if any."""
    reported, at = [], window.start
    while at < window.end:
        reader.assign([TopicPartition(*topic.place(window.partition), at)])
        try:
            taken = _take(reader, Range(window.partition, at, window.end))
        finally:
            reader.unassign()
        reported += [message for message in taken.messages if tells(message.value() or b"")]
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
    """Messages of the range until its end, the size limit, or silence."""
    taken, size, received = _Taken(wanted.start), 0, time.monotonic()
    at_end = False
    while taken.next_offset < wanted.end and size < wanted.max_bytes and not at_end:
        for message in take(reader, min(CONSUME_MESSAGES, max(wanted.max_bytes // 1024, 1)), 0.2):
            received = time.monotonic()
            error = message.error()
            if error is None:
                taken.messages.append(message)
                taken.next_offset = message.offset() + 1
                size += len(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Behind the last message stand only transaction markers: nothing of ours.
                taken.next_offset, at_end = max(taken.next_offset, message.offset()), True
            else:
                taken.trouble = str(error)
        if taken.trouble or time.monotonic() - received > STALL_S:
            taken.trouble = taken.trouble or f"no answer for {STALL_S:.0f} s"
            break
    return taken


def stage(
    decoded: Decoded,
    partition: int,
    file: Path,
    clock: Clock | None = None,
    soft_deletes: Sequence[SoftDelete] = (),
) -> Iterable[Segment]:
    """Write the decoded rows, one Arrow IPC stream per table and column set; yields their descriptors.

    `clock`: of a topic that is read by offset. `soft_deletes`: of which tables deleted rows are kept.
    """
    if not decoded.rows:
        return []
    with file.open("wb") as sink:
        return [_stage_table(table, partition, file, sink, clock, soft_deletes) for table in decoded.rows]


def _stage_table(
    table: DecodedTable,
    partition: int,
    file: Path,
    sink: IO[bytes],
    clock: Clock | None,
    soft_deletes: Sequence[SoftDelete],
) -> Segment:
    said = np.zeros_like(table.commit_ts) if clock is Clock.NONE else table.commit_ts
    if clock is not None:
        table = replace(table, commit_ts=(table.offset + 1).astype(np.uint64))
    batch = staged_batch(table, whole=bool(column_for(table.schema, table.table, soft_deletes)))
    if clock is not None:
        batch = batch.add_column(len(META), SAID_TS, pa.array(said))
    start = sink.tell()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return Segment(
        partition=partition,
        schema=table.schema,
        table=table.table,
        columns=table.columns,
        file=str(file),
        start=start,
        length=sink.tell() - start,
        rows=len(table),
        min_ts=int(table.commit_ts.min()),
        max_ts=int(table.commit_ts.max()),
        first_offset=int(table.offset.min()),
        commit_ts=int(said.max()) if clock is not None else 0,
    )


def staged_batch(table: DecodedTable, *, whole: bool = False) -> pa.RecordBatch:
    """One table's rows in the staged form; of the before image only the key when there is one.

    `whole`: the before image with all its columns, because deleted rows are kept.
    """
    arrays = [pa.array(column) for column in (table.op, table.commit_ts, table.offset, table.seq)]
    names = list(META)
    if table.new is not None:
        arrays += table.new.columns
        names += [f"n.{column.name}" for column in table.columns]
    if table.old is not None:
        keyed = any(column.key for column in table.columns)
        for column, array in zip(table.columns, table.old.columns, strict=True):
            if whole or column.key or not keyed:
                arrays.append(array)
                names.append(f"o.{column.name}")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def read_staged(segment: Segment) -> pa.RecordBatch:
    """The rows of a segment, memory-mapped."""
    with pa.memory_map(segment.file) as mapped:
        mapped.seek(segment.start)
        return pa.ipc.open_stream(pa.BufferReader(mapped.read_buffer(segment.length))).read_next_batch()

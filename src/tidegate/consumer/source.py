"""From Kafka to staged Arrow: the driver decides offset ranges, Spark tasks fetch and decode them.

A task reads one partition's range read_committed, decodes it with the protocol's decoder and writes the
rows, table by table, as Arrow IPC streams into one staging file; back to the driver goes only a
`Fetched`: descriptors, marks and DDLs, no rows. Staging files are disposable: what is lost with them is read
again from the offsets kept with the target. A worker process keeps its Kafka client for its life.

Bounds: one task fetches at most `MAX_BYTES` of messages; a partition without an answer for `STALL_S` ends
its task with what it has.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tidegate.codec import registry
from tidegate.codec.base import (
    CANAL_JSON,
    BadMessage,
    CodecOptions,
    DdlMessage,
    Decoded,
    DecodedTable,
    Decoder,
)
from tidegate.config import ReplicaConfig, SinkUri, load_config, parse_sink_uri
from tidegate.consumer.assembler import Segment
from tidegate.errors import InvalidInput, Retryable
from tidegate.sink.kafka.client import client_settings, take

MAX_BYTES: Final = 48 << 20
CONSUME_MESSAGES: Final = 10_000
STALL_S: Final = 5.0
ADMIN_TIMEOUT_S: Final = 4.0
"""How long the broker may take for an answer: short, since whoever wants to end waits for it too."""
META: Final = ("_op", "_commit_ts", "_offset", "_seq")
"""First columns of a staged batch; then `n.NAME` of the after image and `o.NAME` of the before image."""


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets [start, end) of one partition to read."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What one task found."""

    partition: int
    next_offset: int
    messages: int = 0
    segments: tuple[Segment, ...] = ()
    resolved: tuple[tuple[int, int], ...] = ()
    """(ts, offset), in offset order."""
    ddls: tuple[DdlMessage, ...] = ()
    bad: tuple[BadMessage, ...] = ()
    plain: bool = False
    """Canal-json without TiDB's extension: nothing in it can be a watermark."""
    trouble: str = ""
    """Why the broker gave nothing, when it did not; the range stays to be read."""


class Topic:
    """A topic as the URI names it: `kafka://host:port/topic?protocol=..`. Cheap, picklable by its URI."""

    def __init__(self, text: str, time_zone: str = "UTC") -> None:
        """Raises InvalidInput for a wrong URI, protocol or option."""
        self.text, self.time_zone = text, time_zone
        check_zone(time_zone)
        with _about_the_source():
            self.uri: SinkUri = parse_sink_uri(text)
            self.config: ReplicaConfig = load_config(None, self.uri)
            self.options: CodecOptions = registry.codec_options(self._codec_settings())

    def _codec_settings(self) -> dict[str, str | int | bool]:
        codec = self.config.sink.kafka_config.codec_config
        return {
            "protocol": self.config.sink.protocol,
            "time-zone": self.time_zone,
            "enable-tidb-extension": codec.enable_tidb_extension,
        }

    def __reduce__(self) -> tuple[type[Topic], tuple[str, str]]:
        return Topic, (self.text, self.time_zone)

    @property
    def name(self) -> str:
        """The topic's name."""
        return self.uri.topic

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


class Offsets:
    """The topic's partitions and their ends, asked of the broker by the driver."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._where = f"topic {topic.name} at {topic.uri.bootstrap}"
        self._admin = AdminClient(client_settings(topic.uri, topic.config.sink.kafka_config))

    def partitions(self) -> list[int]:
        """The partitions to read: all, or the first `partition-num` of the URI.

        Raises InvalidInput when there is no such topic or it has fewer, Retryable when no broker answers.
        """
        try:
            found = self._admin.list_topics(self._topic.name, timeout=ADMIN_TIMEOUT_S).topics[
                self._topic.name
            ]
        except KafkaException as error:
            raise self.unreachable(error.args[0].str()) from error
        if found.error is not None or not found.partitions:
            raise self._missing()
        wanted = self._topic.config.sink.kafka_config.partition_num
        if len(found.partitions) < wanted:
            raise InvalidInput(
                f"the topic has {len(found.partitions)} partitions, fewer than partition-num={wanted}",
                where=self._where,
                why="the source URI asks for more than there are",
                fix="leave partition-num out, or check that it is the topic the changefeed writes",
            )
        return sorted(found.partitions)[: wanted or None]

    def first(self, partitions: Sequence[int]) -> dict[int, int]:
        """The oldest offset of each partition that is still there."""
        return self._list(partitions, OffsetSpec.earliest())

    def ends(self, partitions: Sequence[int]) -> dict[int, int]:
        """The offset behind the last committed message of each partition."""
        return self._list(partitions, OffsetSpec.latest())

    def _list(self, partitions: Sequence[int], spec: OffsetSpec) -> dict[int, int]:
        wanted = {TopicPartition(self._topic.name, partition): spec for partition in partitions}
        try:
            asked = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=ADMIN_TIMEOUT_S
            )
            return {at.partition: future.result().offset for at, future in asked.items()}
        except KafkaException as error:
            if error.args[0].code() in (KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART):
                self.partitions()  # raises when it is the topic that is gone
            raise self.unreachable(error.args[0].str()) from error

    def _missing(self) -> InvalidInput:
        return InvalidInput(
            "the topic does not exist",
            where=self._where,
            why="the broker knows no topic of this name",
            fix="check the topic's name; a changefeed creates its topic when it starts",
        )

    def unreachable(self, why: str) -> Retryable:
        """The broker does not answer, or does not give what it has."""
        return Retryable(
            "the Kafka broker does not answer",
            where=self._topic.uri.bootstrap,
            why=why,
            fix="check that the broker runs and that the address is right",
        )


_readers: dict[str, tuple[Consumer, Decoder]] = {}
"""One client per topic in this worker process: connecting costs more than a small fetch."""


def fetch(topic: Topic, wanted: Range, staging: Path) -> Fetched:
    """Read and decode one range into a staging file. Runs in a Spark task."""
    reader, decoder = _reader(topic)
    at = TopicPartition(topic.name, wanted.partition, wanted.start)
    reader.assign([at])
    try:
        taken = _take(reader, wanted)
    finally:
        reader.unassign()
    keys = [message.key() for message in taken.messages]
    values = [message.value() for message in taken.messages]
    headers = [message.headers() for message in taken.messages]
    offsets = np.array([message.offset() for message in taken.messages], np.int64)
    decoded = decoder.decode(keys, values, headers, offsets)
    return Fetched(
        partition=wanted.partition,
        next_offset=taken.next_offset,
        messages=len(taken.messages),
        segments=tuple(
            stage(
                decoded,
                wanted.partition,
                staging / f"{wanted.partition}-{wanted.start}-{time.monotonic_ns()}.arrow",
            )
        ),
        resolved=tuple(decoded.resolved),
        ddls=tuple(decoded.ddls),
        bad=tuple(decoded.bad),
        plain=is_plain(topic.options.protocol, values, decoded),
        trouble=taken.trouble,
    )


def is_plain(protocol: str, values: Sequence[bytes | None], decoded: Decoded) -> bool:
    """Whether canal-json rows or DDLs were written without TiDB's extension; told by the first message.

    A member `_tidb` cannot stand inside a text of the message: its quotes would be escaped there.
    """
    if protocol != CANAL_JSON or decoded.resolved or not (decoded.rows or decoded.ddls):
        return False
    bad = {message.value for message in decoded.bad}
    first = next((value for value in values if value is not None and value not in bad), b"")
    return b'"_tidb":' not in first


def _reader(topic: Topic) -> tuple[Consumer, Decoder]:
    if topic.text not in _readers:
        _readers[topic.text] = (Consumer(topic.settings()), registry.decoder(topic.options))
    return _readers[topic.text]


@dataclass(slots=True)
class _Taken:
    next_offset: int
    messages: list[Message] = field(default_factory=list)
    trouble: str = ""


def _take(reader: Consumer, wanted: Range) -> _Taken:
    """Messages of the range until its end, the size limit, or silence."""
    taken, size, heard = _Taken(wanted.start), 0, time.monotonic()
    at_end = False
    while taken.next_offset < wanted.end and size < MAX_BYTES and not at_end:
        for message in take(reader, CONSUME_MESSAGES, 0.2):
            heard = time.monotonic()
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
        if taken.trouble or time.monotonic() - heard > STALL_S:
            taken.trouble = taken.trouble or f"no answer for {STALL_S:.0f} s"
            break
    return taken


def stage(decoded: Decoded, partition: int, file: Path) -> Iterable[Segment]:
    """Write the decoded rows, one Arrow IPC stream per table and column set; yields their descriptors."""
    if not decoded.rows:
        return []
    with file.open("wb") as sink:
        return [_stage_table(table, partition, file, sink) for table in decoded.rows]


def _stage_table(table: DecodedTable, partition: int, file: Path, sink: IO[bytes]) -> Segment:
    batch = staged_batch(table)
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
    )


def staged_batch(table: DecodedTable) -> pa.RecordBatch:
    """One table's rows in the staged form; of the before image only the key when there is one."""
    arrays = [pa.array(column) for column in (table.op, table.commit_ts, table.offset, table.seq)]
    names = list(META)
    if table.new is not None:
        arrays += table.new.columns
        names += [f"n.{column.name}" for column in table.columns]
    if table.old is not None:
        keyed = any(column.key for column in table.columns)
        for column, array in zip(table.columns, table.old.columns, strict=True):
            if column.key or not keyed:
                arrays.append(array)
                names.append(f"o.{column.name}")
    return pa.RecordBatch.from_arrays(arrays, names=names)


def read_staged(segment: Segment) -> pa.RecordBatch:
    """The rows of a segment, memory-mapped."""
    with pa.memory_map(segment.file) as mapped:
        mapped.seek(segment.start)
        return pa.ipc.open_stream(pa.BufferReader(mapped.read_buffer(segment.length))).read_next_batch()

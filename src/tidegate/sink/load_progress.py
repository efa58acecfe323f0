"""How far the ranges of an initial load are in Kafka: a record a range, in the transaction of its rows.

The records lie in the feed's progress topic under `load/<range id>`; they are deleted when the whole load is
known to be durable.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from tidegate.config import KafkaConfig, SinkUri
from tidegate.sink.kafka import LOAD_PREFIX, read_records


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """What of one range is in Kafka."""

    instance: str
    """`FeedInfo.instance`; the record of another feed says nothing about this one."""
    token: tuple[int, int]
    incarnation: int
    ts: int
    """Of the load."""
    rows: int
    """Entries of the range that were read so far."""
    left_from: str | None
    """The first key that is not in, in hex; None: the range is done."""

    def to_bytes(self) -> bytes:
        """The value of the record."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> LoadProgress:
        """The inverse of `to_bytes`."""
        found = json.loads(data)
        first, second = found["token"]
        token = (first, second)
        return cls(
            found["instance"], token, found["incarnation"], found["ts"], found["rows"], found["left_from"]
        )


def load_key(range_id: str) -> str:
    """The record's key."""
    return LOAD_PREFIX + range_id


def read_load_progress(
    uri: SinkUri, kafka: KafkaConfig, topic: str, instance: str, ts: int
) -> dict[str, LoadProgress]:
    """The last committed progress of each range of this feed's load at `ts`, by range id.

    Call it once, after all transactional ids that write it were initialised.
    """
    found = {
        key.removeprefix(LOAD_PREFIX): LoadProgress.from_bytes(value)
        for key, value in read_records(uri, kafka, topic).items()
        if key.startswith(LOAD_PREFIX)
    }
    return {name: one for name, one in found.items() if (one.instance, one.ts) == (instance, ts)}

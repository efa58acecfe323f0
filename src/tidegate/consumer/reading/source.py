"""A consumer's source as its URI names it: the topics of one changefeed, and how they are read.

Partitions of several topics are identified by number (`places`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from zoneinfo import ZoneInfo

from tidegate.codec import registry
from tidegate.codec.base import CodecOptions
from tidegate.config.reading import load_config
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_source_uri
from tidegate.consumer.engine.places import number_of, place_of
from tidegate.consumer.engine.row_clock import Clock, clock_of
from tidegate.consumer.table.soft_delete import SoftDelete
from tidegate.errors import InvalidInput
from tidegate.sink.kafka.client import client_settings

ADMIN_TIMEOUT_S: Final = 4.0
"""Seconds that the broker has for an answer. Short, because ending the consumer may have to wait for it."""


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
        whole_old: bool = False,
    ) -> None:
        """`time_zone`: the user's zone for TIMESTAMP texts; empty if none was given.

        `pd`: the address of upstream's PD, for rows whose message carries only the handle key. `by_offset`:
        offsets are the progress, because there are no watermarks. `soft_delete`: rules for tables that keep
        deleted rows; all columns of their old values are staged. `whole_old`: those of all tables are. Raises
        InvalidInput for a wrong URI, protocol, option or rule.
        """
        self.text, self.given_zone, self.pd, self.by_offset = text, time_zone, pd, by_offset
        self._soft_delete, self.whole_old = soft_delete, whole_old
        self.soft_deletes = tuple(map(SoftDelete.of, soft_delete))
        self.time_zone = time_zone or "UTC"
        """The zone for messages that are read before the zone is known."""
        check_zone(self.time_zone)
        with _about_the_source():
            uri, names = parse_source_uri(text)
            self.uri: SinkUri = uri
            self.names: tuple[str, ...] = names
            """Sorted, so that a partition has the same number in whatever order the user names the topics."""
            self.config: ReplicaConfig = registry.canonical(load_config(None, self.uri), reading=True)
            settings = self.config.codec_settings() | {"time-zone": self.time_zone}
            self.options: CodecOptions = registry.codec_options(settings)
            _check_readable(self.options)

    def __reduce__(self) -> tuple[type[Topic], tuple[str, str, str, bool, tuple[str, ...], bool]]:
        given = self.text, self.given_zone, self.pd, self.by_offset, self._soft_delete, self.whole_old
        return Topic, given

    @property
    def name(self) -> str:
        """The topic's name; for several topics, all names joined by commas."""
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
        """A partition, for an error text."""
        name, partition = self.place(number)
        return f"topic {name}, partition {partition}"

    @property
    def clock(self) -> Clock | None:
        """How exactly rows carry their commit ts, if the topic is read by offset; otherwise None."""
        return clock_of(registry.reader_of(self.options).losses(self.options)) if self.by_offset else None

    @property
    def zone(self) -> str:
        """The zone of the TIMESTAMP texts that its messages decode to; empty if messages do not name it.

        A DDL header may name it, see `ddl_header.timestamp_zone`.
        """
        reader = registry.reader_of(self.options)
        return "UTC" if reader.utc else self.time_zone if reader.states_zone else self.given_zone

    @property
    def learns_zone(self) -> bool:
        """Whether the user or a DDL header must name the zone."""
        reader = registry.reader_of(self.options)
        return not (reader.utc or reader.states_zone)

    def settings(self) -> dict[str, Any]:
        """Settings of a reader for librdkafka. Holds secrets: never log it."""
        return client_settings(self.uri, self.config.sink.kafka_config) | {
            "group.id": f"tidegate-consumer.{self.name}",
            # A writer with transactions repeats the messages of an aborted one.
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            # If the offset is not on the broker any more, the consumer must end: any other place to continue
            # leaves a gap.
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 65_536,
        }


def _check_readable(options: CodecOptions) -> None:
    """Raises InvalidInput for messages that do not carry the types of their values."""
    found = registry.reader_of(options)
    unread = found.unread(options)
    if unread:
        raise InvalidInput(
            f"messages of {found.name} written with {unread} cannot be read",
            where="sink URI",
            why="they do not have the types of their columns",
            fix="create a changefeed without it, into a new topic, and read that one",
        )


@contextmanager
def _about_the_source() -> Iterator[None]:
    """The code for the settings of a feed's sink parses the source too: make its errors name the source."""
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

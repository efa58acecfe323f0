"""Reads messages of one partition at a time from Kafka, into an `Arena`.

    NativeClient   through librdkafka's C functions: a list of messages costs a few calls and no object
    PlainClient    through confluent-kafka, which makes an object for each message: its twin

confluent-kafka brings librdkafka, and its extension module finds the functions. Only functions and structs of
the public `rdkafka.h` are used. Where they are not to be found, for example because librdkafka is linked
statically, `client_of` returns a PlainClient. An object for each message costs more than all other work of
reading it.

Neither blocks inside librdkafka for a message: `tidegate.sink.kafka.client` says why.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition, cimpl

from tidegate.codec.base import Headers
from tidegate.consumer.reading.arena import Arena
from tidegate.consumer.reading.message_kernels import (
    M_ERROR,
    M_OFFSET,
    SIZES,
    Z_KEYS,
    Z_VALUES,
    measure_messages,
)
from tidegate.kernel import address
from tidegate.sink.kafka.client import POLL_S, take

_CONSUMER: Final = 1
"""`RD_KAFKA_CONSUMER`."""
_NO_CLOSE: Final = 0x8
"""`RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE`: it is no member of a group, so there is nothing to leave."""
_TEXT_BYTES: Final = 512
_WORD: Final = ctypes.c_void_p
_FUNCTIONS: Final[Mapping[str, tuple[Any, tuple[Any, ...]]]] = {
    "conf_new": (_WORD, ()),
    "conf_set": (ctypes.c_int, (_WORD, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)),
    "conf_destroy": (None, (_WORD,)),
    "new": (_WORD, (ctypes.c_int, _WORD, ctypes.c_char_p, ctypes.c_size_t)),
    "destroy_flags": (None, (_WORD, ctypes.c_int)),
    "poll_set_consumer": (ctypes.c_int, (_WORD,)),
    "queue_get_consumer": (_WORD, (_WORD,)),
    "queue_destroy": (None, (_WORD,)),
    "topic_partition_list_new": (_WORD, (ctypes.c_int,)),
    "topic_partition_list_add": (_WORD, (_WORD, ctypes.c_char_p, ctypes.c_int32)),
    "topic_partition_list_set_offset": (
        ctypes.c_int,
        (_WORD, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64),
    ),
    "topic_partition_list_destroy": (None, (_WORD,)),
    "assign": (ctypes.c_int, (_WORD, _WORD)),
    "query_watermark_offsets": (
        ctypes.c_int,
        (_WORD, ctypes.c_char_p, ctypes.c_int32, _WORD, _WORD, ctypes.c_int),
    ),
    "consume_batch_queue": (ctypes.c_ssize_t, (_WORD, ctypes.c_int, _WORD, ctypes.c_size_t)),
    "message_errstr": (ctypes.c_char_p, (_WORD,)),
    "message_headers": (ctypes.c_int, (_WORD, _WORD)),
    "message_destroy": (None, (_WORD,)),
    "header_get_all": (ctypes.c_int, (_WORD, ctypes.c_size_t, _WORD, _WORD, _WORD)),
    "err2str": (ctypes.c_char_p, (ctypes.c_int,)),
}
"""The functions of `rdkafka.h`, without their prefix: what they return, and their arguments."""


class NoMessage(NamedTuple):
    """An entry that came instead of a message: the end of the partition, or an error."""

    error: KafkaError
    offset: int


class MessageClient(Protocol):
    """Reads one partition at a time. Calls come from one thread."""

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """Read this partition from `offset` on, and no other. Raises KafkaException."""

    def unassign(self) -> None:
        """Read nothing: what has been fetched ahead is dropped."""

    def oldest(self, topic: str, partition: int, timeout_s: float) -> int:
        """The oldest available offset of a partition. Raises KafkaException."""

    def take(self, arena: Arena, count: int, patience_s: float) -> Sequence[NoMessage]:
        """Append at most `count` messages, as soon as one has arrived, none after `patience_s`.

        Returns the entries that were no messages.
        """


def client_of(settings: Mapping[str, Any]) -> MessageClient:
    """A client with these settings of librdkafka. Raises KafkaException if librdkafka refuses them."""
    return NativeClient(settings) if functions() is not None else PlainClient(settings)


class PlainClient:
    """A `MessageClient` that gets Python objects."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._consumer = Consumer(dict(settings))

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """See `MessageClient`."""
        self._consumer.assign([TopicPartition(topic, partition, offset)])

    def unassign(self) -> None:
        """See `MessageClient`."""
        self._consumer.unassign()

    def oldest(self, topic: str, partition: int, timeout_s: float) -> int:
        """See `MessageClient`."""
        found, _ = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout_s)
        return int(found)

    def take(self, arena: Arena, count: int, patience_s: float) -> Sequence[NoMessage]:
        """See `MessageClient`."""
        found = take(self._consumer, count, patience_s)
        arena.add([one for one in found if one.error() is None])
        return [NoMessage(error, one.offset() or 0) for one in found if (error := one.error()) is not None]


class NativeClient:
    """A `MessageClient` without an object for each message."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        library = functions()
        assert library is not None, "`client_of` has found them"
        self._library = library
        self._client = _client(library, settings)
        # Then one queue brings messages, errors and ends of partitions, and one call empties it.
        library.poll_set_consumer(self._client)
        self._queue = library.queue_get_consumer(self._client)
        # At the end of the process too: librdkafka's threads must not outlive what they use.
        weakref.finalize(self, _close, library, self._client, self._queue, os.getpid())
        self._messages = np.zeros(0, np.int64)
        self._seen = np.zeros(0, np.int64)
        self._sizes = SIZES.record([0] * len(SIZES.fields))
        self._destroy = address_of(library.message_destroy)
        self._headers_of = address_of(library.message_headers)
        self._header = _WORD(), ctypes.c_char_p(), _WORD(), ctypes.c_size_t()
        """Where librdkafka writes the headers of a message, and the name, value and size of one of them."""
        self._header_places = tuple(map(ctypes.byref, self._header))

    def assign(self, topic: str, partition: int, offset: int) -> None:
        """See `MessageClient`."""
        name = topic.encode()
        places = self._library.topic_partition_list_new(1)
        try:
            self._library.topic_partition_list_add(places, name, partition)
            self._library.topic_partition_list_set_offset(places, name, partition, offset)
            self._check(self._library.assign(self._client, places))
        finally:
            self._library.topic_partition_list_destroy(places)

    def unassign(self) -> None:
        """See `MessageClient`."""
        self._check(self._library.assign(self._client, None))

    def oldest(self, topic: str, partition: int, timeout_s: float) -> int:
        """See `MessageClient`."""
        low, high = ctypes.c_int64(), ctypes.c_int64()
        ends = ctypes.byref(low), ctypes.byref(high)
        client, name = self._client, topic.encode()
        self._check(
            self._library.query_watermark_offsets(client, name, partition, *ends, int(timeout_s * 1000))
        )
        return low.value

    def take(self, arena: Arena, count: int, patience_s: float) -> Sequence[NoMessage]:
        """See `MessageClient`."""
        if count > len(self._messages):
            self._messages, self._seen = np.zeros(count, np.int64), np.zeros(count, np.int64)
        messages, deadline = address(self._messages), time.monotonic() + patience_s
        while True:
            # Without a wait inside: librdkafka's waits follow the wall clock, and a jump of it could last for
            # hours.
            found = self._library.consume_batch_queue(self._queue, 0, messages, count)
            if found > 0:
                return self._taken(arena, found)
            if time.monotonic() >= deadline:
                return ()
            time.sleep(POLL_S)

    def _taken(self, arena: Arena, count: int) -> Sequence[NoMessage]:
        """Append the messages of a list, and give the list back."""
        try:
            errors, headers = self._others(count)
            arena.reserve(count, int(self._sizes[Z_VALUES // 8]), int(self._sizes[Z_KEYS // 8]))
        except BaseException:
            # librdkafka waits at its end for each message that was not given back.
            for message in self._messages[:count].tolist():
                self._library.message_destroy(message)
            raise
        arena.take(count, address(self._messages), self._destroy, headers)
        return errors

    def _others(self, count: int) -> tuple[list[NoMessage], dict[int, Headers]]:
        """The entries of a list that are no messages, and the headers of those that have some. Writes the
        sizes of all.
        """
        messages, sizes = address(self._messages), address(self._sizes)
        seen = measure_messages(count, messages, self._headers_of, sizes, address(self._seen))
        errors: list[NoMessage] = []
        headers: dict[int, Headers] = {}
        for place in self._seen[:seen].tolist():
            message = int(self._messages[place])
            code = ctypes.c_int32.from_address(message + M_ERROR).value
            if code:
                text = (self._library.message_errstr(message) or b"").decode(errors="replace")
                offset = ctypes.c_int64.from_address(message + M_OFFSET).value
                errors.append(NoMessage(KafkaError(code, text), offset))
            else:
                # The arena gets no entry for an error, so later messages move up by the number of errors
                # before them.
                headers[place - len(errors)] = self._headers(message)
        return errors, headers

    def _headers(self, message: int) -> Headers:
        """The headers of a message that has some. It takes some 10 us, and our own topics have headers at
        marks and DDL only.
        """
        headers, name, value, size = self._header
        self._library.message_headers(message, self._header_places[0])
        found: list[tuple[str, Any]] = []
        while self._library.header_get_all(headers, len(found), *self._header_places[1:]) == 0:
            content = ctypes.string_at(value.value, size.value) if value.value is not None else None
            # Other programs may write any bytes as a name, which must not end the consumer.
            found.append(((name.value or b"").decode(errors="replace"), content))
        return found

    def _check(self, code: int) -> None:
        """Raise KafkaException for librdkafka's code of an error."""
        if code:
            text = self._library.err2str(code).decode()
            raise KafkaException(KafkaError(code, text))


class Functions:
    """librdkafka's functions, by their names without the prefix."""

    def __init__(self, library: Any) -> None:
        """AttributeError if the library lacks one."""
        for name, (returned, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"rd_kafka_{name}")
            function.restype, function.argtypes = returned, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@cache
def functions() -> Functions | None:
    """The functions of the librdkafka that confluent-kafka uses; None if they cannot be found."""
    try:
        # A handle of the extension module finds the symbols of the libraries that it is linked to.
        return Functions(ctypes.CDLL(cimpl.__file__))
    except (OSError, AttributeError):
        return None


def address_of(function: Any) -> int:
    """The address of a C function."""
    found = ctypes.cast(function, _WORD).value
    assert found is not None
    return found


def _client(library: Functions, settings: Mapping[str, Any]) -> int:
    """A new client with these settings. KafkaException if librdkafka refuses one of them."""
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    conf = library.conf_new()
    for name, value in settings.items():
        if callable(value) or value is None:
            # The only one is `error_cb`, which ignores that brokers cannot be reached: so does this client.
            continue
        given = str(value).lower() if isinstance(value, bool) else str(value)
        if library.conf_set(conf, name.encode(), given.encode(), text, _TEXT_BYTES):
            library.conf_destroy(conf)
            raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))
    client: int | None = library.new(_CONSUMER, conf, text, _TEXT_BYTES)
    if client is None:
        library.conf_destroy(conf)
        raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))
    return client


def _close(library: Functions, client: int, queue: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork has no threads of librdkafka, and would wait for them for ever
    library.queue_destroy(queue)
    library.destroy_flags(client, _NO_CLOSE)

"""Both clients take the same messages; the memory of messages is used again, and none is lost or kept."""

from __future__ import annotations

import ctypes
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from tests.consumer.mock_broker import mock_broker
from tidegate.codec.base import Batch
from tidegate.consumer.reading import arena as arenas
from tidegate.consumer.reading.arena import Arena
from tidegate.consumer.reading.message_client import (
    MessageClient,
    NativeClient,
    NoMessage,
    PlainClient,
    address_of,
    client_of,
    functions,
)
from tidegate.consumer.reading.message_kernels import MESSAGE, SIZES, measure_messages
from tidegate.kernel import address

Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
PATIENCE_S = 120.0
BOTH = [NativeClient, PlainClient]
SOME: list[Sent] = [
    (None, b"first", []),
    (b"key", b"", []),
    (b"", b"marked", [("tidegate-epoch", b"1"), ("empty", b""), ("none", None)]),
    (b"key", None, []),
    (b"k" * 100, b"v" * 3000, []),
    (None, b"last", [("again", b"\0\xff")]),
]


def settings_of(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "test",
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "log_level": 2,
        "error_cb": lambda error: None,
    }


def publish(bootstrap: str, sent: Sequence[Sent]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for key, value, headers in sent:
        producer.produce("t", value, key, 0, headers=headers or None)
    assert producer.flush(PATIENCE_S) == 0


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    with mock_broker("t") as bootstrap:
        publish(bootstrap, SOME)
        yield bootstrap


def read(one: MessageClient, arena: Arena, offset: int, count: int = 1000) -> list[NoMessage]:
    """Read from an offset to the partition's end, or to an error."""
    one.assign("t", 0, offset)
    deadline, others = time.monotonic() + PATIENCE_S, list[NoMessage]()
    while not others:
        assert time.monotonic() < deadline
        others += one.take(arena, count, 0.05)
    one.unassign()
    return others


def shown(batch: Batch) -> list[tuple[Any, ...]]:
    assert isinstance(batch.keys, pa.Array)
    assert isinstance(batch.values, pa.Array)
    batch.keys.validate(full=True)
    batch.values.validate(full=True)
    headers = batch.headers or [None] * len(batch)
    columns = batch.keys.to_pylist(), batch.values.to_pylist(), list(batch.offsets)
    return list(zip(*columns, [list(one or ()) for one in headers], strict=True))


def test_the_functions_of_librdkafka_are_found_in_this_environment() -> None:
    assert isinstance(client_of(settings_of("127.0.0.1:1")), NativeClient)


@pytest.mark.parametrize("kind", BOTH)
def test_messages_come_whole_with_what_follows_them(kind: Callable[..., MessageClient], broker: str) -> None:
    one, arena = kind(settings_of(broker)), Arena()
    (end,) = read(one, arena, 0)
    assert shown(arena.batch()) == [(*SOME[at][:2], at, SOME[at][2]) for at in range(len(SOME))]
    assert (end.error.code(), end.offset) == (KafkaError._PARTITION_EOF, len(SOME))
    assert arena.next_offset == len(SOME)
    assert arena.size == sum(
        arenas.MESSAGE_BYTES + len(value or b"") + len(key or b"") for key, value, _ in SOME
    )
    assert one.oldest("t", 0, PATIENCE_S) == 0


@pytest.mark.parametrize("kind", BOTH)
def test_a_list_at_a_time_from_the_middle_gives_the_same(
    kind: Callable[..., MessageClient], broker: str
) -> None:
    one, arena = kind(settings_of(broker)), Arena()
    read(one, arena, 2, count=1)
    assert shown(arena.batch()) == [(*SOME[at][:2], at, SOME[at][2]) for at in range(2, len(SOME))]


@pytest.mark.parametrize("kind", BOTH)
def test_an_offset_that_is_not_there_any_more_is_an_error(
    kind: Callable[..., MessageClient], broker: str
) -> None:
    arena = Arena()
    (failed,) = read(kind(settings_of(broker)), arena, 1000)
    assert failed.error.code() == KafkaError._AUTO_OFFSET_RESET
    assert "Offset out of range" in str(failed.error)
    assert (arena.count, len(arena.batch())) == (0, 0)


@pytest.mark.parametrize("kind", BOTH)
def test_nothing_comes_from_a_partition_that_is_not_assigned(
    kind: Callable[..., MessageClient], broker: str
) -> None:
    one, arena = kind(settings_of(broker)), Arena()
    read(one, arena, 0)
    arena.clear()
    one.assign("t", 0, 0)
    one.unassign()
    assert not one.take(arena, 100, 0.1)
    assert arena.count == 0


@pytest.mark.parametrize("kind", BOTH)
def test_a_setting_that_librdkafka_refuses_is_an_error(kind: Callable[..., MessageClient]) -> None:
    with pytest.raises(KafkaException, match=r"session\.timeout\.ms"):
        kind(settings_of("127.0.0.1:1") | {"session.timeout.ms": "long"})


def test_a_process_with_a_client_ends_without_a_crash(broker: str) -> None:
    code = (
        "from tests.consumer.test_message_client import *\n"
        f"one, arena = NativeClient(settings_of('{broker}')), Arena()\n"
        "read(one, arena, 0)\nprint(arena.count)\none.assign('t', 0, 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.strip()) == (0, str(len(SOME))), done.stderr


def test_a_list_that_cannot_be_kept_is_given_back(broker: str) -> None:
    """librdkafka waits at its end for each message that it has given away."""
    code = (
        "from tests.consumer.test_message_client import *\n"
        "class Full(Arena):\n"
        "    def reserve(self, count, values, keys):\n"
        "        raise MemoryError(count)\n"
        f"one = NativeClient(settings_of('{broker}'))\n"
        "try:\n    read(one, Full(), 0)\nexcept MemoryError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.strip().isdigit()) == (0, True), done.stderr


def test_a_header_name_that_is_no_text_is_no_error() -> None:
    with mock_broker("t") as bootstrap:
        publish(bootstrap, [(b"key", b"value", [("h\u00e9", b"1")])])
        one, arena = NativeClient(settings_of(bootstrap)), Arena()
        # The client of this test can write text only, so the bytes are changed on their way.
        real = one._library.header_get_all

        def damaged(headers: Any, place: int, name: Any, value: Any, size: Any) -> int:
            code: int = real(headers, place, name, value, size)
            one._header[1].value = b"h\xe9"
            return code

        one._library.header_get_all = damaged
        try:
            read(one, arena, 0)
        finally:
            one._library.header_get_all = real
        assert shown(arena.batch()) == [(b"key", b"value", 0, [("h\ufffd", b"1")])]


class List:
    """A list of messages as librdkafka would give it, with functions that count what is given back."""

    def __init__(self, sent: Sequence[Sent | None], first: int = 0) -> None:
        """None: an error."""
        self.given_back: list[int] = []
        self._alive: list[Any] = []
        records = np.zeros((max(len(sent), 1), MESSAGE.size // 8), np.int64)
        for at, one in enumerate(sent):
            key, value, headers = one or (None, None, [])
            records[at, 0] = 0 if one is not None else -191 & 0xFFFFFFFF
            records[at, 3:7] = *self._bytes(value), *self._bytes(key)
            records[at, 7:] = first + at, bool(headers)
        self.addresses = np.array([address(record) for record in records[: len(sent)]], np.int64)
        self._records = records
        self.destroy = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.given_back.append)
        self.headers_of = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(
            lambda message, out: 0 if ctypes.c_int64.from_address(message + 64).value else -156
        )

    def _bytes(self, content: bytes | None) -> tuple[int, int]:
        if content is None:
            return 0, 0
        self._alive.append(np.frombuffer(content + b"\0", np.uint8))
        return address(self._alive[-1]), len(content)

    def into(self, arena: Arena) -> list[int]:
        """Append the messages to an arena. Returns the places of errors and of messages with headers."""
        count, at = len(self.addresses), address(self.addresses)
        sizes, seen = SIZES.record([0, 0, 0]), np.zeros(count + 1, np.int64)
        found = measure_messages(count, at, address_of(self.headers_of), address(sizes), address(seen))
        arena.reserve(count, int(sizes[0]), int(sizes[1]))
        arena.take(count, at, address_of(self.destroy), {})
        return seen[:found].tolist()


class Plain:
    """A message as confluent-kafka would give it."""

    def __init__(self, sent: Sent, offset: int) -> None:
        self.key, self.value, self.headers = (lambda: sent[0]), (lambda: sent[1]), (lambda: None)
        self.offset = lambda: offset


def random_cell(rng: random.Random) -> bytes | None:
    kind = rng.randrange(5)
    return None if kind == 0 else b"" if kind == 1 else rng.randbytes(rng.choice([1, 7, 40, 700]))


def test_the_kernels_take_what_their_twin_takes_and_give_all_back() -> None:
    rng = random.Random(7)
    for _ in range(30):
        mine, twin = Arena(), Arena()
        for first in (0, 10_000):
            sent: list[Sent | None] = [
                (random_cell(rng), random_cell(rng), [("h", b"")] if rng.random() < 0.1 else [])
                if rng.random() < 0.9
                else None
                for _ in range(rng.choice([0, 1, 300, 5000]))
            ]
            made = List(sent, first)
            seen = made.into(mine)
            assert seen == [at for at, one in enumerate(sent) if one is None or one[2]]
            assert made.given_back == made.addresses.tolist()
            twin.add([Plain(one, first + at) for at, one in enumerate(sent) if one is not None])  # type: ignore[misc]
        assert shown(mine.batch()) == shown(twin.batch())
        assert (mine.count, mine.size) == (twin.count, twin.size)


def test_the_memory_of_messages_is_used_again() -> None:
    arena = Arena()
    List([(b"k" * 100, b"v" * 3000, [])] * 5000).into(arena)
    first = arena.batch()
    before = [buffer.address for column in (first.keys, first.values) for buffer in column.buffers()[1:]]
    arena.clear()
    List([(b"K" * 100, b"V" * 3000, [])] * 5000).into(arena)
    second = arena.batch()
    assert [
        buffer.address for column in (second.keys, second.values) for buffer in column.buffers()[1:]
    ] == before
    assert second.values[4999].as_py() == b"V" * 3000


@pytest.mark.parametrize("sent", [(b"k" * (5 << 20), None, []), (None, b"", [])])
def test_memory_of_many_or_large_keys_is_not_kept(sent: Sent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "KEPT_BYTES", 4 << 20)
    arena = Arena()
    count = 1 if sent[0] else 200_000
    for first in range(0, count, 50_000):
        List([sent] * min(50_000, count - first), first).into(arena)
    assert arena.size >= count * arenas.MESSAGE_BYTES + len(sent[0] or b"")
    arena.clear()
    assert len(arena._offsets) == 1 << 12


def test_memory_of_giant_messages_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "KEPT_BYTES", 4 << 20)
    arena = Arena()
    List([(None, b"v" * (5 << 20), [])]).into(arena)
    whole = arena.batch()
    arena.clear()
    List([(None, b"v", [])]).into(arena)
    small = arena.batch()
    assert small.values.buffers()[2].size < 4 << 20
    assert whole.values[0].as_py() == b"v" * (5 << 20), "the batch keeps its own memory then"


def test_without_librdkafkas_functions_the_plain_client_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    functions.cache_clear()
    monkeypatch.setattr("confluent_kafka.cimpl.__file__", sys.executable + "-that-is-not-there")
    assert functions() is None
    assert isinstance(client_of(settings_of("127.0.0.1:1")), PlainClient)
    functions.cache_clear()

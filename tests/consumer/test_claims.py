"""Rows in the storage of claim-check, read in the place of the messages that name them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import numpy as np
import pytest

from tests.codec.test_fitting import sizes
from tests.consumer.topics import publish
from tests.contracts.codec_rows import golden_rows
from tidegate.claim_check import ClaimStorage
from tidegate.codec import registry
from tidegate.codec.base import Batch, Decoded, describe
from tidegate.codec.decode import decoder
from tidegate.codec.decoding.opening import opening
from tidegate.codec.formats.compression import NONE
from tidegate.codec.large import CLAIM_CHECK, HANDLE_KEY_ONLY, location_name
from tidegate.consumer.engine.fetched import Fetched, Range
from tidegate.consumer.reading.claims import ClaimReader
from tidegate.consumer.reading.fetch import _drop, _staged, fetch
from tidegate.consumer.reading.source import Topic
from tidegate.errors import Retryable, TidegateError
from tidegate.model.row import RowChange

OPEN = registry.codec_options({"protocol": "open-protocol"})
CANAL = registry.codec_options({"protocol": "canal-json", "enable-tidb-extension": True})
SIMPLE = registry.codec_options({"protocol": "simple"})
RAW = registry.codec_options({"protocol": "simple", "claim-check-raw-value": True})
every_protocol = pytest.mark.parametrize(
    "options", [OPEN, CANAL, SIMPLE, RAW], ids=["open", "canal", "simple", "simple, raw values"]
)


class Memory:
    """A storage in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self._count = 0

    def location(self) -> str:
        self._count += 1
        return f"s3://b/p/{self._count:04}-0000-0000.json"

    def store(self, location: str, content: bytes) -> None:
        self.objects[location_name(location)] = content

    def read(self, location: str) -> bytes:
        try:
            return self.objects[location_name(location)]
        except KeyError:
            raise Retryable("it is not there") from None


def chosen(options: Any, storage: Memory, way: str = CLAIM_CHECK, compression: str = "none") -> Any:
    """Options under which some of these rows do not fit."""
    packed = replace(options, large_message_handle_compression=compression)
    limit = int(np.median(sizes(some_rows(), packed)))
    return replace(packed, large_message_handle_option=way, max_message_bytes=limit, claims=storage)


@functools.cache
def some_rows() -> list[RowChange]:
    return next(rows for rows in golden_rows() if rows[0].table.schema == "r_types_ints_signed")[:30]


def batch_of(rows: list[RowChange], options: Any) -> Batch:
    """Their messages, behind what tells their table, if the protocol has it."""
    sent = registry.encoder(options).encode_rows(rows, 1_795_246_228_000)
    definitions = registry.codec_of(options).definitions
    stated = [] if definitions is None else [definitions.encode(rows[0].table, options, 0)]
    return Batch(
        [m.key for m in stated + sent], [m.value for m in stated + sent], range(len(stated) + len(sent))
    )


def read(batch: Batch, options: Any, storage: Memory) -> Decoded:
    """As `TopicDecoder` does."""
    large = registry.codec_of(options).large
    assert large is not None
    inner = decoder(replace(options, large_message_handle_compression=NONE))
    outer = opening(inner, options, large)
    return ClaimReader(storage, inner, options, large).resolve(outer.decode(batch))


def shown(decoded: Decoded) -> list[dict[str, Any]]:
    return [{name: value for name, value in one.items() if name != "offset"} for one in describe(decoded)]


@every_protocol
@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_claimed_rows_come_as_if_they_had_fitted(options: Any, compression: str) -> None:
    storage, rows = Memory(), some_rows()
    small = chosen(options, storage, compression=compression)
    decoded = read(batch_of(rows, small), small, storage)
    assert 0 < len(storage.objects) < len(rows)
    assert not decoded.bad
    assert shown(decoded) == shown(decoder(options).decode(batch_of(rows, options)))


class Counted(Memory):
    """A storage that counts what is read."""

    reads = 0

    def read(self, location: str) -> bytes:
        self.reads += 1
        return super().read(location)


@every_protocol
def test_claimed_rows_are_read_in_pieces_and_nothing_is_lost(options: Any) -> None:
    storage, rows = Counted(), some_rows()
    small = chosen(options, storage)
    inner = decoder(small)
    decoded = inner.decode(batch_of(rows, small))
    large = registry.codec_of(small).large
    assert large is not None
    whole = ClaimReader(storage, inner, small, large)
    expected, claimed = describe(whole.resolve(decoded)), storage.reads
    assert claimed > 5
    assert len(list(whole.pieces(decoded))) == 1
    for most in (1, 400):
        storage.reads = 0
        reader = ClaimReader(storage, inner, small, large, most=most)
        pieces, reads = list[Decoded](), list[int]()
        for piece in reader.pieces(decoded):
            pieces.append(piece)
            reads.append(storage.reads)
        # A piece is there before more is read than the one row that did not fit into it.
        steps = np.diff(reads, prepend=1)[:-1]
        assert steps.max() == 1 if most == 1 else 1 < steps.max() < claimed - 1
        assert storage.reads == claimed
        assert [one for piece in pieces for one in describe(piece)] == expected


def test_a_batch_of_rows_some_of_which_are_claimed_keeps_their_order() -> None:
    """TiCDC may put rows that fit behind a claimed one, into its message."""
    storage, rows = Memory(), some_rows()
    small = chosen(OPEN, storage)
    batch = batch_of(rows, replace(small, max_batch_size=1))
    keys = [key or b"" for key in batch.keys]
    joined = keys[0] + b"".join(key[8:] for key in keys[1:])
    whole = Batch([joined], [b"".join(value or b"" for value in batch.values)], [7])
    decoded = read(whole, small, storage)
    assert not decoded.bad
    assert shown(decoded) == shown(decoder(OPEN).decode(batch_of(rows, OPEN)))
    assert {int(offset) for table in decoded.rows for offset in table.offset} == {7}


def test_a_message_that_names_too_many_rows_is_quarantined() -> None:
    """The limit is the bytes that are read at a time."""
    storage, rows = Counted(), some_rows()
    small = replace(chosen(OPEN, storage), max_batch_size=1)
    batch = batch_of(rows, small)
    keys = [key or b"" for key in batch.keys]
    joined = keys[0] + b"".join(key[8:] for key in keys[1:])
    large, inner = registry.codec_of(small).large, decoder(small)
    assert large is not None
    decoded = inner.decode(Batch([joined], [b"".join(value or b"" for value in batch.values)], [7]))
    (bad,) = ClaimReader(storage, inner, small, large, most=1).resolve(decoded).bad
    assert "its rows have more than 1 bytes together" in bad.why
    assert bad.reduced_ts is not None
    assert storage.reads <= 1


class Pieces:
    """Gives rows in pieces, and then fails, or ends."""

    def __init__(self, rows: Batch, outage: TidegateError | None) -> None:
        self._rows, self._outage = rows, outage

    def pieces(self, batch: Batch) -> Iterator[Decoded]:
        yield from (decoder(CANAL).decode(self._rows) for _ in range(3))
        if self._outage is not None:
            raise self._outage

    def opened(self, value: bytes | None) -> bytes | None:
        return value


def test_pieces_get_files_of_their_own_and_a_failed_piece_leaves_none(
    tmp_path: Path,
) -> None:
    topic, rows = Topic("kafka://a:1/t?protocol=canal-json&enable-tidb-extension=true"), some_rows()
    batch, none = batch_of(rows, CANAL), Fetched(0, 30, 30)
    found = _staged(topic, cast(Any, Pieces(batch, None)), batch, none, tmp_path)
    assert len({segment.file for segment in found.segments}) == 3
    assert sum(segment.rows for segment in found.segments) == 3 * len(rows)
    assert all(Path(segment.file).exists() for segment in found.segments)
    _drop(found)
    with pytest.raises(Retryable):
        _staged(topic, cast(Any, Pieces(batch, Retryable("not there"))), batch, none, tmp_path)
    assert list(tmp_path.iterdir()) == []


@every_protocol
def test_an_object_that_is_not_there_is_waited_for(options: Any) -> None:
    storage = Memory()
    small = chosen(options, storage)
    batch = batch_of(some_rows(), small)
    storage.objects.popitem()
    with pytest.raises(Retryable):
        read(batch, small, storage)


@every_protocol
def test_an_object_that_is_another_row_or_none_is_not_taken(options: Any) -> None:
    storage = Memory()
    small = chosen(options, storage)
    batch = batch_of(some_rows(), small)
    first, second = list(storage.objects)[:2]
    for wrong in (storage.objects[second], b"", b"{}", b'{"key":null,"value":"e30="}'):
        held = storage.objects[first]
        storage.objects[first] = wrong
        with pytest.raises(Retryable, match="not the row that its message names"):
            read(batch, small, storage)
        storage.objects[first] = held
    assert not read(batch, small, storage).bad


@every_protocol
def test_a_row_of_which_only_the_key_was_sent_is_named_as_before(options: Any) -> None:
    storage = Memory()
    small = chosen(options, storage, HANDLE_KEY_ONLY)
    decoded = read(batch_of(some_rows(), small), small, storage)
    assert decoded.bad
    assert all(bad.reduced_ts is not None for bad in decoded.bad)


@pytest.mark.integration
def test_a_range_with_an_object_that_is_not_there_is_read_again(
    kafka: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    place, name, rows = tmp_path / "claims", new_topic(1), some_rows()
    options = replace(chosen(CANAL, Memory(), compression="snappy"), claims=ClaimStorage(str(place)))
    sent = registry.encoder(options).encode_rows(rows, 1_795_246_228_000)
    publish(kafka, name, [(0, message) for message in sent])
    topic = Topic(
        f"kafka://{kafka}/{name}?protocol=canal-json&enable-tidb-extension=true"
        f"&large-message-handle-compression=snappy&claim-check-storage-uri={quote(str(place), safe='')}"
    )
    wanted = Range(0, 0, len(sent))
    taken = next(place.iterdir())
    taken.rename(tmp_path / taken.name)
    fetched = fetch(topic, wanted, tmp_path)
    assert fetched.outage is not None
    assert taken.name in fetched.outage[1]
    assert (fetched.next_offset, fetched.segments, fetched.bad) == (0, (), ())
    (tmp_path / taken.name).rename(taken)
    fetched = fetch(topic, wanted, tmp_path)
    assert (fetched.outage, fetched.next_offset, fetched.bad, fetched.unmarked) == (
        None,
        len(sent),
        (),
        False,
    )
    assert sum(segment.rows for segment in fetched.segments) == len(rows)

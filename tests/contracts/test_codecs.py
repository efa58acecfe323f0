"""The contract of protocols, for every one that the registry has, and for one that only this test adds.

compiled = plain        the kernels write and read what the plain twins do, whatever the bytes
decode of encode        gives the rows back, up to the losses that the entry publishes
hostile bytes           become bad messages, and spoil no other one
marks and DDL           come back; where the entry says there are none there are none
limits                  no message is larger than max-message-bytes, no row is dropped for it
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.codec import golden
from tests.codec.cells import block_of
from tests.contracts import toy_protocol
from tests.contracts.any_table import any_rows
from tests.contracts.codec_rows import expected_of, golden_rows, messages_of, strange_rows, strange_table
from tests.contracts.maxwell_writer import MaxwellWriter
from tidegate.codec import registry
from tidegate.codec.base import Batch, CodecOptions, Decoded, Decoder, describe
from tidegate.codec.blocks import encode_block, plan_of
from tidegate.codec.decode import decoder
from tidegate.codec.decoding.opening import opened
from tidegate.codec.entry import DdlTo, Loss, ReadCodec, RowCodec
from tidegate.codec.formats import ddl_header
from tidegate.codec.kernels import avro_kernels
from tidegate.codec.plan import EncodePlan
from tidegate.codec.readback import ReadBack
from tidegate.errors import InvalidInput
from tidegate.model.cells import DELETE, INSERT, RowBlock
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import Kind, TableSchema
from tidegate.model.timestamp import compose, physical_ms
from tidegate.tidb.table_info import table_schema

BUILD_MS = 1_795_246_227_886
WRITERS: dict[str, Any] = {"maxwell": MaxwellWriter}
"""How what is read only is written, by name."""
Pairs = list[tuple[bytes | None, bytes | None]]


@dataclass(frozen=True)
class Case:
    """One protocol under one set of options."""

    codec: ReadCodec
    options: Any

    @property
    def losses(self) -> frozenset[Loss]:
        return self.codec.losses(self.options)

    @property
    def is_written(self) -> bool:
        return isinstance(self.codec, RowCodec)

    def writer(self) -> Any:
        """The plain encoder: of what is read only, one that just the tests have."""
        made = self.codec.encoder if isinstance(self.codec, RowCodec) else WRITERS[self.codec.name]
        return made(self.options)

    def encode(self, rows: list[RowChange]) -> Pairs:
        """Their messages; those of `sendable` rows."""
        return [(m.key, m.value) for m in self.writer().encode_rows(rows, BUILD_MS)]

    @property
    def unread(self) -> str:
        """Why their messages cannot be read back; empty: they can."""
        return self.codec.unread(self.options)

    def sendable(self, row: RowChange) -> bool:
        """Whether these options can say this row: a delete reduced to the key needs a key."""
        reduced = getattr(self.options, "delete_only_output_handle_key_columns", False)
        if row.is_delete and Loss.DELETED_CELLS in self.losses and DELETE in self.plan(row).refused:
            return False
        return not (row.is_delete and reduced and not row.table.handle_key)

    def plan(self, row: RowChange) -> EncodePlan:
        assert isinstance(self.codec, RowCodec)
        return self.codec.plan(row.table, self.options, 13)

    def plain(self, *tables: TableSchema) -> Decoder:
        """A plain decoder that knows these tables."""
        return self._taught(self.codec.decoder(self.options), tables)

    def fast(self, *tables: TableSchema) -> Decoder:
        """The compiled one, likewise."""
        return self._taught(decoder(self.options), tables)

    def plainly(self, pairs: Pairs, table: TableSchema) -> Decoded:
        return self.plain(table).decode(batch_of(pairs))

    def opened(self, value: bytes | None) -> bytes | None:
        """A message's value as it is without compression."""
        if value is None or self.codec.large is None:
            return value
        kind = self.options.large_message_handle_compression
        return opened(value, kind, framed=self.codec.large.framed)

    def _taught(self, reader: Decoder, tables: Sequence[TableSchema]) -> Decoder:
        """A protocol whose rows do not tell the tables' columns has messages that do."""
        if self.codec.definitions is not None and tables:
            messages = [self.codec.definitions.encode(table, self.options, BUILD_MS) for table in tables]
            found = reader.decode(batch_of([(message.key, message.value) for message in messages]))
            assert found == Decoded()
        return reader


def variants(codec: ReadCodec) -> Iterator[tuple[str, CodecOptions]]:
    """The usual options, each switch turned, all of them, and small messages; in each flavour what it has."""
    usual = codec.options()
    # How the storage of claim-check holds a message makes no difference to a message: test_fitting.py.
    every = {
        f.name: not f.default
        for f in fields(codec.options)
        if isinstance(f.default, bool) and f.name != "claim_check_raw_value"
    }
    of_new = [f.name for f in fields(codec.options) if "flavour" in f.metadata]
    switches = {name: turned for name, turned in every.items() if name not in of_new}
    yield "usual", usual
    for name, turned in switches.items():
        yield f"{name}={turned}", replace(usual, **{name: turned})
    if any(f.name == "large_message_handle_compression" for f in fields(codec.options)):
        compressing: dict[str, str] = {"large_message_handle_compression": "lz4"}
        yield "compressed", replace(usual, **compressing)
    if len(switches) > 1:
        yield "all switches turned", replace(usual, **switches)
    for f in fields(codec.options):
        for word in f.metadata.get("words", ())[1:]:
            yield f"{f.name}={word}", replace(usual, **{f.name: word})
    for flavour in codec.flavours[1:] if isinstance(codec, RowCodec) else ():
        yield f"{flavour} flavour", replace(usual, flavour=flavour)
        if hasattr(usual, "only_output_updated_columns"):
            yield (
                f"{flavour} flavour, changes",
                replace(usual, flavour=flavour, only_output_updated_columns=True),
            )
        if hasattr(usual, "encoding_format"):
            yield f"{flavour} flavour, in Avro", replace(usual, flavour=flavour, encoding_format="avro")
        if codec.schemas is not None:
            yield f"{flavour} flavour, classic's switches", replace(usual, flavour=flavour, **switches)
        for name in of_new:
            alone = replace(usual, flavour=flavour, **{name: True})
            yield f"{flavour} flavour, {name}", alone
            yield f"{flavour} flavour, {name}, extended", replace(alone, enable_tidb_extension=True)
        if of_new:
            yield f"{flavour} flavour, all switches turned", replace(usual, flavour=flavour, **every)
    small: dict[str, int] = {"max_message_bytes": 9000}
    if any(f.name == "max_batch_size" for f in fields(codec.options)):
        yield "a row a message", replace(usual, max_batch_size=1)
        small["max_batch_size"] = 100
    yield "small messages", replace(usual, **small)


CODECS = [c for c in (*registry.CODECS.values(), toy_protocol.CODEC) if isinstance(c, ReadCodec)]
CASES = {
    f"{codec.name}, {name}": Case(codec, options) for codec in CODECS for name, options in variants(codec)
}
USUAL = {codec.name: Case(codec, codec.options()) for codec in CODECS}
WRITTEN = {name: case for name, case in CASES.items() if case.is_written}
USUAL_WRITTEN = {name: case for name, case in USUAL.items() if case.is_written}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
every_written_case = pytest.mark.parametrize("case", WRITTEN.values(), ids=WRITTEN.keys())
every_codec = pytest.mark.parametrize("case", USUAL.values(), ids=USUAL.keys())
every_written_codec = pytest.mark.parametrize("case", USUAL_WRITTEN.values(), ids=USUAL_WRITTEN.keys())
any_case = st.sampled_from(list(CASES.values()))
any_codec = st.sampled_from(list(USUAL.values()))


@pytest.fixture(autouse=True, scope="module")
def toy() -> Iterator[None]:
    """To add a protocol is to add its entry to the registry."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.CODECS, toy_protocol.CODEC.name, toy_protocol.CODEC)
        yield


def batch_of(pairs: Pairs, offsets: Any = None) -> Batch:
    keys, values = zip(*pairs, strict=True)
    return Batch(keys, values, range(len(pairs)) if offsets is None else offsets)


# --- encoding: compiled = plain


def check(
    rows: list[RowChange],
    options: CodecOptions,
    partition: np.ndarray | None = None,
    block: RowBlock | None = None,
) -> None:
    """Compare the compiled encoder with the plain one, partition by partition. `block`: of the rows."""
    block = block_of(rows) if block is None else block
    if partition is None:
        partition = np.zeros(len(rows), dtype=np.int32)
    plain = registry.encoder(options)
    try:
        expected = {
            int(p): plain.encode_rows([rows[i] for i in np.flatnonzero(partition == p)], BUILD_MS)
            for p in np.unique(partition)
        }
    except InvalidInput as error:
        with pytest.raises(InvalidInput, match=error.what):
            encode_block(block, partition, options, BUILD_MS)
        return
    encoded = encode_block(block, partition, options, BUILD_MS)
    assert int(encoded.rows.sum()) == len(rows)
    plan = plan_of(rows[0].table, options, BUILD_MS)
    if not plan.framed:
        lengths = np.maximum(encoded.key_length, 0) + encoded.value_length
        assert all(length <= row_bound(plan, block, i) for i, length in enumerate(lengths.tolist()))
    found: dict[int, list[Message]] = {}
    for number, message in messages_of(encoded):
        found.setdefault(number, []).append(message)
        assert len(message.key or b"") + len(message.value or b"") + 36 <= options.max_message_bytes
    assert found == expected


def row_bound(plan: EncodePlan, block: RowBlock, row: int) -> int:
    """The most bytes that the kernel expects of a row: beyond it, it would write past its buffer."""
    op, bound = int(block.op[row]), int(plan.fixed[block.op[row]])
    if plan.row_keys and block.row_keys is not None:
        bound += 2 * int(block.row_keys[row, 1])
    for cell, factor in plan.variables[1:].reshape(-1, 2).tolist():
        for image in (block.new,) * (op != DELETE) + (block.old,) * (op != INSERT):
            bound += factor * max(int(image.sizes[row, cell]), 0)
    return bound


@functools.cache
def golden_blocks() -> list[RowBlock]:
    """`golden_rows` as blocks, which nobody changes."""
    return [block_of(rows) for rows in golden_rows()]


@every_written_case
def test_golden_rows_give_the_same_bytes_compiled_and_plain(case: Case) -> None:
    rng = np.random.default_rng(7)
    for rows, block in zip(golden_rows(), golden_blocks(), strict=True):
        check(rows, case.options, rng.integers(0, 3, len(rows)).astype(np.int32), block)


def read_back(block: RowBlock, case: Case, partition: np.ndarray) -> None:
    """Check that the protocol's own decoder returns the rows that were given to the encoder."""
    try:
        encoded = encode_block(block, partition, case.options, BUILD_MS)
    except InvalidInput:  # no message can say it
        return
    assert ReadBack(case.options).compare(block, encoded, partition) == []


@every_written_case
def test_golden_rows_are_read_back_as_they_were(case: Case) -> None:
    if registry.unverified(case.codec, case.options):
        with pytest.raises(InvalidInput, match="cannot be read back"):
            ReadBack(case.options)
        return
    # Under the usual options all tables, under each of the others every eighth.
    rng, number = np.random.default_rng(8), list(WRITTEN.values()).index(case)
    tables = list(zip(golden_rows(), golden_blocks(), strict=True))
    for rows, block in tables if case == USUAL[case.codec.name] else tables[number % 8 :: 8]:
        some = [row for row in rows if case.sendable(row)]
        if some:
            sent = block if len(some) == len(rows) else block_of(some)
            read_back(sent, case, rng.integers(0, 3, len(some)).astype(np.int32))


@every_written_codec
@pytest.mark.parametrize(
    ("zone", "config"),
    [("Asia/Shanghai", "open_tz_shanghai"), ("America/New_York", "canaljson_tz_newyork")],
)
def test_timestamps_are_moved_to_the_feeds_zone(case: Case, zone: str, config: str) -> None:
    recorded, name = golden.case("types_timestamps"), "types_timestamps"
    seqs = [r["seq"] for r in golden.lines(f"messages/{config}") if r.get("case") == name and "seq" in r]
    zoned = replace(case.options, time_zone=zone)
    local = [recorded.row(seq, zone) for seq in seqs]
    rows = [recorded.row(seq) for seq in seqs]
    plain = registry.encoder(case.options if case.codec.utc else zoned)
    expected = plain.encode_rows(rows if case.codec.utc else local, BUILD_MS)
    block = block_of(rows)
    encoded = encode_block(block, np.zeros(len(seqs), dtype=np.int32), zoned, BUILD_MS)
    assert [message for _, message in messages_of(encoded)] == expected


@every_written_codec
def test_a_buffer_that_is_too_small_is_grown(case: Case) -> None:
    rows = next(g for g in golden_rows() if g[0].table.schema == "r_types_chars_utf8mb4")
    evil = [
        replace(row, old=None, new=tuple(b"<" * 50 if isinstance(cell, bytes) else cell for cell in row.new))
        for row in rows
        if row.new is not None
    ] * 50
    check(evil, case.options)


@every_written_codec
def test_a_key_of_text_is_counted_with_its_escapes(case: Case) -> None:
    cols = [
        {"id": i + 1, "name": {"O": name}, "offset": i, "state": 5,
         "type": {"Tp": 15, "Flag": flag, "Flen": 9999, "Decimal": 0, "Charset": "utf8mb4", "Elems": None}}
        for i, (name, flag) in enumerate([("k", 3), ("v", 0)])
    ]  # fmt: skip
    parts = {"idx_cols": [{"name": {"O": "k"}, "offset": 0, "length": -1}], "state": 5}
    index = {"id": 1, "idx_name": {"O": "PRIMARY"}, "is_unique": True, "is_primary": True, **parts}
    table = table_schema("s", {"id": 1, "name": {"O": "t"}, "cols": cols, "index_info": [index]}, 1)
    image: tuple[Value, ...] = (b"\x01" * 5000, None)
    check(
        [RowChange(table, 1, 1, 1, 0, None, image), RowChange(table, 1, 1, 1, 0, image, None)], case.options
    )


@every_written_codec
def test_long_names_and_defaults_are_counted(case: Case) -> None:
    """Some protocols write an element's name for its number, or a default for NULL."""
    kinds = [("id", 8, 3, None, None), *((f"e{i}", 247, 0, ["x" * 900, "y"], None) for i in range(20)),
             ("s", 248, 0, ["z" * 900, "w" * 900], None),
             *((f"d{i}", 15, 0, None, "n" * 900) for i in range(20))]  # fmt: skip
    cols = [
        {"id": i + 1, "name": {"O": name}, "offset": i, "state": 5, "default": default,
         "type": {"Tp": code, "Flag": flag, "Flen": 999, "Decimal": 0, "Charset": "utf8mb4", "Elems": elems}}
        for i, (name, code, flag, elems, default) in enumerate(kinds)
    ]  # fmt: skip
    table = table_schema("s", {"id": 1, "name": {"O": "t"}, "pk_is_handle": True, "cols": cols}, 1)
    image: tuple[Value, ...] = (1, *[1] * 20, 3, *[None] * 20)
    put, kept = RowChange(table, 1, 1, 1, 1, None, image), RowChange(table, 1, 1, 1, 1, image, image)
    check([put, kept], case.options)


@every_written_codec
def test_the_largest_row_that_fits_is_sent_and_the_next_one_refused(case: Case) -> None:
    rows = max(golden_rows(), key=len)[:1]
    one = case.writer().encode_rows(rows, BUILD_MS)[0]
    size = len(one.key or b"") + len(one.value or b"") + 36
    limits = range(size - 8, size + 32)
    taken = []
    for limit in limits:
        options = replace(case.options, max_message_bytes=limit)
        check(rows, options)
        with suppress(InvalidInput):
            registry.encoder(options).encode_rows(rows, BUILD_MS)
            taken.append(limit)
    assert taken == list(range(taken[0], limits.stop))
    assert taken[0] >= size


# --- decoding: compiled = plain


def same(case: Case, pairs: Pairs, table: TableSchema) -> None:
    """The compiled decoder, which has met this table before, finds what the plain one finds."""
    batch = batch_of(pairs, np.arange(len(pairs), dtype=np.int64) * 3)
    fast = case.fast(table)
    fast.decode(batch)  # learn
    found, expected = fast.decode(batch), case.plain(table).decode(batch)
    assert describe(found) == describe(expected)
    for rows in found.rows:
        places = list(zip(rows.offset.tolist(), rows.seq.tolist(), strict=True))
        assert places == sorted(places)


@every_case
def test_golden_rows_decode_alike_and_to_what_was_encoded(case: Case) -> None:
    """By decoders that meet each table first, and by one that knows all of them, as a topic's does. Under the
    usual options rows of all tables, under each of the others those of every fourth table."""
    knowing = case.fast(*(rows[0].table for rows in golden_rows()), strange_table())
    number = list(CASES.values()).index(case)
    for rows in golden_rows() if case == USUAL[case.codec.name] else golden_rows()[number % 4 :: 4]:
        sent = [row for row in rows if case.sendable(row)]
        try:
            pairs = case.encode(sent)
        except InvalidInput:  # larger than a message may be
            continue
        if pairs:
            same(case, pairs, rows[0].table)
            gives_back(case, knowing, sent, pairs)


def some_rows() -> list[RowChange]:
    """Rows of one table."""
    return max(golden_rows(), key=len)[:40]


@functools.cache
def some_messages(case: Case) -> Pairs:
    """Return the messages of these rows."""
    return case.encode(some_rows())


Damage = tuple[int, int, int, bytes]
"""Which message, where in it (as a share of 65,536), how many bytes go, what comes in their place."""
DAMAGE = st.tuples(st.integers(0, 39), st.integers(0, 65535), st.integers(0, 2), st.binary(max_size=2))
CANAL = USUAL["canal-json"]


@given(any_case, st.booleans(), st.lists(DAMAGE, min_size=1, max_size=3))
@example(Case(CANAL.codec, replace(CANAL.options, enable_tidb_extension=True)), False, [(0, 65535, 0, b"0")])
@settings(max_examples=400, deadline=None)
def test_damaged_messages_decode_alike(case: Case, in_key: bool, damages: list[Damage]) -> None:
    pairs = list(some_messages(case))
    for hit, where, cut, put in damages:
        key, value = pairs[hit % len(pairs)]
        damaged = bytearray((key if in_key else value) or b"")
        at = where * len(damaged) >> 16
        damaged[at : at + cut] = put
        pairs[hit % len(pairs)] = (bytes(damaged), value) if in_key and key else (key, bytes(damaged))
    same(case, pairs, some_rows()[0].table)


NUMBER = re.compile(rb"(?<=[:,\[])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?=[,}\]])")
"""A number in a JSON text that is not part of a longer word."""
STRANGE_NUMBERS = (
    b"0613", b"00", b"-01", b"-", b"--1", b"+1", b"1-2", b"1.", b".5", b"01.5", b"1e", b"1e+", b"1e5",
    b"1E-2", b"-0", b"1.0", b"18446744073709551616", b"NaN", b"Infinity",
    b"1e999", b"1E309", b"1e308", b"-1e-999", b"9" * 310,
)  # fmt: skip


@every_case
def test_what_is_no_json_number_is_refused_alike(case: Case) -> None:
    """Seen once as `"commitTs":0613...` after damage: the compiled decoder took it."""
    pairs = list(some_messages(case))
    key, value = max(pairs, key=lambda message: len(NUMBER.findall(message[1] or b"")))
    changed: Pairs = []
    for side, text in enumerate((key, value)):
        for found in NUMBER.finditer(text or b""):
            for strange in STRANGE_NUMBERS:
                other = (text or b"")[: found.start()] + strange + (text or b"")[found.end() :]
                changed.append((other, value) if side == 0 else (key, other))
    same(case, [*pairs[:2], *changed], some_rows()[0].table)


# --- decode of encode


def set_aside(case: Case, decoded: Decoded, count: int) -> bool:
    """Whether these options say that their messages cannot be read; then all of them are bad, and say why."""
    if not case.unread:
        return False
    assert len(decoded.bad) == count
    assert decoded == Decoded(bad=decoded.bad)
    assert all("not known" in bad.why for bad in decoded.bad)
    return True


def gives_back(case: Case, reader: Decoder, rows: list[RowChange], pairs: Pairs) -> None:
    """Decoding the rows' messages gives the rows, in their order, up to the losses."""
    decoded = reader.decode(batch_of(pairs))
    if set_aside(case, decoded, len(pairs)):
        return
    found = [dict(one) for one in describe(decoded)]
    for one in found:
        del one["offset"]
    assert found == [expected_of(case.losses, row) for row in rows]


def with_sound_texts(row: RowChange) -> RowChange:
    """Texts in UTF-8, as TiDB has them."""

    def sound(image: tuple[Value, ...] | None) -> tuple[Value, ...] | None:
        if image is None:
            return None
        return tuple(
            cell.decode(errors="replace").encode()
            if isinstance(cell, bytes) and column.kind is Kind.STRING
            else cell
            for column, cell in zip(row.table.columns, image, strict=True)
        )

    return replace(row, old=sound(row.old), new=sound(row.new))


@pytest.mark.slow
@given(strange_rows(), any_case, st.lists(st.integers(0, 2), min_size=5, max_size=5))
@settings(max_examples=150, deadline=None)
def test_any_row_keeps_the_contract(rows: list[RowChange], case: Case, partitions: list[int]) -> None:
    """The same bytes compiled and plain, read alike, and given back up to the published losses."""
    if case.is_written:
        check(rows, case.options, np.array(partitions[: len(rows)], dtype=np.int32))
    same(case, case.encode(rows), strange_table())
    sound = [with_sound_texts(row) for row in rows]
    gives_back(case, case.fast(strange_table()), sound, case.encode(sound))


IN_BINARY = [
    case for case in WRITTEN.values() if case.plan(golden_rows()[0][0]).encode is avro_kernels.encode_avro
]
"""Avro, and simple in Avro, in both flavours."""


def decodes_alike(case: Case, rows: list[RowChange]) -> None:
    """Their messages, by the compiled decoder and the plain one, which have met the table."""
    plain, fast = case.codec.decoder(case.options), decoder(case.options)
    if case.codec.definitions is not None:
        reported = case.codec.definitions.encode(rows[0].table, case.options, BUILD_MS)
        for reader in (plain, fast):
            assert reader.decode(batch_of([(reported.key, reported.value)])) == Decoded()
    try:
        pairs = case.encode(rows)
    except InvalidInput:  # a delete without a key
        return
    assert repr(describe(fast.decode(batch_of(pairs)))) == repr(describe(plain.decode(batch_of(pairs))))


@given(any_rows(), st.sampled_from(IN_BINARY), st.lists(st.integers(0, 2), min_size=4, max_size=4))
@settings(max_examples=200, deadline=None)
def test_rows_of_any_table_are_the_same_in_binary(
    rows: list[RowChange], case: Case, partitions: list[int]
) -> None:
    check(rows, case.options, np.array(partitions[: len(rows)], dtype=np.int32))
    decodes_alike(case, rows)


@given(any_rows(), st.sampled_from(list(WRITTEN.values())))
@settings(max_examples=200, deadline=None)
def test_rows_of_any_table_are_the_same_in_every_protocol(rows: list[RowChange], case: Case) -> None:
    check(rows, case.options)
    decodes_alike(case, rows)


@every_codec
def test_text_that_is_not_utf8_is_marked_or_rejected_but_never_mistaken(case: Case) -> None:
    found = {}
    for row in (row for rows in golden_rows() for row in rows if row.is_insert):
        for i, column in enumerate(row.table.columns):
            if column.kind is Kind.STRING:
                found[column.mysql_type] = row, i
    assert len(found) > 4
    for row, i in found.values():
        assert row.new is not None
        damaged = replace(row, new=(*row.new[:i], b"a\xffb", *row.new[i + 1 :]))
        (shown,) = describe(case.plainly(case.encode([damaged]), row.table))
        assert shown["kind"] == "bad" or shown["new"][row.table.columns[i].name] == "a\ufffdb"


# --- hostile bytes


@given(any_codec, st.none() | st.binary(max_size=80), st.none() | st.binary(max_size=80))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_are_bad_messages(case: Case, key: bytes | None, value: bytes | None) -> None:
    decoded = case.fast().decode(batch_of([(key, value)]))
    assert len(decoded.bad) == 1
    assert (decoded.bad[0].key, decoded.bad[0].value) == (key, value)
    assert decoded.bad[0].why


@given(st.data(), any_codec)
@settings(max_examples=200, deadline=None)
def test_one_damaged_message_never_spoils_the_rest(data: st.DataObject, case: Case) -> None:
    pool = some_messages(replace(case, options=next(o for c, o in _one_row(case.codec))))
    start = data.draw(st.integers(0, len(pool) - 4))
    pairs = list(pool[start : start + 4])
    table = some_rows()[0].table
    clean = describe(case.fast(table).decode(batch_of(pairs)))
    hit = data.draw(st.integers(0, 3))
    key, value = pairs[hit]
    damaged = bytearray(value or key or b"")  # a delete may have its key only
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    pairs[hit] = (key, bytes(damaged)) if value else (bytes(damaged), value)
    found = describe(case.fast(table).decode(batch_of(pairs)))
    assert [row for row in found if row["offset"] != hit] == [row for row in clean if row["offset"] != hit]
    assert any(row["offset"] == hit for row in found)


def _one_row(codec: ReadCodec) -> list[tuple[str, CodecOptions]]:
    """Options under which a message is a row."""
    found = [(name, options) for name, options in variants(codec) if name == "a row a message"]
    return found or [("usual", codec.options())]


# --- marks and DDL


EVENT = DdlEvent(
    job_id=7, seq=1, start_ts=1, finished_ts=470613007659171842, action=3, query="create table `t<ä` (a int)",
    schema="s&", table="t<ä",
    old_schema="s&", old_table="t<ä", schema_version=9, before=None, after={"id": 3},
    added_ids=(3,), removed_ids=(),
)  # fmt: skip


@every_case
def test_a_resolved_mark_comes_back_or_there_is_none(case: Case) -> None:
    for ts in (1, 470613007659171842, (1 << 63) - 1):
        message = case.writer().encode_resolved(ts, BUILD_MS)
        assert (message is not None) == registry.has_marks(case.options)
        if message is not None:
            decoded = decoder(case.options).decode(Batch([message.key], [message.value], [5]))
            assert set_aside(case, decoded, 1) or decoded == Decoded(resolved=[(ts, 5)])


@every_case
@pytest.mark.parametrize("table", ["t<ä", ""])
def test_a_ddl_comes_back_with_its_header(case: Case, table: str) -> None:
    event = replace(EVENT, table=table, old_table=table)
    message = case.writer().encode_ddl(event, BUILD_MS)
    if message is None:
        assert not registry.has_marks(case.options)
        return
    decoded = decoder(case.options).decode(Batch([message.key], [message.value], [5], [message.headers]))
    if set_aside(case, decoded, 1):
        return
    (ddl,) = decoded.ddls
    assert decoded == Decoded(ddls=[ddl])
    ts = event.finished_ts
    assert ddl.ts == (compose(physical_ms(ts)) if Loss.LOGICAL_TS in case.losses else ts)
    assert (ddl.query, ddl.schema, ddl.table, ddl.offset) == (event.query, event.schema, table, 5)
    assert ddl.action in (None, event.action)
    assert ddl.header is not None
    assert ddl_header.decode(ddl.header) == event


@every_written_codec
def test_a_ddl_goes_where_the_entry_says(case: Case) -> None:
    said = registry.marks(case.options)
    assert case.codec.ddl_to is not DdlTo.NONE
    assert said.ddl_to_all_partitions() == (case.codec.ddl_to is DdlTo.ALL)


@every_case
def test_what_is_written_without_marks_is_known_by_its_messages(case: Case) -> None:
    unmarked = case.codec.unmarked
    if unmarked is None:
        assert registry.has_marks(case.options)
        return
    pairs = some_messages(case)
    decoded = case.plainly(pairs, some_rows()[0].table)
    if set_aside(case, decoded, len(pairs)):
        return
    shown = unmarked.shown([case.opened(value) for _, value in pairs], decoded)
    assert unmarked.without(case.options) == (not registry.has_marks(case.options))
    # Some options without marks write the same rows as with them.
    assert shown == unmarked.without(case.options) or (not shown and case.options != case.codec.options())
    if not unmarked.option:
        assert not case.is_written
        return
    given = dict(one.split("=") for one in unmarked.option.split("&"))
    assert registry.has_marks(registry.codec_options({"protocol": case.codec.name, **given}))


# --- settings


@every_codec
def test_a_protocol_is_chosen_by_its_name_or_an_alias(case: Case) -> None:
    for name in (case.codec.name, *case.codec.aliases, case.codec.name.upper()):
        assert registry.codec_options({"protocol": name}) == case.options
    assert registry.reader_of(case.options) is case.codec
    assert case.codec.name == case.options.protocol


@every_written_case
def test_what_options_cannot_say_is_refused_before_anything_is_sent(case: Case) -> None:
    for rows in golden_rows():
        for row in (row for row in rows if not case.sendable(row)):
            if DELETE in case.plan(row).refused:
                check([row], case.options)
                with pytest.raises(InvalidInput, match=r"no (handle|primary) key"):
                    case.encode([row])
                return

"""Avro's own matters: schemas, numbers at their limits, names, and schemas that nobody of ours wrote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.codec import golden
from tests.codec.cells import block_of
from tests.contracts.codec_rows import golden_rows, messages_of
from tests.contracts.test_codecs import check
from tidegate.codec.base import Batch, Decoded, describe
from tidegate.codec.blocks import encode_block
from tidegate.codec.decoding.assemble import DecodeError
from tidegate.codec.formats.avro_binary import varint
from tidegate.codec.protocols.avro.bulk import AvroBulkDecoder
from tidegate.codec.protocols.avro.plain import AvroDecoder, AvroEncoder, AvroReader, named_ids, unscaled
from tidegate.codec.protocols.avro.schema import AvroOptions, sanitized, subjects
from tidegate.codec.protocols.avro.wire_schema import record_of
from tidegate.codec.schema_book import MAX_SCHEMAS, SchemaBook, look_up_missing, register_missing
from tidegate.errors import InvalidInput
from tidegate.model.cells import DELETE
from tidegate.model.row import RowChange, RowChecksum, Value
from tidegate.model.schema import Kind, TableSchema
from tidegate.tidb.table_info import table_schema

MODES = [
    AvroOptions(),
    AvroOptions(
        enable_tidb_extension=True,
        avro_decimal_handling_mode="string",
        avro_bigint_unsigned_handling_mode="string",
    ),
]


@pytest.mark.golden
@pytest.mark.parametrize("name", ["avro_default", "avro_extension", "avro_string_modes", "avro_checksum"])
def test_schemas_are_those_that_ticdc_registers(name: str) -> None:
    records = list(golden.lines(f"messages/{name}"))
    given_options = {key.replace("-", "_"): v for key, v in (records[0]["options"] or {}).items()}
    options = AvroOptions(**given_options, topic=records[0]["topic"])
    recorded = {(r["subject"], r["schema"]) for r in records if r["kind"] == "schema"}
    made = {
        tuple(subject)
        for r in records
        if r["kind"] == "row"
        for subject in subjects(golden.case(r["case"]).row(r["seq"]).table, options)
        if subject is not None
    }
    assert made >= recorded
    # A value's schema is registered with the first row that has a value.
    assert all(subject.endswith("-value") for subject, _ in made - recorded)


@pytest.mark.parametrize(
    ("name", "allowed"),
    [("a", "a"), ("1a", "_1a"), ("-a", "_a"), ("a-b.c", "a_b_c"), ("ä", "_"), ("9", "_9"), ("_", "_")],
)
def test_names_have_only_what_avro_allows(name: str, allowed: str) -> None:
    assert sanitized(name) == allowed


def table_of(columns: list[dict[str, Any]], **more: Any) -> TableSchema:
    cols = [
        {"id": i + 1, "name": {"O": column.pop("name", f"c{i}")}, "offset": i, "state": 5,
         "type": {"Flag": 0, "Flen": 20, "Decimal": 0, "Charset": "binary", "Elems": None} | column}
        for i, column in enumerate([{"name": "id", "Tp": 8, "Flag": 3}, *columns])
    ]  # fmt: skip
    return table_schema("s", {"id": 1, "name": {"O": "t"}, "pk_is_handle": True, "cols": cols} | more, 1)


def encoded(rows: list[RowChange], options: AvroOptions) -> list[tuple[bytes | None, bytes | None]]:
    """Plainly and compiled, which is the same."""
    plain = AvroEncoder(options).encode_rows(rows)
    fast = encode_block(block_of(rows), np.zeros(len(rows), np.int32), options)
    assert [message for _, message in messages_of(fast)] == plain
    return [(message.key, message.value) for message in plain]


SIZES = [(65, 30), (65, 0), (30, 30), (19, 0), (18, 0), (18, 18), (18, 9), (38, 10), (9, 4), (1, 0)]


@given(st.lists(st.integers(-(10**65), 10**65), min_size=len(SIZES), max_size=len(SIZES)))
@example([0] * len(SIZES))
@example([-(10**65) + 1] * len(SIZES))
@example([128, -128, 127, -129, 32768, -32768, 255, 1 << 63, -(1 << 63), -1])
def test_decimals_of_any_size_come_back(numbers: list[int]) -> None:
    table = table_of([{"Tp": 246, "Flen": p, "Decimal": s} for p, s in SIZES])
    texts: list[Value] = []
    for number, (precision, scale) in zip(numbers, SIZES, strict=True):
        number = (abs(number) % 10**precision) * (-1 if number < 0 else 1)
        digits = str(abs(number)).rjust(scale + 1, "0")
        text = digits[: len(digits) - scale] + ("." + digits[len(digits) - scale :] if scale else "")
        texts.append(("-" if number < 0 else "") + text)
    row = RowChange(table, 5, 4, 1, 1, None, (1, *texts))
    for options in MODES:
        ((key, value),) = encoded([row], options)
        (shown,) = describe(AvroDecoder(options).decode(Batch([key], [value], [0])))
        assert list(shown["new"].values()) == [1, *texts]


@given(st.integers(-(1 << 300), 1 << 300))
def test_a_decimals_bytes_are_its_shortest_twos_complement(number: int) -> None:
    data = unscaled(str(number), 0)
    assert int.from_bytes(data, "big", signed=True) == number
    assert len(data) == 1 or int.from_bytes(data[1:], "big", signed=True) != number


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_a_varint_comes_back(number: int) -> None:
    reader = AvroReader(bytes(5) + varint(number))
    assert reader.varint() == number
    reader.end()


ELEMS = ["a", "", "b,c", "it's", "it''s", "é" * 30, "A b"]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 255), st.integers(0, 2**64 - 1)), max_size=8))
@example([(0, 0, 0), (1, 63, 1), (8, 64, 255), (7, 255, 256), (4, 1, 2**64 - 1)])
def test_names_of_enums_and_sets_and_bits_are_written_alike(found: list[tuple[int, int, int]]) -> None:
    sets = ["x", "y z", "ü", "w", "v", "u"]
    table = table_of(
        [
            {"Tp": 247, "Elems": ELEMS, "Charset": "utf8mb4"},
            {"Tp": 248, "Elems": sets, "Charset": "utf8mb4"},
            {"Tp": 16, "Flen": 64, "Flag": 32},
            {"Tp": 8, "Flag": 32},
        ]
    )
    rows = [
        RowChange(table, 5, 4, 1, i, None, (i, index, mask, bits, bits))
        for i, (index, mask, bits) in enumerate(found)
    ]
    for options in MODES if rows else []:
        pairs = encoded(rows, options)
        keys, values = zip(*pairs, strict=True)
        for row, shown in zip(
            rows, describe(AvroDecoder(options).decode(Batch(keys, values, range(len(rows))))), strict=True
        ):
            assert row.new is not None
            _, index, mask, bits, _ = row.new
            # The second element is the empty text, as is what no element has; and a quote loses its twin.
            same = {0: 2, 8: 2, 9: 2, 5: 4}
            wanted = (same.get(int(index or 0), index), int(mask or 0) & 63, bits, bits)
            assert tuple(shown["new"].values())[1:] == wanted


def test_a_default_is_written_as_its_type() -> None:
    table = table_of(
        [
            {"Tp": 3, "name": "n"},
            {"Tp": 15, "name": "s", "Charset": "utf8mb4"},
            {"Tp": 5, "name": "d"},
            {"Tp": 15, "name": "e", "Charset": "utf8mb4"},
        ]
    )
    defaults = ["7", "a<b", "1e-7", "uuid()"]
    info = table.info
    for column, default in zip(info["cols"][1:], defaults, strict=True):
        column["default"] = default
    info["cols"][4]["default_is_expr"] = True
    fields = orjson.loads(subjects(table_schema("s", info, 2), AvroOptions())[1].schema)["fields"]
    assert [field.get("default") for field in fields] == [None, 7, "a<b", 1e-7, None]
    assert [field["type"].index("null") for field in fields[1:]] == [1, 1, 1, 0]


def test_columns_that_avro_cannot_tell_apart_are_refused() -> None:
    for names in (["a-b", "a+b"], ["_tidb_op", "x"]):
        table = table_of([{"Tp": 3, "name": name} for name in names])
        with pytest.raises(InvalidInput, match="one name in Avro"):
            subjects(table, MODES[1])


def test_a_column_named_like_the_extension_is_a_column() -> None:
    table = table_of([{"Tp": 3, "name": "_tidb_x"}])
    ((key, value),) = encoded([RowChange(table, 5, 4, 1, 1, None, (1, 2))], MODES[1])
    (shown,) = describe(AvroDecoder(MODES[1]).decode(Batch([key], [value], [0])))
    assert shown["new"] == {"id": 1, "_tidb_x": 2}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 70) | st.sampled_from(
        ["record", "null", "int", "long", "string", "bytes", "INT", "DECIMAL", "_tidb_op", "_ticdc_before"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "name", "namespace", "fields", "connect.parameters", "tidb_type", "scale"]),
        inner, max_size=5,
    ),
    max_leaves=25,
)  # fmt: skip


@given(JSON, st.binary(max_size=20))
def test_a_foreign_schema_makes_a_bad_message_and_no_error(schema: Any, data: bytes) -> None:
    book = SchemaBook()
    book.add(
        1, orjson.dumps(schema, option=orjson.OPT_PASSTHROUGH_SUBCLASS).decode() if _fits(schema) else "{"
    )
    decoder = AvroDecoder(replace(AvroOptions(), book=book))
    head = b"\x00\x00\x00\x00\x01"
    decoded = decoder.decode(Batch([head + data], [head + data], [0]))
    assert len(decoded.bad) + sum(map(len, decoded.rows)) == 1


def _fits(value: Any) -> bool:
    """Whether orjson writes it."""
    if isinstance(value, dict):
        return all(map(_fits, value.values()))
    return (
        all(map(_fits, value)) if isinstance(value, list) else not isinstance(value, int) or value < 1 << 63
    )


def test_a_message_of_an_unknown_schema_says_which() -> None:
    decoded = AvroDecoder(AvroOptions(book=SchemaBook())).decode(Batch([b"\0\0\0\0\x07\2"], [None], [3]))
    assert "no schema of the id 7" in decoded.bad[0].why


class _Registry:
    """Counts its calls; the real one is in tests/test_schema_registry.py."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def register(self, subject: str, schema: str) -> int:
        self.calls.append(subject)
        return len(self.calls)

    def look_up(self, number: int) -> str | None:
        self.calls.append(number)
        return None if number == 9 else "{}"


def test_a_registry_is_asked_once_for_what_it_has() -> None:
    book, registry, table = SchemaBook(), _Registry(), table_of([{"Tp": 3}])
    needed = [one for one in subjects(table, AvroOptions(topic="a.b")) if one is not None]
    for _ in range(2):
        register_missing(book, registry, needed)
    assert registry.calls == ["a_b-key", "a_b-value"]
    batch = Batch([b"\0\0\0\0\1", None, b"\0\0"], [b"\0\0\0\0\x09", b"\2" + bytes(8), None], [0, 1, 2])
    assert sorted(named_ids(batch)) == [1, 9]
    for _ in range(2):
        look_up_missing(book, registry, [1, 3, 9])
    assert registry.calls[2:] == [3, 9, 9]


def test_a_book_has_a_bound() -> None:
    book = SchemaBook()
    for number in range(MAX_SCHEMAS + 5):
        book.add(number, "{}")
        assert book.schema_of(0) == ("{}" if number < MAX_SCHEMAS + 5 else None)
    assert book.schema_of(1) is None
    assert book.schema_of(0) is not None


# --- in bulk


class Nothing:
    """A plain decoder that the compiled decoder must not call."""

    def decode(self, batch: Batch) -> Decoded:
        raise AssertionError(batch)


FULL = AvroOptions(enable_tidb_extension=True, avro_enable_watermark=True)
SUMMED = AvroOptions(
    enable_tidb_extension=True,
    avro_decimal_handling_mode="string",
    avro_bigint_unsigned_handling_mode="string",
    integrity_check_level="correctness",
)


WITH_OLD = replace(FULL, flavour="new", avro_include_before_value=True)
SUMMED_OLD = replace(SUMMED, flavour="new", avro_include_before_value=True)


@pytest.mark.parametrize(
    "options",
    [AvroOptions(), FULL, SUMMED, WITH_OLD, SUMMED_OLD],
    ids=["usual", "marks", "checksums", "old values", "old values and checksums"],
)
def test_the_kernel_takes_all_but_names_with_quotes(options: AvroOptions) -> None:
    plain, taken = AvroDecoder(options), 0
    for rows in golden_rows():
        quoted = any(set("'\\") & set("".join(column.elems)) for column in rows[0].table.columns)
        if quoted or not rows[0].table.handle_key:
            continue
        messages = AvroEncoder(options).encode_rows(rows)
        batch = Batch([m.key for m in messages], [m.value for m in messages], range(len(messages)))
        assert repr(describe(AvroBulkDecoder(plain, Nothing()).decode(batch))) == repr(
            describe(plain.decode(batch))
        )
        taken += len(rows)
    assert taken > 900


def test_a_delete_with_its_row_tells_the_checksum_of_it() -> None:
    deletes = [replace(row, new=None) for rows in golden_rows() for row in rows if row.old and row.checksum]
    summed = [row for row in deletes if row.checksum and row.checksum.previous and row.table.handle_key]
    plain = AvroDecoder(SUMMED_OLD)
    for row in summed[::4]:
        ((key, value),) = encoded([row], SUMMED_OLD)
        assert value is not None
        (table,) = plain.decode(Batch([key], [value], [0])).rows
        assert (table.op.tolist(), table.commit_ts.tolist()) == ([DELETE], [row.commit_ts])
        assert row.checksum is not None
        wrong = replace(row, checksum=row.checksum._replace(previous=row.checksum.previous ^ 4))
        ((key, value),) = encoded([wrong], SUMMED_OLD)
        for reader in (plain, AvroBulkDecoder(plain, plain)):
            (bad,) = reader.decode(Batch([key], [value], [0])).bad
            assert "not what its checksum says" in bad.why
    assert len(summed) > 20


def test_old_values_need_no_key_and_no_extension() -> None:
    table = table_of([{"name": "a", "Tp": 8}], pk_is_handle=False)
    rows = [RowChange(table, 5, 4, 1, 1, old, new) for old, new in [(None, (1, 2)), ((1, 2), (1, 3))]]
    rows.append(RowChange(table, 5, 4, 1, 1, (1, 3), None))
    options = AvroOptions(flavour="new", avro_include_before_value=True)
    keys, values = zip(*encoded(rows, options), strict=True)
    assert keys == (None, None, None)
    shown = describe(AvroDecoder(options).decode(Batch(keys, values, range(3))))
    assert [one["kind"] for one in shown] == ["insert", "update", "delete"]
    assert [one["old"] for one in shown] == [None, {"id": 1, "a": 2}, {"id": 1, "a": 3}]
    with pytest.raises(InvalidInput, match="a delete cannot be sent"):
        AvroEncoder(replace(options, avro_include_before_value=False)).encode_rows(rows[2:])


def test_a_column_may_not_have_the_name_of_the_old_row() -> None:
    table = table_of([{"name": "_ticdc_before", "Tp": 8}])
    options = AvroOptions(flavour="new", avro_include_before_value=True)
    subjects(table, replace(options, avro_include_before_value=False))
    with pytest.raises(InvalidInput, match="two columns have one name"):
        subjects(table, options)


@pytest.mark.golden
@pytest.mark.parametrize("name", ["avro_before_value", "avro_extension"])
def test_schemas_of_values_are_those_that_the_new_architecture_registers(name: str) -> None:
    records = list(golden.lines(f"messages_new/{name}"))
    given_options = {key.replace("-", "_"): v for key, v in records[0]["options"].items()}
    options = AvroOptions(**given_options, topic=records[0]["topic"], flavour="new")
    tables = [golden.case(r["case"]).row(r["seq"]).table for r in records if r["kind"] == "row"]
    made = {subjects(table, options)[1] for table in tables}
    recorded = {
        (r["subject"], r["schema"])
        for r in records
        if r["kind"] == "schema" and r["subject"].endswith("-value")
    }
    assert {tuple(subject) for subject in made} >= recorded
    assert len(recorded) > 60


def test_all_of_ticdcs_new_architecture_is_read_in_bulk_as_plainly() -> None:
    """With the old image in updates, and deletes that have a value."""
    records, book = list(golden.lines("messages_new/avro_before_value")), SchemaBook()
    for record in records:
        if record["kind"] == "schema":
            book.add(record["id"], record["schema"], record["subject"])
    plain = AvroDecoder(replace(FULL, book=book))
    rows = [r for r in records if r["kind"] == "row" and "error" not in r]
    keys, values = ([bytes.fromhex(r[side]) if r[side] else None for r in rows] for side in ("key", "value"))
    batch = Batch(keys, values, range(len(rows)))
    found = AvroBulkDecoder(plain, plain).decode(batch)
    assert repr(describe(found)) == repr(describe(plain.decode(batch)))
    kinds = [one["kind"] for one in describe(found)]
    assert min(kinds.count(kind) for kind in ("insert", "update", "delete")) > 20


@pytest.mark.parametrize("damaged", ["sum", "cell", "corrupted"])
def test_a_row_that_is_not_what_its_checksum_says_is_named(damaged: str) -> None:
    rows = [
        row for rows in golden_rows() for row in rows if row.checksum and row.new and row.table.handle_key
    ]
    for row in rows[::5]:
        assert row.checksum is not None
        current, previous, version, _ = row.checksum
        sums = RowChecksum(
            current ^ 4 if damaged == "sum" else current, previous, version, damaged == "corrupted"
        )
        if damaged == "cell":
            assert row.new is not None
            numbers = [
                i for i, c in enumerate(row.table.columns) if c.kind is Kind.INT and row.new[i] is not None
            ]
            if not numbers or row.new[numbers[-1]] == (1 << 63) - 1:
                continue
            at = numbers[-1]
            new = tuple(cell + 1 if i == at else cell for i, cell in enumerate(row.new))
            row = replace(row, new=new)
        good = replace(row, checksum=None)
        messages = AvroEncoder(SUMMED).encode_rows([replace(row, checksum=sums), good])
        batch = Batch([m.key for m in messages], [m.value for m in messages], range(2))
        plain = AvroDecoder(SUMMED)
        for reader in (plain, AvroBulkDecoder(plain, plain)):
            decoded = reader.decode(batch)
            (bad,) = decoded.bad
            assert bad.offset == 0
            assert sanitized(row.table.table) in bad.why
            if damaged == "corrupted":
                assert "marked this row" in bad.why
            else:
                key = row.table.columns[row.table.handle_key[0]].name
                assert f"{sanitized(key)}=" in bad.why
                assert f"at commit ts {row.commit_ts} is not what its checksum says" in bad.why
            assert [len(table) for table in decoded.rows] == [1]


def test_an_old_image_of_other_columns_is_refused() -> None:
    """It would be taken for the row's own, cell by cell."""
    column = {"type": "long", "connect.parameters": {"tidb_type": "BIGINT"}}
    inner = {"type": "record", "name": "t_before", "fields": [{"name": "b", "type": column}]}
    fields = [{"name": "a", "type": column}, {"name": "_ticdc_before", "type": ["null", inner]}]
    schema = {"type": "record", "name": "t", "namespace": "default.s", "fields": fields}
    with pytest.raises(DecodeError, match="other columns than the row"):
        record_of(orjson.dumps(schema).decode())


def test_null_extension_fields_decode_as_absent_fields() -> None:
    column = {"type": "long", "connect.parameters": {"tidb_type": "BIGINT"}}
    names = ("_tidb_op", "string"), ("_tidb_commit_ts", "long"), ("_tidb_row_level_checksum", "string")
    fields = [{"name": "a", "type": column}, *({"name": n, "type": ["null", t]} for n, t in names)]
    book = SchemaBook()
    book.add(1, orjson.dumps({"type": "record", "name": "t", "namespace": "d.s", "fields": fields}).decode())
    plain = AvroDecoder(AvroOptions(book=book))
    batch = Batch([None], [b"\0\0\0\0\1" + varint(7) + bytes(3)], [0])
    for reader in (plain, AvroBulkDecoder(plain, Nothing())):
        (shown,) = describe(reader.decode(batch))
        assert (shown["new"], shown["commit_ts"]) == ({"a": 7}, 0)


def test_a_delete_that_does_not_say_when_is_refused_in_bulk_too() -> None:
    rows = next(rows for rows in golden_rows() if rows[0].table.handle_key)
    deletes = [RowChange(row.table, 9, 8, 7, 1, row.new, None) for row in rows if row.new is not None]
    keys = [message.key for message in AvroEncoder(FULL).encode_rows(deletes)]
    for options, bad in ((FULL, len(keys)), (AvroOptions(), 0)):
        plain = AvroDecoder(options)
        decoded = AvroBulkDecoder(plain, plain).decode(Batch(keys, [None] * len(keys), range(len(keys))))
        assert (len(decoded.bad), sum(map(len, decoded.rows))) == (bad, len(keys) - bad)


def test_a_delete_is_counted_with_its_row_twice() -> None:
    """And a key once more: beyond its bound the kernel would write behind its buffer."""
    table = table_of([{"name": "a", "Tp": 15, "Charset": "utf8mb4"}, {"name": "b", "Tp": 252}])
    image: tuple[Value, ...] = (1, b"x" * 5000, b"y" * 5000)
    check([RowChange(table, 5, 4, 1, 1, *images) for images in ((image, None), (image, image))], WITH_OLD)

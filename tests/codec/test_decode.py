"""Messages of other producers: TiCDC's own in bulk, rows that it left out, and wrong lengths."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec import golden
from tests.contracts.codec_rows import golden_rows, strange_table, virtual_columns
from tidegate.codec import decode
from tidegate.codec.base import Batch, CodecOptions, Decoded, describe
from tidegate.codec.decode import BatchDecoder, decoder
from tidegate.codec.registry import codec_of, codec_options
from tidegate.model.row import RowChange
from tidegate.model.schema import Kind

Pairs = list[tuple[bytes | None, bytes | None]]

OPTIONS: dict[str, CodecOptions] = {
    "open": codec_options({}),
    "canal extended": codec_options({"protocol": "canal-json", "enable-tidb-extension": True}),
}
LENGTHS = st.sampled_from([0, 1, 7, 8, 255, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1]).map(
    lambda n: n.to_bytes(8, "big")
)


@pytest.mark.parametrize(
    ("options", "recorded"), [("open", "open_batch16"), ("canal extended", "canaljson_tidb_extension")]
)
def test_ticdcs_own_messages_decode_alike_in_bulk_and_one_by_one(options: str, recorded: str) -> None:
    found = []
    for record in golden.lines(f"messages/{recorded}"):
        for m in record.get("messages", [record] if record["kind"] == "row" else []):
            found.append((bytes.fromhex(m["key"]) if m["key"] else None, bytes.fromhex(m["value"])))
    keys, values = zip(*found, strict=True)
    batch = Batch(keys, values, np.arange(len(found), dtype=np.int64) * 3)
    fast = decoder(OPTIONS[options])
    fast.decode(batch)  # learn
    plain = codec_of(OPTIONS[options]).decoder(OPTIONS[options])
    assert describe(fast.decode(batch)) == describe(plain.decode(batch))


@given(LENGTHS, LENGTHS, st.binary(max_size=30))
@settings(max_examples=100, deadline=None)
def test_hostile_lengths_are_bad_messages(key_length: bytes, value_length: bytes, rest: bytes) -> None:
    key = (1).to_bytes(8, "big") + key_length + b'{"ts":1,"scm":"a","tbl":"b","t":1}' + rest
    decoded = decoder(OPTIONS["open"]).decode(Batch([key], [value_length + rest], [0]))
    assert len(decoded.bad) == 1


def _framed(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    size = len(key).to_bytes(8, "big")
    return (1).to_bytes(8, "big") + size + key, len(value).to_bytes(8, "big") + value


@pytest.mark.parametrize(
    ("options", "message", "why"),
    [
        (
            "open",
            _framed(
                b'{"ts":7,"scm":"s","tbl":"t","t":1,"ohk":true}', b'{"u":{"a":{"t":3,"h":true,"f":2,"v":1}}}'
            ),
            "only its key is",
        ),
        (
            "open",
            _framed(
                b'{"ts":7,"scm":"s","tbl":"t","t":1,"ohk":true,"ohk":false,"ccl":"s3://b/x?secret=1/u.json"}',
                b'{"u":{"a":{"t":3,"h":true,"f":2,"v":1}}}',
            ),
            "in the claim-check storage as u.json",
        ),
        (
            "canal extended",
            (
                None,
                b'{"database":"s","table":"t","pkNames":["a"],"isDdl":false,"type":"INSERT","es":1,"ts":1,"sql":"",'
                b'"sqlType":{"a":4},"mysqlType":{"a":"int"},"old":null,"data":[{"a":"1"}],'
                b'"_tidb":{"commitTs":7,"onlyHandleKey":true}}',
            ),
            "only its key is",
        ),
    ],
)
def test_a_row_that_was_too_large_for_the_topic_is_named_with_its_ts(
    options: str, message: tuple[bytes | None, bytes], why: str
) -> None:
    chosen = OPTIONS[options]
    for made in (decoder(chosen), codec_of(chosen).decoder(chosen)):
        decoded = made.decode(Batch([message[0]], [message[1]], [0]))
        (bad,) = decoded.bad
        assert bad.reduced_ts == 7
        assert "s.t" in bad.why
        assert why in bad.why
        assert "secret" not in bad.why
        assert decoded.rows == []


# --- what TiCDC and other producers write is taken by the kernels, not by the plain decoder


class _Counted:
    """A plain decoder that knows how many messages it was given."""

    def __init__(self, options: CodecOptions) -> None:
        self._plain, self.count = codec_of(options).decoder(options), 0

    def decode(self, batch: Batch) -> Decoded:
        self.count += len(batch)
        return self._plain.decode(batch)


def _in_bulk(options: CodecOptions, learn: Pairs, pairs: Pairs, plainly: int = 0) -> Decoded:
    """Decode `pairs` after `learn`: `plainly` of them by the plain decoder, which agrees with the result."""
    form = codec_of(options).form
    assert form is not None
    counted = _Counted(options)
    fast = BatchDecoder(counted, form)
    fast.decode(_batch(learn))
    counted.count = 0
    found = fast.decode(_batch(pairs))
    assert counted.count == plainly
    assert describe(found) == describe(codec_of(options).decoder(options).decode(_batch(pairs)))
    return found


def _batch(pairs: Pairs) -> Batch:
    keys, values = zip(*pairs, strict=True)
    return Batch(keys, values, np.arange(len(pairs), dtype=np.int64) * 3)


def _strange_insert(**cells: object) -> RowChange:
    """A row of `strange_table` with some of its cells."""
    table = strange_table()
    image = tuple(cells.get(column.name, 1 if column.name == "id" else None) for column in table.columns)
    return RowChange(table, 470613016205066241, 1, 1, 1, None, image)  # type: ignore[arg-type]


def _messages(options: CodecOptions, rows: list[RowChange]) -> Pairs:
    return [(m.key, m.value) for m in codec_of(options).encoder(options).encode_rows(rows, 1)]


NEW_ONLY: dict[str, dict[str, str | bool]] = {
    "debezium": {},
    "canal-json, row key": {"output-row-key": True},
    "debezium, start ts": {"debezium-include-start-ts": True},
}


@pytest.mark.parametrize("extended", [False, True], ids=["usual", "extended"])
@pytest.mark.parametrize("named", NEW_ONLY)
def test_what_only_the_new_architecture_tells_is_taken_by_the_kernel(named: str, extended: bool) -> None:
    """And learned from messages of the classic one, since it says nothing of the columns."""
    settings: dict[str, str | bool] = {"protocol": named.partition(",")[0], "enable-tidb-extension": extended}
    classic, new = codec_options(settings), codec_options(settings | {"flavour": "new"} | NEW_ONLY[named])
    taken = 0
    for rows in golden_rows():
        # Virtual columns stand in the schema only; of floats such as might be infinite are left, too.
        kinds = {column.kind for column in rows[0].table.columns}
        if virtual_columns(rows[0].table) or kinds & {Kind.FLOAT, Kind.DOUBLE}:
            continue
        learn, pairs = _messages(classic, rows), _messages(new, rows)
        _in_bulk(new, learn, pairs)
        _in_bulk(new, pairs, learn)
        taken += len(rows)
    assert taken > 800


@pytest.mark.parametrize(
    ("stated", "plainly"),
    [
        (b'"dIAAAAAAAAQ="', 0),
        (b'""', 0),
        (b'"\\/w=="', 1),
        (b'"\\q"', 1),
        (b'"\xff"', 1),
        (b'"a\x01"', 1),
        (b'"dI', 1),
        (b"7", 1),
        (b"null", 1),
        (b"", 1),
        (b'"a","more":1', 1),
    ],
)
def test_a_row_key_that_nobody_reads_is_a_json_string_all_the_same(stated: bytes, plainly: int) -> None:
    settings: dict[str, str | bool] = {"protocol": "canal-json", "enable-tidb-extension": True}
    options = codec_options(settings | {"flavour": "new", "output-row-key": True})
    row = replace(_strange_insert(), row_key=b"\x00\x00\x00")
    ((_, value),) = learn = _messages(options, [row])
    assert value is not None
    assert value.count(b'"AAAA"') == 1
    _in_bulk(options, learn, [*learn, (None, value.replace(b'"AAAA"', stated))], plainly)


@pytest.mark.parametrize("stated", [b"\\c", b"\\ud800", b"\\n", b"\\u0041"])
def test_an_escape_in_a_key_is_left_to_the_plain_decoder(stated: bytes) -> None:
    """The key is inspected although the value repeats the same cell."""
    options = codec_options({"protocol": "debezium"})
    opening = re.compile(rb'\{"payload":\{"\w+":"')
    learn = next(
        found
        for found in (_messages(options, rows) for rows in golden_rows())
        if all(key is not None and opening.match(key) for key, _ in found)
    )
    key, value = learn[0]
    assert key is not None
    end = opening.match(key)
    assert end is not None
    changed = key[: end.end()] + stated + key[end.end() :]
    _in_bulk(options, learn, [*learn, (changed, value)], plainly=1)


@given(st.lists(st.permutations(range(12)), min_size=1, max_size=8), st.booleans())
@settings(max_examples=40, deadline=None)
def test_canal_json_types_in_any_order_are_taken_by_the_kernel(
    orders: list[list[int]], extended: bool
) -> None:
    """TiCDC writes `mysqlType` from a map of Go's, whose order is another in each message."""
    options = codec_options({"protocol": "canal-json", "enable-tidb-extension": extended})
    inserted = _strange_insert(ub=1)
    updated = replace(inserted, old=inserted.new, new=_strange_insert(ub=2).new)
    learn = _messages(options, [inserted, updated, replace(inserted, old=inserted.new, new=None)])
    shuffled: Pairs = []
    for number, order in enumerate(orders):
        _, value = learn[number % 3]
        assert value is not None
        written = list(orjson.loads(value)["mysqlType"].items())
        mixed = orjson.dumps(dict(written[i] for i in order))
        shuffled.append((None, _in_types(value, mixed)))
    _in_bulk(options, learn, shuffled)


def _in_types(value: bytes, types: bytes) -> bytes:
    """The message with this `mysqlType`, written as TiCDC escapes names."""
    start = value.index(b'"mysqlType":') + len(b'"mysqlType":')
    end = value.index(b',"old":', start)
    return value[:start] + types.replace(b"<", b"\\u003c") + value[end:]


@pytest.mark.parametrize(
    "types",
    [
        b'{"a":"int","b":"int","b":"int"}',
        b'{"b":"int","a":"int","a":"bigint"}',
        b'{"b":"int"}',
        b'{"b":"int","a":"int","c":"int"}',
        b'{"b":"int","a":"bigint"}',
        b'{"b":"int","a":"int",}',
        b'{"b":"int","a":"int"',
        b"{}",
    ],
)
def test_types_that_differ_from_the_table_are_left_to_the_plain_decoder(types: bytes) -> None:
    sound = (
        b'{"id":0,"database":"s","table":"t","pkNames":["a"],"isDdl":false,"type":"INSERT","es":1,"ts":1,'
        b'"sql":"","sqlType":{"a":4,"b":4},"mysqlType":{"a":"int","b":"int"},"old":null,'
        b'"data":[{"a":"1","b":"2"}],"_tidb":{"commitTs":7}}'
    )
    _in_bulk(
        OPTIONS["canal extended"],
        [(None, sound)],
        [(None, sound), (None, _in_types(sound, types))],
        plainly=1,
    )


LARGEST = [2**64 - 1, 2**64 - 2, 18446744073709551609, 18446744073709551610, 10**19, 2**63, 2**63 - 1, 10**16]


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_the_largest_unsigned_numbers_are_taken_by_the_kernel(protocol: str) -> None:
    options = codec_options({"protocol": protocol})
    rows = [_strange_insert(ub=number) for number in LARGEST]
    found = _in_bulk(options, _messages(options, rows[-1:]), _messages(options, rows))
    (table,) = found.rows
    assert table.new is not None
    assert table.new.column("ub").to_pylist() == LARGEST


@pytest.mark.parametrize("number", [b"18446744073709551616", b"20000000000000000000", b"-1", b"1x", b""])
def test_a_number_that_is_too_large_spoils_its_own_message_only(number: bytes) -> None:
    options = OPTIONS["canal extended"]
    learn = _messages(options, [_strange_insert(ub=7)])
    ((_, value),) = learn
    assert value is not None
    bad = value.replace(b'"ub":"7"', b'"ub":"%s"' % number)
    found = _in_bulk(options, learn, [*learn, (None, bad), *learn], plainly=1)
    assert [one.offset for one in found.bad] == [3]


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_updates_that_show_only_what_changed_are_taken_by_the_kernel(protocol: str) -> None:
    options = codec_options({"protocol": protocol, "only-output-updated-columns": True})
    old = _strange_insert(**{"bin": b"\x00<", "Ä": b"text", "ub": 2**64 - 1, "d": 1.5, 'q"<': b"quoted"})
    changes = [
        {},
        {"ub": 7},
        {"d": None, "ut": 3},
        {"bin": b"", 'q"<': b'"'},
        {"Ä": None, "bin": None, "ub": 0},
    ]
    rows = [old, replace(old, old=old.new, new=None)]
    for change in changes:
        cells = dict(zip((column.name for column in old.table.columns), old.new or (), strict=True)) | change
        rows.append(replace(old, old=old.new, new=tuple(cells.values())))
    learn = _messages(codec_options({"protocol": protocol, "max-batch-size": 1}), rows[:1])
    found = _in_bulk(options, learn, _messages(options, rows))
    shown = [one for one in describe(found) if one["kind"] == "update"]
    # Without an old image, open-protocol's update that changes nothing is an insert.
    assert len(shown) == len(changes) - (protocol == "open-protocol")
    assert all(one["old"] == describe(found)[0]["new"] for one in shown)


def test_a_thousand_tables_in_turns_are_taken_by_the_kernel() -> None:
    options, pairs = OPTIONS["open"], []
    for number in range(1000):
        columns = b'{"a":{"t":3,"h":true,"f":11,"v":%d},"b":{"t":15,"f":64,"v":"x%d"}}' % (number, number)
        for name in (b"u", b"d")[: 1 + number % 2]:
            key = b'{"ts":%d,"scm":"s","tbl":"t%d","t":1}' % (number + 1, number)
            pairs.append(_framed(key, b'{"%s":%s}' % (name, columns)))
    random.Random(3).shuffle(pairs)
    found = _in_bulk(options, pairs, pairs)
    assert len(found.rows) == 1000
    assert sum(len(table) for table in found.rows) == 1500


def test_tables_in_runs_of_any_length_are_taken_by_the_kernel() -> None:
    """The template of the two items before is tried first, and names of one length tell it from others."""
    options, pairs, chosen = OPTIONS["open"], [], random.Random(5)
    for number in range(600):
        table, wide = chosen.randrange(4), chosen.random() < 0.2
        for _ in range(chosen.randrange(1, 6)):
            columns = b'"a":{"t":3,"h":true,"f":11,"v":%d}' % len(pairs)
            columns += b',"c":{"t":3,"f":0,"v":7}' if wide else b""
            key = b'{"ts":%d,"scm":"s","tbl":"t%d","t":1}' % (number + 1, table)
            pairs.append(_framed(key, b'{"u":{%s}}' % columns))
    found = _in_bulk(options, pairs, pairs)
    assert sum(len(table) for table in found.rows) == len(pairs)


@pytest.mark.parametrize("partition", [b"", b',"ptn":7'])
def test_a_row_without_names_is_not_taken_for_one_of_the_table_before(partition: bytes) -> None:
    def row(names: bytes) -> tuple[bytes, bytes]:
        key = b'{"ts":5%s%s,"t":1}' % (names, partition)
        return _framed(key, b'{"u":{"a":{"t":3,"h":true,"f":11,"v":1}}}')

    named = row(b',"scm":"s","tbl":"t"')
    _in_bulk(OPTIONS["open"], [named], [named, named, row(b""), named], plainly=1)


def test_a_ts_of_any_number_of_digits_is_taken_by_the_kernel() -> None:
    for size in range(1, 20):
        for digits in (10 ** (size - 1), 10**size - 1):
            _in_bulk(OPTIONS["open"], [_of_ts(b"1")], [_of_ts(b"%d" % digits)])


@given(at=st.integers(0, 17), byte=st.integers(0, 255).filter(lambda byte: byte not in b"0123456789"))
def test_any_other_byte_in_a_ts_is_left_to_the_plain_decoder(at: int, byte: int) -> None:
    digits = bytearray(b"470613016205066241")
    digits[at] = byte
    _in_bulk(OPTIONS["open"], [_of_ts(b"1")], [_of_ts(bytes(digits))], plainly=1)


def _of_ts(ts: bytes) -> tuple[bytes, bytes]:
    columns = b'{"a":{"t":3,"h":true,"f":11,"v":1}}'
    return _framed(b'{"ts":%s,"scm":"s","tbl":"t","t":1}' % ts, b'{"u":%s}' % columns)


def test_batches_of_more_bytes_than_offsets_reach_are_decoded_in_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode, "MOST_BYTES", 1000)
    options = OPTIONS["open"]
    pairs = _messages(replace(options, max_batch_size=1), [_strange_insert(ub=i) for i in range(20)])
    _in_bulk(options, pairs[:1], pairs)

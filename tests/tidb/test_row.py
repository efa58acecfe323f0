import contextlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden_folder import count, lines
from tests.tidb.stored import kind_of, stored_of
from tidegate.errors import InvalidInput, Undecodable
from tidegate.model.schema import Kind
from tidegate.tidb import memcomparable, row

CELLS = st.one_of(
    st.tuples(st.just(Kind.INT), st.none() | st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(Kind.UINT), st.none() | st.integers(0, 2**64 - 1)),
    st.tuples(st.just(Kind.DOUBLE), st.none() | st.floats(allow_nan=False).map(lambda v: v + 0.0)),
    st.tuples(st.just(Kind.STRING), st.none() | st.binary(max_size=300)),
)
ROWS = st.dictionaries(st.integers(1, 400), CELLS, max_size=12)


@pytest.mark.golden
def test_golden_rows_of_both_formats_are_tidbs_bytes() -> None:
    for case in lines("keys/row_values"):
        if case["v2_error"]:  # decimals that TiDB writes into a row, but not through this codec call
            count("keys", "row values, refused by TiDB's codec")
            continue
        assert case["v1_error"] is None
        cells = [(c["column_id"], kind_of(c), stored_of(c)) for c in case["columns"]]
        assert row.encode_v2(cells).hex() == case["v2"]
        handle = memcomparable.encode_int(int(case["checksum_handle"]))
        assert row.encode_v2(cells, handle).hex() == case["v2_checksum"]
        assert row.encode_v1(cells).hex() == case["v1"]
        for form in ("v1", "v2", "v2_checksum"):
            fields = row.split(bytes.fromhex(case[form]))
            assert {i: fields.stored(i, kind) for i, kind, _ in cells} == {i: v for i, _, v in cells}
        count("keys", "row values, v1 and v2")


@given(ROWS)
def test_rows_of_any_columns_come_back_in_both_formats(columns: dict[int, tuple[Kind, row.Stored]]) -> None:
    cells = [(i, kind, value) for i, (kind, value) in columns.items()]
    for value in (row.encode_v2(cells), row.encode_v2(cells, b"handle"), row.encode_v1(cells)):
        fields = row.split(value)
        assert {i: fields.stored(i, kind) for i, kind, _ in cells} == {i: v for i, _, v in cells}


def test_a_row_larger_than_64_kib_takes_the_large_form() -> None:
    value = row.encode_v2([(1, Kind.BYTES, bytes(65_536)), (2, Kind.INT, None)])
    assert value[1] == row.LARGE
    assert row.split(value).stored(1, Kind.BYTES) == bytes(65_536)


def test_the_checksum_covers_row_and_handle() -> None:
    plain = row.encode_v2([(1, Kind.INT, 5)], b"h")
    checksum = row.split(plain).checksum
    assert checksum is not None
    assert checksum.version == 2
    assert checksum.value == zlib.crc32(plain[:-4] + b"h")


def test_bytes_after_the_last_column_are_no_row() -> None:
    """A checksum whose flag was lost does not pass as a row without one."""
    sealed = bytearray(row.encode_v2([(1, Kind.INT, 5)], b"h"))
    sealed[1] &= ~row.CHECKSUM
    with pytest.raises(Undecodable, match="after its last column"):
        row.split(bytes(sealed))


def test_an_empty_old_row_has_no_columns() -> None:
    assert row.split(b"\0").cells == {}
    assert row.encode_v1([]) == b"\0"


@given(st.binary(max_size=80), st.sampled_from([b"", b"\x80", b"\x80\x00\x01\x00", b"\x80\x03", b"\x08"]))
def test_any_bytes_are_a_row_or_undecodable(data: bytes, head: bytes) -> None:
    with contextlib.suppress(Undecodable):
        fields = row.split(head + data)
        for column_id in fields.cells:
            for kind in Kind:
                with contextlib.suppress(Undecodable):
                    fields.stored(column_id, kind)


@given(ROWS, st.data())
def test_a_damaged_row_is_read_or_undecodable(
    columns: dict[int, tuple[Kind, row.Stored]], data: st.DataObject
) -> None:
    value = bytearray(row.encode_v2([(i, kind, v) for i, (kind, v) in columns.items()]))
    value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Undecodable):
        row.split(bytes(value[: data.draw(st.integers(0, len(value)))]))


def test_a_cut_row_is_undecodable() -> None:
    value = row.encode_v2([(1, Kind.INT, 1), (2, Kind.BYTES, b"abc")])
    for size in range(len(value)):
        with pytest.raises(Undecodable):
            row.split(value[:size])


def test_a_value_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(InvalidInput):
        row.encode_v2([(1, Kind.INT, b"x")])

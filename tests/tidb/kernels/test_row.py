"""Row kernels against the plain record decoder, on good rows, on damaged ones and on anything at all.

Kernels check no bounds but their own, so a mistake is a crash: damaged rows are decoded in a child process,
from buffers that end right before a page that nobody may touch (`row_fuzz`).
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden_folder import count
from tests.mounter.golden_rows import CASES, golden_rows
from tests.tidb import row_fuzz
from tests.tidb.row_fuzz import KernelDecoder, plain_one
from tidegate.errors import Undecodable
from tidegate.model.block import OP_PUT
from tidegate.model.schema import Kind
from tidegate.tidb import row
from tidegate.tidb.kernels import row as row_kernels
from tidegate.tidb.types import decimal

DECODER = KernelDecoder()
HEADS = [b"", b"\x80", b"\x80\x00\x01\x00\x00\x00\x02\x04\x00", b"\x80\x01\x01\x00", b"\x80\x02", b"\x08\x04"]


def test_golden_rows_decode_to_the_plain_values_without_any_fault() -> None:
    rng = random.Random(1)
    for case in CASES:
        rows = golden_rows(case)
        for one in rng.sample(rows, min(8, len(rows))):
            assert DECODER.shown(one) == (0, plain_one(one)), one.entry
            count("rows", "row changes, kernel at the end of memory")


def test_damaged_rows_are_refused_or_read_as_the_plain_decoder_reads_them() -> None:
    row_kernels.warm()
    found = row_fuzz.run(seed=20261121, number=3000)
    assert found.wrong == []
    assert found.inputs == found.compared == 3000
    assert found.refused > 500
    assert found.kernel_only < found.refused / 20


@given(st.binary(max_size=120), st.sampled_from(HEADS), st.sampled_from(CASES), st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_bytes_are_refused_or_read_as_the_plain_decoder_reads_them(
    data: bytes, head: bytes, case: str, old: bool
) -> None:
    golden = golden_rows(case)[0]
    made = head + data or b"\0"
    entry = golden.entry._replace(**{"old_value" if old else "value": made})
    changed = golden._replace(entry=entry)
    fault, images = DECODER.shown(changed)
    plain = plain_one(changed)
    if isinstance(plain, Undecodable):
        assert fault
        assert plain.where.startswith(golden.table.name)
    else:
        assert fault or images == plain


@st.composite
def decimal_cells(draw: st.DrawFn) -> bytes:
    """A decimal of any precision and fraction as a row stores it; often with a byte changed or missing."""
    precision = draw(st.integers(1, 81))
    frac = draw(st.integers(0, precision))
    digits = str(draw(st.integers(0, 10**precision - 1))).zfill(precision + 1)
    text = digits[: len(digits) - frac] + ("." + digits[len(digits) - frac :] if frac else "")
    cell = bytearray(decimal.encode(draw(st.sampled_from(["", "-"])) + text, precision, frac))
    match draw(st.sampled_from(["whole", "byte", "cut", "longer"])):
        case "byte":
            cell[draw(st.integers(0, len(cell) - 1))] = draw(st.integers(0, 255))
        case "cut":
            del cell[draw(st.integers(0, len(cell) - 1)) :]
        case "longer":
            cell += draw(st.binary(min_size=1, max_size=5))
    return bytes(cell)


@given(decimal_cells())
@settings(max_examples=400, deadline=None)
def test_a_decimal_is_refused_or_read_as_the_plain_decoder_reads_it(cell: bytes) -> None:
    golden = golden_rows("types_decimals_small")[0]
    column = next(one for one in golden.table.columns if one.kind is Kind.DECIMAL)
    value = row.encode_v2([(column.id, Kind.DECIMAL, cell)])
    made = golden._replace(entry=golden.entry._replace(op=OP_PUT, value=value, old_value=b""))
    fault, images = DECODER.shown(made)
    plain = plain_one(made)
    assert bool(fault) is isinstance(plain, Undecodable), (cell.hex(), fault, plain)
    assert fault or images == plain

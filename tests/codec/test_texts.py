"""Texts of every length, with a character that needs an escape at every place: kernels read them by words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.codec.cells import block_of
from tests.contracts.codec_rows import messages_of
from tests.guarded import Guarded
from tidegate.codec.blocks import encode_block
from tidegate.codec.registry import codec_options, encoder
from tidegate.kernel import PAD, buffer
from tidegate.model.cells import Extent, take
from tidegate.model.row import RowChange
from tidegate.tidb.table_info import table_schema

BUILD_MS = 1_795_246_227_000
COLUMNS = [
    {
        "id": number, "name": {"O": name}, "offset": number - 1, "state": 5,
        "type": {"Tp": code, "Flag": flag, "Flen": 15, "Decimal": 0, "Charset": charset, "Elems": None},
    }
    for number, (name, code, flag, charset) in enumerate([("id", 8, 3, "binary"), ("t", 15, 0, "utf8mb4")], 1)
]  # fmt: skip
TABLE = table_schema("bench", {"id": 100, "name": {"O": "texts"}, "pk_is_handle": True, "cols": COLUMNS}, 1)
LONGEST = 75
"""Two wide words of 32 bytes, a word of 8, and some more bytes."""
SPECIAL = [b'"', b"\\", b"&", b"<", b">", b"\n", b"\x08", b"\x00", b"\x1f", "é".encode(), "数".encode()]
SPECIAL += ["\u2028".encode(), "😀".encode(), b"\xff", "数".encode()[:2]]
# The limits of the characters that a kernel takes as they are by their first bytes, and their neighbours.
SPECIAL += [character.encode() for character in "\x80\u07ff\u0800\u2fff\u3000\ucfff\ud7ff\ue000\uffff"]
SPECIAL += [b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf0\x8f\xbf\xbf", b"\x80", "é数".encode()[:3]]
PLAIN = b" !#$%'()*+,-./019:;=?@AMZ[]^_`az{|}~\x7f"
"""Among them the neighbours of all characters that need an escape."""


def texts() -> Iterator[bytes]:
    """Each length without an escape, then each special character at each place of texts of some lengths."""
    endless = PLAIN * 4
    for length in range(LONGEST + 1):
        yield endless[length : 2 * length]
    for special in SPECIAL:
        for before in range(LONGEST):
            # The number of bytes behind it varies, too: they may end anywhere in a word.
            yield endless[:before] + special + endless[before : before + (5 * before + len(special)) % 41]
    yield from (special * 12 for special in SPECIAL)


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json", "simple"])
def test_any_text_is_written_as_the_plain_encoder_does(protocol: str) -> None:
    """Both flavours of JSON: Go's encoding/json, and easyjson."""
    options = codec_options({"protocol": protocol})
    rows = [RowChange(TABLE, 9, 8, 100, i, None, (i, text)) for i, text in enumerate(texts(), 1)]
    found = encode_block(block_of(rows), np.zeros(len(rows), dtype=np.int32), options, BUILD_MS)
    assert [one for _, one in messages_of(found)] == encoder(options).encode_rows(rows, BUILD_MS)


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_a_text_at_the_end_of_memory_is_written_as_any_other(protocol: str) -> None:
    """A kernel reads 32 bytes of a shorter text if its page has them, so nothing after the page is read."""
    options = codec_options({"protocol": protocol})
    some = [b"x" * size for size in range(1, 34)] + [b"x" * 9 + one + b"y" * 3 for one in SPECIAL] + SPECIAL
    # Most is read if the last of 32 bytes begins an escaped or wide character: 32 bytes behind it are copied.
    some += [b"x" * 31 + one + b"y" * behind for one in SPECIAL for behind in range(40)]
    rows = [RowChange(TABLE, 9, 8, 100, i, None, (i, text)) for i, text in enumerate(some, 1)]
    block, rooms = block_of(rows), [Guarded(text) for text in some]
    block.new.words[:, 1] = [room.address for room in rooms]
    found = encode_block(block, np.zeros(len(rows), dtype=np.int32), options, BUILD_MS)
    assert [one for _, one in messages_of(found)] == encoder(options).encode_rows(rows, BUILD_MS)


@pytest.mark.parametrize("extent", [None, Extent(100, 4000)], ids=["unknown", "known"])
def test_nothing_is_written_behind_a_buffer_whatever_its_size(extent: Extent | None) -> None:
    """The kernel asks first whether the largest texts of the block fit, and only then those of the row."""
    options, zeros = codec_options({"protocol": "canal-json"}), np.zeros(20, dtype=np.int32)
    rows = [RowChange(TABLE, 9, 8, 100, i, (i, b"<" * 100), (i, b"<" * 100)) for i in range(20)]
    block, wanted = replace(block_of(rows), extent=extent), encoder(options).encode_rows(rows, BUILD_MS)
    memory = np.full(1 << 16, 7, dtype=np.uint8)
    for size in range(PAD, 1 << 15, 61):
        found = encode_block(block, zeros, options, BUILD_MS, lambda asked, size=size: memory[:size])
        assert [one for _, one in messages_of(found)] == wanted
        assert (memory[size:] == 7).all()


def test_a_few_rows_of_a_block_get_no_memory_for_its_largest_row() -> None:
    """A block with alignment marks is encoded in many parts, and their memory is held until all are done."""
    options, asked = codec_options({"protocol": "canal-json"}), list[int]()
    rows = [RowChange(TABLE, 9, 8, 100, i, None, (i, b"a")) for i in range(20)]
    block = replace(block_of(rows), extent=Extent(6 << 20, 7 << 20))

    def taken(size: int) -> np.ndarray:
        asked.append(size)
        return buffer(size)

    for row in range(20):
        encode_block(take(block, np.array([row])), np.zeros(1, dtype=np.int32), options, BUILD_MS, taken)
    assert sum(asked) < 1 << 20

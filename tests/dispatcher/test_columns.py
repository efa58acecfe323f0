from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.codec.cells import block_of
from tests.filter.tables import NOT_NULL, PRIMARY, column, index, row_of, table
from tidegate.codec.blocks import encode_block
from tidegate.codec.registry import codec_options, encoder
from tidegate.config.settings import ColumnSelector
from tidegate.consumer.table.definition import from_info
from tidegate.dispatcher.columns import ColumnSelectors
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.cells import Extent
from tidegate.model.ddl import DdlEvent
from tidegate.model.row import RowChange
from tidegate.mounter.rows import rows_of

WIDE = table(
    [
        column("secret", 15, flen=9, collate="utf8mb4_bin"),
        column("id", 3, flag=NOT_NULL | PRIMARY),
        column("Name", 15, flen=9, collate="utf8mb4_bin"),
        column("uk", 3),
        column("note", 252, flen=-1, collate="utf8mb4_bin"),
    ],
    [index("uk", [3])],
    pk_is_handle=True,
)
NARROW = table(
    [
        column("id", 3, flag=NOT_NULL | PRIMARY),
        column("Name", 15, flen=9, collate="utf8mb4_bin"),
        column("uk", 3),
    ],
    [index("uk", [2])],
    pk_is_handle=True,
)
PICKY = ColumnSelectors([ColumnSelector(("test.*",), ("*", "!SECRET", "!no*"))])


def changes() -> list[RowChange]:
    old = {"secret": b"s1", "id": 1, "Name": b"a", "uk": None, "note": b"n"}
    new = {"secret": b"s2", "id": 1, "Name": b"b", "uk": 3, "note": b"m"}
    return [row_of(WIDE, old), row_of(WIDE, new, old), row_of(WIDE, None, new)]


def narrowed(row: RowChange) -> RowChange:
    images = [None if image is None else (image[1], image[2], image[3]) for image in (row.old, row.new)]
    return replace(row, table=NARROW, old=images[0], new=images[1])


@pytest.mark.parametrize("protocol", ["open-protocol", "canal-json"])
def test_what_is_encoded_is_the_narrower_row(protocol: str) -> None:
    options = codec_options({"protocol": protocol})
    block = PICKY.of_block(block_of(changes()))
    wanted = encoder(options).encode_rows([narrowed(row) for row in changes()])
    found = encode_block(block, np.zeros(3, np.int32), options)
    values = [
        bytes(found.data[at : at + size])
        for at, size in zip(found.value_start.tolist(), found.value_length.tolist(), strict=True)
    ]
    assert values == [message.value for message in wanted]
    assert [row.new for row in rows_of(block)] == [narrowed(row).new for row in changes()]


def test_columns_that_are_not_sent_do_not_count_among_the_bytes_of_a_block() -> None:
    block = replace(block_of(changes()), extent=Extent(1000, 1 << 30))
    assert PICKY.of_block(block).extent is None


def test_a_selected_table_is_made_once_and_others_are_left_alone() -> None:
    assert PICKY.of_table(WIDE) is PICKY.of_table(WIDE)
    other = replace(WIDE, schema="other")
    block = replace(block_of(changes()), table=other)
    assert PICKY.of_table(other) is other
    assert PICKY.of_block(block) is block
    assert not ColumnSelectors([])


def test_the_first_selector_that_matches_applies() -> None:
    both = ColumnSelectors([ColumnSelector(("*.t",), ("*", "!note")), ColumnSelector(("*.*",), ("id", "uk"))])
    assert [c.name for c in both.of_table(WIDE).columns] == ["secret", "id", "Name", "uk"]


@pytest.mark.parametrize(("columns", "key"), [(("*", "!id"), "id"), (("id", "name"), "uk"), ((), "id")])
def test_a_key_that_would_not_travel_is_refused(columns: tuple[str, ...], key: str) -> None:
    selectors = ColumnSelectors([ColumnSelector(("*.*",), columns)])
    with pytest.raises(InvalidInput, match=f"ErrColumnSelectorFailed.*column: {key}"):
        selectors.of_table(WIDE)
    with pytest.raises(Fatal, match=f"column: {key}"):
        selectors.of_block(block_of(changes()))


def test_a_pattern_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unexpected special character"):
        ColumnSelectors([ColumnSelector(("*.*",), ("a.b",))])


def test_targets_learn_only_of_columns_that_travel() -> None:
    event = DdlEvent(1, 0, 1, 2, 3, "create table t", "test", "t", "test", "t", 1, None, WIDE.info, (), ())
    sent = PICKY.of_event(event)
    assert sent.after is not None
    assert [c.name for c in from_info("test", sent.after, 2).columns] == ["id", "Name", "uk"]
    assert from_info("test", sent.after, 2).keys == ("id",)
    assert sent.query == event.query
    schema_event = replace(event, table="", old_table="", after=None)
    assert PICKY.of_event(schema_event) is schema_event

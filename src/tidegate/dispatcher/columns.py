"""Which columns are sent: the column selectors of one changefeed (docs/filters.md).

The first selector that matches a table applies. The columns that it leaves out are removed from blocks before
these are dispatched and encoded, and from the definitions that accompany DDL events, so that a target never
sees them. Columns of a primary or unique key must stay: without them the target could not find a row again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from tidegate.config.settings import ColumnSelector
from tidegate.errors import Fatal, InvalidInput
from tidegate.model.cells import Image, RowBlock, stride_for
from tidegate.model.ddl import DdlEvent
from tidegate.model.schema import TableSchema
from tidegate.tidb.table_filter import ColumnFilter, TableFilter

KEY_FLAGS: Final = 2 | 16
"""TiCDC's handle key and unique key flags."""
_ABSENT: Final = 0
"""TiDB's state of a column that no statement can see."""


class _Selected(NamedTuple):
    """A table reduced to some of its columns, and their positions in the full table."""

    table: TableSchema
    kept: tuple[int, ...]


class ColumnSelectors:
    """Selectors in file order. Raises InvalidInput for a matcher or column pattern that cannot be parsed."""

    def __init__(self, selectors: Sequence[ColumnSelector], *, case_sensitive: bool = False) -> None:
        self._selectors = [
            (TableFilter(selector.matcher, case_sensitive), ColumnFilter(selector.columns))
            for selector in selectors
        ]
        self._known: WeakKeyDictionary[TableSchema, _Selected | None] = WeakKeyDictionary()

    def __bool__(self) -> bool:
        return bool(self._selectors)

    def of_table(self, table: TableSchema) -> TableSchema:
        """The table with the columns that are sent; the same object if all are. InvalidInput if a key column
        would be left out.
        """
        selected = self._selected(table)
        return table if selected is None else selected.table

    def _selected(self, table: TableSchema) -> _Selected | None:
        """The reduced table; None if all columns are sent. The value must not refer to the key `table`
        itself, otherwise the weak dictionary would never release it.
        """
        if table not in self._known:
            kept = self._kept(table)
            whole = len(kept) == len(table.columns)
            self._known[table] = None if whole else _Selected(_narrowed(table, kept), kept)
        return self._known[table]

    def _kept(self, table: TableSchema) -> tuple[int, ...]:
        columns = self._columns(table.schema, table.table)
        if columns is None:
            return tuple(range(len(table.columns)))
        kept = tuple(at for at, column in enumerate(table.columns) if columns.matches(column.name))
        for at, column in enumerate(table.columns):
            if at not in kept and table.ticdc_flags[at] & KEY_FLAGS:
                raise InvalidInput(
                    "[CDC:ErrColumnSelectorFailed]primary key or unique key cannot be filtered out, "
                    f"table: {table.name}, column: {column.name}",
                    where="sink.column-selectors",
                    why="rows are found by their keys downstream",
                    fix=f'let the selector of this table keep it: add "{column.name}" to columns',
                )
        return kept

    def _columns(self, schema: str, table: str) -> ColumnFilter | None:
        return next((columns for matcher, columns in self._selectors if matcher.matches(schema, table)), None)

    def of_block(self, block: RowBlock) -> RowBlock:
        """The block without the columns that are not sent. Fatal if a key column would be left out now."""
        try:
            selected = self._selected(block.table)
        # The column was no key when the changefeed was created. A DDL has changed that since, and the feed
        # must stop.
        except InvalidInput as error:
            raise Fatal(error.what, where=error.where, why=error.why, fix=error.fix) from None
        if selected is None:
            return block
        new, old = (_columns_of(image, selected.kept) for image in (block.new, block.old))
        # The extent counts the columns that are not sent, which may have most of the bytes.
        return replace(block, table=selected.table, new=new, old=old, extent=None)

    def of_event(self, event: DdlEvent) -> DdlEvent:
        """The event with the definitions reduced to the columns that a target gets."""
        if not self._selectors or not event.table:
            return event
        before = self._definition(event.before, event.old_schema, event.old_table)
        after = self._definition(event.after, event.schema, event.table)
        return replace(event, before=before, after=after)

    def _definition(self, info: dict[str, Any] | None, schema: str, table: str) -> dict[str, Any] | None:
        columns = self._columns(schema, table)
        if info is None or columns is None:
            return info
        # Hidden instead of removed, because indexes name columns by their places.
        hidden = [
            entry if columns.matches(entry["name"]["O"]) else entry | {"state": _ABSENT}
            for entry in info.get("cols") or []
        ]
        return info | {"cols": hidden}


def _narrowed(table: TableSchema, kept: tuple[int, ...]) -> TableSchema:
    """The table with only the columns in `kept`, which include all key columns."""
    position = {old: new for new, old in enumerate(kept)}
    return replace(
        table,
        columns=tuple(table.columns[at] for at in kept),
        ticdc_flags=tuple(table.ticdc_flags[at] for at in kept),
        handle_key=tuple(position[at] for at in table.handle_key),
        primary_key=tuple(position[at] for at in table.primary_key),
        handle_columns=tuple(position[at] for at in table.handle_columns),
    )


def _columns_of(image: Image, kept: tuple[int, ...]) -> Image:
    """The given columns of an image, as new contiguous arrays with their own stride."""
    # Copied, because kernels find a cell by its row and the stride.
    stride = stride_for(len(kept))
    words = np.empty((len(image.words), stride), image.words.dtype)
    sizes = np.empty((len(image.sizes), stride), image.sizes.dtype)
    words[:, : len(kept)], sizes[:, : len(kept)] = image.words[:, kept], image.sizes[:, kept]
    return Image(words, sizes)

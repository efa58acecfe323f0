"""Rows of which only the handle key is on the topic, read from upstream as they were."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from typing import Any

import orjson
import pytest

from tests.consumer.test_claims import Memory, batch_of, shown
from tests.small_tables import CODE, ID, SCHEMA_ID, SmallTables, number, text
from tidegate.codec import registry
from tidegate.codec.base import Batch, Decoded
from tidegate.codec.decode import decoder
from tidegate.codec.large import CLAIM_CHECK, HANDLE_KEY_ONLY
from tidegate.consumer.reading.claims import ClaimReader
from tidegate.consumer.reading.handle_keys import RowReader
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.model.row import RowChange, Value
from tidegate.model.schema import TableSchema
from tidegate.tidb import index, keys, record
from tidegate.tidb.table_info import table_schema
from tidegate.workload.definitions import table_info

OPEN = registry.codec_options({"protocol": "open-protocol"})
UPDATED = registry.codec_options({"protocol": "open-protocol", "only-output-updated-columns": True})
CANAL = registry.codec_options({"protocol": "canal-json", "enable-tidb-extension": True})
SIMPLE = registry.codec_options({"protocol": "simple"})
every_protocol = pytest.mark.parametrize(
    "options", [OPEN, UPDATED, CANAL, SIMPLE], ids=["open", "open, updated columns only", "canal", "simple"]
)
BIG, SMALL, OTHER = b"b" * 4000, b"s", b"o" * 5000
LOOSE_ID = SCHEMA_ID + 50


class Store:
    """Three tables: an integer handle, a clustered text, and a text with an index and a row id."""

    def __init__(self, pd: PdClient) -> None:
        self._pd = pd
        columns = [CODE, text("body"), number("n")]
        self._small = SmallTables(pd, "s", {"ints": [ID, text("body"), number("n")], "codes": columns})
        info = table_info(LOOSE_ID, "loose", columns, ["code"]) | {"is_common_handle": False}
        self._write([(keys.meta_hash(b"DB:%d" % SCHEMA_ID, b"Table:%d" % LOOSE_ID), orjson.dumps(info))], [])
        self.tables: dict[str, TableSchema] = {
            **self._small.tables,
            "loose": table_schema("s", info, 1),
        }

    def change(self, name: str, old: tuple[Value, ...] | None, new: tuple[Value, ...] | None) -> RowChange:
        """A committed change, and what a changefeed would say of it."""
        table = self.tables[name]
        puts = self._pairs(table, new) if new is not None else []
        gone = [key for key, _ in self._pairs(table, old)] if old is not None and new is None else []
        ts = self._write(puts, gone)
        handle = new or old
        assert handle is not None
        row_id = int(handle[0]) if name == "ints" and isinstance(handle[0], int) else 0
        return RowChange(table, ts, ts - 1, table.id, 7 if name == "loose" else row_id, old, new)

    def _pairs(self, table: TableSchema, row: tuple[Value, ...]) -> list[tuple[bytes, bytes]]:
        if table.handle_columns:
            return [record.encode(table, row)]
        pair = record.encode(table, row, row_id=7)
        return [pair, index.encode(table, table.indexes[0], row, pair[0])]

    def _write(self, puts: list[tuple[bytes, bytes]], deletes: list[bytes]) -> int:
        transaction = Transaction(self._pd)
        for key, value in puts:
            transaction.put(key, value)
        for key in deletes:
            transaction.delete(key)
        return transaction.commit()


def changes(store: Store) -> list[RowChange]:
    """An insert, two updates and a delete of a row of each table; most do not fit a small message."""
    found = []
    for name, key in (("ints", 5), ("codes", "kéy".encode()), ("loose", b"k")):
        rows: list[tuple[Value, ...]] = [(key, BIG, 1), (key, SMALL, 2), (key, OTHER, None)]
        for old, new in zip([None, *rows], [*rows, None], strict=True):
            found.append(store.change(name, old, new))
    return found


def small(options: Any, way: str = HANDLE_KEY_ONLY) -> Any:
    return replace(options, large_message_handle_option=way, max_message_bytes=1000, claims=Memory())


def read(batch: Batch, options: Any, upstream: Any) -> Decoded:
    large = registry.codec_of(options).large
    assert large is not None
    inner = decoder(options)
    return ClaimReader(None, inner, options, large, upstream).resolve(inner.decode(batch))


def shown_by(options: Any, rows: list[RowChange]) -> list[dict[str, Any]]:
    return shown(decoder(options).decode(batch_of(rows, options)))


@every_protocol
@pytest.mark.parametrize("way", [HANDLE_KEY_ONLY, CLAIM_CHECK])
def test_rows_come_as_if_they_had_fitted(pd: PdClient, options: Any, way: str) -> None:
    """Also claimed ones, when the storage is not known."""
    store = Store(pd)
    rows = changes(store)
    for table in store.tables:
        own = [row for row in rows if row.table.table == table]
        reduced = small(options, way)
        assert decoder(reduced).decode(batch_of(own, reduced)).bad
        decoded = read(batch_of(own, reduced), reduced, RowReader(pd, UTC))
        assert not decoded.bad
        assert shown(decoded) == shown_by(options, own)


@every_protocol
def test_a_row_missing_upstream_stays_bad_with_its_ts_and_the_reason(pd: PdClient, options: Any) -> None:
    store = Store(pd)
    real = store.change("ints", None, (5, BIG, 1))
    reduced = small(options)
    name = {"name": {"O": "other", "L": "other"}}
    other = replace(real.table, table="other", info=real.table.info | name)
    for wrong in (
        replace(real, new=(6, BIG, 1)),
        replace(real, commit_ts=real.commit_ts - 1),
        replace(real, table=other),
        replace(real, old=(5, BIG, 2)),
    ):
        decoded = read(batch_of([wrong], reduced), reduced, RowReader(pd, UTC))
        if wrong.old is not None and options is UPDATED:
            # Such an update looks like an insert: there is nothing it could lack.
            assert not decoded.bad
            continue
        (bad,) = decoded.bad
        assert bad.reduced_ts == wrong.commit_ts
        assert "only its key is; upstream has no" in bad.why
        assert not decoded.rows


def test_the_definition_is_that_of_just_before_the_commit(pd: PdClient) -> None:
    """A column that was added since is not in the row, and would be another table to the reader."""
    store = Store(pd)
    row = store.change("codes", None, (b"k", BIG, 1))
    table = store.tables["codes"]
    added = table_info(table.id, "codes", [CODE, text("body"), number("n"), number("later")], ["code"])
    store._write([(keys.meta_hash(b"DB:%d" % SCHEMA_ID, b"Table:%d" % table.id), orjson.dumps(added))], [])
    reduced = small(CANAL)
    decoded = read(batch_of([row], reduced), reduced, RowReader(pd, UTC))
    assert shown(decoded) == shown_by(CANAL, [row])

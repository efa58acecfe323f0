"""The statements that an initial load sends before a table's rows, and the events they come in."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tidegate.codec.formats.ddl_header import decode, encode
from tidegate.config.reading import merge_config
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.filter.feed import FeedFilter
from tidegate.mounter.table_version import Parsed, TableVersion
from tidegate.server.delivery.create_statement import create_schema, create_table
from tidegate.server.delivery.initial_load import definitions
from tidegate.workload.bank_model import ACCOUNTS, TRANSFERS
from tidegate.workload.definitions import table_info

URI = parse_sink_uri("kafka://127.0.0.1:1/t?protocol=open-protocol")


def version(info: dict[str, Any], schema: str = "bank") -> TableVersion:
    return TableVersion.of(2, schema, info, 5, Parsed())


def accounts() -> dict[str, Any]:
    return table_info(100, "accounts", ACCOUNTS, ["id"])


def test_a_clustered_integer_key() -> None:
    assert create_table(version(accounts())) == (
        "CREATE TABLE IF NOT EXISTS `bank`.`accounts` (`id` bigint(20) NOT NULL, "
        "`owner` varchar(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, "
        "`balance` decimal(20,4) NOT NULL, "
        "`note` varchar(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, `updated` datetime, "
        "PRIMARY KEY (`id`) /*T![clustered_index] CLUSTERED */) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin"
    )


def test_a_key_of_several_columns() -> None:
    text = create_table(version(table_info(101, "transfers", TRANSFERS, ["region", "id"])))
    assert "PRIMARY KEY (`region`, `id`) /*T![clustered_index] CLUSTERED */" in text


@pytest.mark.parametrize(
    ("column", "change", "expected"),
    [
        ("balance", {"default": "0.5", "comment": "it's"}, "NOT NULL DEFAULT '0.5' COMMENT 'it''s'"),
        ("updated", {"default": "CURRENT_TIMESTAMP"}, "`updated` datetime DEFAULT CURRENT_TIMESTAMP"),
        ("note", {"default": "uuid()", "default_is_expr": True}, "DEFAULT (uuid())"),
        ("note", {"generated_expr_string": "`owner`", "generated_stored": True}, "AS (`owner`) STORED"),
    ],
)
def test_defaults_and_comments(column: str, change: dict[str, Any], expected: str) -> None:
    info = copy.deepcopy(accounts())
    entry = next(entry for entry in info["cols"] if entry["name"]["O"] == column)
    entry.update(change)
    assert expected in create_table(version(info))


def test_public_indexes_over_shown_columns_only() -> None:
    info = copy.deepcopy(accounts())
    index: dict[str, Any] = {
        "id": 1,
        "idx_name": {"O": "by`note", "L": "by`note"},
        "state": 5,
        "is_unique": True,
        "is_primary": False,
    }
    index["idx_cols"] = [{"name": {"O": "note", "L": "note"}, "offset": 3, "length": 10}]
    hidden = copy.deepcopy(index) | {"state": 1, "id": 2, "idx_name": {"O": "coming", "L": "coming"}}
    info["index_info"] = [index, hidden]
    text = create_table(version(info))
    assert "UNIQUE KEY `by``note` (`note`(10))" in text
    assert "coming" not in text


def test_schemas_come_before_tables_just_below_the_load() -> None:
    tables = [version(table_info(100 + n, f"t{n}", ACCOUNTS, ["id"]), f"s{n % 2}") for n in range(3)]
    config = merge_config({"filter": {"rules": ["s*.*", "!s1.*"]}}, URI)
    events = definitions(tables, FeedFilter.of(config), 1000)
    assert [(e.seq, e.finished_ts, e.schema, e.table) for e in events] == [
        (0, 999, "s0", ""),
        (1, 999, "s0", "t0"),
        (2, 999, "s0", "t2"),
    ]
    assert events[0].query == create_schema("s0") == "CREATE DATABASE IF NOT EXISTS `s0`"
    assert events[1].after is not None
    assert events[1].after["id"] == 100
    assert decode(encode(events[1])) == events[1]

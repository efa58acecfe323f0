"""The definition of mysql.tidb_ddl_job, for an upstream that TiDB has not yet initialized.

A changefeed may start before the first TiDB server of a cluster. The table from which all DDL is read has had
this definition since TiDB 6.2, so it need not be looked up.
"""

from __future__ import annotations

from typing import Any, Final

from tidegate.tidb.keys import DDL_JOB_TABLE_ID

_COLUMNS: Final = (
    # name, MySQL type, flags, length, charset
    ("job_id", 8, 4099, 20, "binary"),
    ("reorg", 3, 0, 11, "binary"),
    ("schema_ids", 250, 0, 16777215, "utf8mb4"),
    ("table_ids", 250, 0, 16777215, "utf8mb4"),
    ("job_meta", 251, 128, 4294967295, "binary"),
    ("type", 3, 0, 11, "binary"),
    ("processing", 3, 0, 11, "binary"),
)


def _column(offset: int, name: str, kind: int, flag: int, length: int, charset: str) -> dict[str, Any]:
    collate = "binary" if charset == "binary" else "utf8mb4_bin"
    of_type = {"Tp": kind, "Flag": flag, "Flen": length, "Decimal": 0, "Charset": charset, "Collate": collate}
    return {
        "id": offset + 1,
        "name": {"O": name, "L": name},
        "offset": offset,
        "state": 5,
        "type": of_type,
        "version": 2,
    }


TABLE_INFO: Final[dict[str, Any]] = {
    "id": DDL_JOB_TABLE_ID,
    "name": {"O": "tidb_ddl_job", "L": "tidb_ddl_job"},
    "charset": "utf8mb4",
    "collate": "utf8mb4_bin",
    "state": 5,
    "pk_is_handle": True,
    "cols": [_column(i, *column) for i, column in enumerate(_COLUMNS)],
}
"""TableInfo JSON, in the form that `table_info.table_schema` parses."""

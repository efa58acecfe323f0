"""Definitions of schemas, tables and columns as TiDB stores them: DBInfo, TableInfo, ColumnInfo. Pure.

Members and their order are those of TiDB's TableInfo version 5 (golden change logs).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

NOT_NULL: Final = 1
PRIMARY: Final = 2
AUTO_INCREMENT: Final = 512
NO_DEFAULT: Final = 4096
BINARY: Final = 128


@dataclass(frozen=True, slots=True)
class ColumnSpec:
    """A column as `create table` gives it; `tp` is MySQL's type code.

    `default` is as TiDB stores it. For "CURRENT_TIMESTAMP", existing rows get the start_ts of the job.
    """

    name: str
    tp: int
    flen: int
    decimal: int = 0
    flag: int = 0
    text: bool = False
    """Whether it has the collation utf8mb4_bin; other columns are `binary`."""
    default: str | None = None


def db_info(schema_id: int, name: str) -> dict[str, Any]:
    """DBInfo, as stored under `DBs`."""
    return {
        "id": schema_id,
        "db_name": stored_name(name),
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "Deprecated": {},
        "state": 5,
        "policy_ref_info": None,
    }


def table_info(table_id: int, name: str, columns: list[ColumnSpec], primary: list[str]) -> dict[str, Any]:
    """TableInfo of a table with a clustered primary key on `primary`."""
    by_name = {column.name: at for at, column in enumerate(columns)}
    int_handle = len(primary) == 1 and not columns[by_name[primary[0]]].text
    indexes = None if int_handle else [_primary_index(primary, by_name)]
    return {
        "id": table_id,
        "name": stored_name(name),
        "charset": "utf8mb4",
        "collate": "utf8mb4_bin",
        "cols": [column_info(at + 1, at, column) for at, column in enumerate(columns)],
        "index_info": indexes,
        "constraint_info": None,
        "fk_info": None,
        "state": 5,
        "pk_is_handle": int_handle,
        "is_common_handle": not int_handle,
        "common_handle_version": 0 if int_handle else 1,
        "comment": "",
        "auto_inc_id": 0,
        "auto_id_cache": 0,
        "auto_rand_id": 0,
        "max_col_id": len(columns),
        "max_idx_id": 0 if int_handle else 1,
        "max_fk_id": 0,
        "max_cst_id": 0,
        "update_timestamp": 0,
        "ShardRowIDBits": 0,
        "max_shard_row_id_bits": 0,
        "auto_random_bits": 0,
        "auto_random_range_bits": 0,
        "pre_split_regions": 0,
        "partition": None,
        "compression": "",
        "view": None,
        "sequence": None,
        "Lock": None,
        "version": 5,
        "tiflash_replica": None,
        "is_columnar": False,
        "temp_table_type": 0,
        "cache_table_status": 0,
        "policy_ref_info": None,
        "stats_options": None,
        "exchange_partition_info": None,
        "ttl_info": None,
        "revision": 0,
    }


def column_info(column_id: int, offset: int, column: ColumnSpec) -> dict[str, Any]:
    """ColumnInfo of a public column."""
    charset, collate = ("utf8mb4", "utf8mb4_bin") if column.text else ("binary", "binary")
    return {
        "id": column_id,
        "name": stored_name(column.name),
        "offset": offset,
        "origin_default": None,
        "origin_default_bit": None,
        "default": column.default,
        "default_bit": None,
        "default_is_expr": False,
        "generated_expr_string": "",
        "generated_stored": False,
        "dependences": None,
        "type": {
            "Tp": column.tp,
            "Flag": column.flag,
            "Flen": column.flen,
            "Decimal": column.decimal,
            "Charset": charset,
            "Collate": collate,
            "Elems": None,
            "ElemsIsBinaryLit": None,
            "Array": False,
        },
        "state": 5,
        "comment": "",
        "hidden": False,
        "change_state_info": None,
        "version": 2,
    }


def _primary_index(primary: list[str], by_name: dict[str, int]) -> dict[str, Any]:
    return {
        "id": 1,
        "idx_name": {"O": "PRIMARY", "L": "primary"},
        "tbl_name": stored_name(""),
        "idx_cols": [{"name": stored_name(name), "offset": by_name[name], "length": -1} for name in primary],
        "state": 5,
        "backfill_state": 0,
        "comment": "",
        "index_type": 1,
        "is_unique": True,
        "is_primary": True,
        "is_invisible": False,
        "is_global": False,
        "mv_index": False,
        "vector_index": None,
        "inverted_index": None,
        "full_text_index": None,
        "condition_expr_string": "",
    }


def stored_name(name: str) -> dict[str, str]:
    """A name as TiDB stores it: as written, and in lower case."""
    return {"O": name, "L": name.lower()}

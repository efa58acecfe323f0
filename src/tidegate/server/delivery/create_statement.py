"""The statement that creates a table as its TableInfo says, which a load sends before the table's rows. Pure.

For targets that understand MySQL's language. It leaves out everything that rows do not depend on: virtual
columns (they are in no row) with the indexes over them, expression indexes, partitioning, foreign keys, and
TiDB's own attributes except whether the primary key is clustered.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from tidegate.codec.formats.mysql_type import compact_type
from tidegate.mounter.table_version import TableVersion

PUBLIC: Final = 5
NOT_NULL, PRIMARY, AUTO_INCREMENT, NO_DEFAULT, ON_UPDATE_NOW = 1, 2, 512, 4096, 8192
BIT: Final = 16
TIMES: Final = (7, 12)
"""The type codes of timestamp and datetime."""


def create_table(table: TableVersion) -> str:
    """`CREATE TABLE IF NOT EXISTS` with the public columns and indexes."""
    info, known = table.info(), {column.name: column for column in table.parsed().columns}
    entries = [entry for entry in info["cols"] if entry["name"]["O"] in known and not entry.get("hidden")]
    shown = {entry["name"]["O"] for entry in entries}
    lines = [_column(entry, compact_type(known[entry["name"]["O"]])) for entry in entries]
    if info.get("pk_is_handle"):
        keys = [entry["name"]["O"] for entry in entries if entry["type"]["Flag"] & PRIMARY]
        lines.append(f"PRIMARY KEY ({_named(keys)}) /*T![clustered_index] CLUSTERED */")
    clustered = bool(info.get("is_common_handle"))
    for index in info.get("index_info") or []:
        columns = [part["name"]["O"] for part in index["idx_cols"]]
        if index["state"] == PUBLIC and shown.issuperset(columns):
            lines.append(_index(index, clustered))
    name = f"{quoted(table.schema)}.{quoted(table.table)}"
    charset, collate = info.get("charset"), info.get("collate")
    options = (f" DEFAULT CHARSET={charset}" if charset else "") + (f" COLLATE={collate}" if collate else "")
    comment = f" COMMENT={_text(info['comment'])}" if info.get("comment") else ""
    return f"CREATE TABLE IF NOT EXISTS {name} (" + ", ".join(lines) + f"){options}{comment}"


def create_schema(schema: str) -> str:
    """`CREATE DATABASE IF NOT EXISTS`."""
    return f"CREATE DATABASE IF NOT EXISTS {quoted(schema)}"


def quoted(name: str) -> str:
    """A name in backticks."""
    return "`" + name.replace("`", "``") + "`"


def _named(names: list[str]) -> str:
    return ", ".join(map(quoted, names))


def _column(entry: dict[str, Any], kind: str) -> str:
    of_type = entry["type"]
    flag = of_type["Flag"]
    words = [quoted(entry["name"]["O"]), kind]
    if of_type["Charset"] not in ("", "binary") and of_type["Collate"]:
        words.append(f"CHARACTER SET {of_type['Charset']} COLLATE {of_type['Collate']}")
    if entry.get("generated_expr_string"):
        words.append(f"GENERATED ALWAYS AS ({entry['generated_expr_string']}) STORED")
    words += ["NOT NULL"] if flag & NOT_NULL else ["NULL"] if of_type["Tp"] == TIMES[0] else []
    words += ["AUTO_INCREMENT"] if flag & AUTO_INCREMENT else []
    words += _default(entry) if not entry.get("generated_expr_string") else []
    words += [f"COMMENT {_text(entry['comment'])}"] if entry.get("comment") else []
    return " ".join(words)


def _default(entry: dict[str, Any]) -> list[str]:
    flag, found, of_type = entry["type"]["Flag"], entry.get("default"), entry["type"]
    precision = f"({of_type['Decimal']})" if of_type["Tp"] in TIMES and of_type["Decimal"] > 0 else ""
    words = []
    if of_type["Tp"] == BIT and entry.get("default_bit"):
        words.append(f"DEFAULT 0x{base64.b64decode(entry['default_bit']).hex()}")
    elif isinstance(found, str) and found.upper() == "CURRENT_TIMESTAMP" and of_type["Tp"] in TIMES:
        words.append(f"DEFAULT CURRENT_TIMESTAMP{precision}")
    elif found is not None and entry.get("default_is_expr"):
        words.append(f"DEFAULT ({found})")
    elif found is not None:
        words.append(f"DEFAULT {_text(str(found))}")
    if flag & ON_UPDATE_NOW:
        words.append(f"ON UPDATE CURRENT_TIMESTAMP{precision}")
    return words


def _index(index: dict[str, Any], clustered: bool) -> str:
    parts = [
        quoted(part["name"]["O"]) + (f"({part['length']})" if part["length"] > 0 else "")
        for part in index["idx_cols"]
    ]
    listed = f"({', '.join(parts)})"
    if index["is_primary"]:
        return f"PRIMARY KEY {listed} /*T![clustered_index] {'CLUSTERED' if clustered else 'NONCLUSTERED'} */"
    return f"{'UNIQUE KEY' if index['is_unique'] else 'KEY'} {quoted(index['idx_name']['O'])} {listed}"


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"

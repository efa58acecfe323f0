"""Recorded change logs: the writes of a real TiDB while SQL ran, and the contents of its tables read by SQL.

The format is gzipped (or plain) JSON Lines in UTF-8, in commit order. Bytes are in lowercase hex; timestamps,
ids and sums are JSON integers up to 2^64-1. Line types: header, base, txn, rollback, ddl, snapshot. `load`
reads the logs, and a target is compared with a log's snapshot lines. `snapshot_diff` is pure.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from tidegate.errors import InvalidInput

OPS: Final = frozenset({"put", "insert", "delete", "lock", "check_not_exists"})

Cell = str | bytes | None
"""A text as in the text protocol; bytes for binary columns; None for NULL."""


@dataclass(frozen=True, slots=True)
class LogMutation:
    """The change of one key. `value` is empty for delete, lock and check_not_exists."""

    op: str
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """The first line."""

    name: str
    description: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Txn:
    """A committed transaction. A `base` line is a transaction with start_ts = commit_ts - 1 and only puts."""

    start_ts: int
    commit_ts: int
    primary: bytes
    mutations: tuple[LogMutation, ...]
    is_base: bool = False


@dataclass(frozen=True, slots=True)
class Rollback:
    """A transaction that was rolled back after a prewrite attempt. Some keys may never have been locked."""

    start_ts: int
    keys: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Ddl:
    """A finished DDL job. It follows the transaction that wrote it with state done."""

    commit_ts: int
    job_id: int
    query: str
    type_name: str
    schema_version: int


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """One table, read by SQL. Tables with more than 1500 rows have count, sum_crc32 and sample instead of
    rows.

    Row i of `sample` is row floor(i * count / len(sample)) in the order of the snapshot.
    """

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...] | None
    count: int
    sum_crc32: int
    sample: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class SnapshotLine:
    """The tables that SQL read in one transaction at `ts`. Keys of `tables` are "db.table"."""

    ts: int
    tables: dict[str, SnapshotTable]


Line = Header | Txn | Rollback | Ddl | SnapshotLine


def read_log(path: str | Path, *, until: int | None = None) -> Iterator[Line]:
    """The log's lines in order. Stops before the first transaction, DDL or snapshot above `until`.

    Rollbacks are at the place where they happened, so one with a start_ts above `until` may be included.

    Raises InvalidInput with file and line if it is not a change log.
    """
    for number, raw in enumerate(_raw_lines(Path(path)), 1):
        try:
            line = parse_line(raw)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise InvalidInput(
                "a line of a change log cannot be read",
                where=f"{path}, line {number}",
                why=f"{type(error).__name__}: {error}",
            ) from error
        if number == 1 and not isinstance(line, Header):
            raise InvalidInput(
                "a change log has no header", where=str(path), fix="write the header as its first line"
            )
        if until is not None and _ts_of(line) > until:
            return
        yield line


def count_transactions(path: str | Path, *, until: int | None = None) -> int:
    """The number of transactions that `read_log` would give, found by a fast scan. For progress bars."""
    count = 0
    for raw in _raw_lines(Path(path)):
        if raw.startswith((b'{"type":"txn"', b'{"type":"base"')):
            if until is not None and _commit_ts_at_front(raw) > until:
                break
            count += 1
    return count


def parse_line(raw: bytes) -> Line:
    """One JSON line as a typed record. Raises KeyError, TypeError or ValueError if it is malformed."""
    members = orjson.loads(raw)
    match members["type"]:
        case "txn":
            return Txn(
                members["start_ts"],
                members["commit_ts"],
                bytes.fromhex(members["primary"]),
                tuple(_mutation(m) for m in members["mutations"]),
            )
        case "base":
            mutations = tuple(_mutation(m) for m in members["mutations"])
            commit_ts = members["commit_ts"]
            return Txn(commit_ts - 1, commit_ts, mutations[0].key, mutations, is_base=True)
        case "rollback":
            return Rollback(members["start_ts"], tuple(bytes.fromhex(k) for k in members["keys"]))
        case "ddl":
            return Ddl(
                members["commit_ts"],
                members["job_id"],
                members["query"],
                members["type_name"],
                members["schema_version"],
            )
        case "snapshot":
            return SnapshotLine(members["ts"], {name: _table(t) for name, t in members["tables"].items()})
        case "header":
            return Header(members["name"], members.get("description", ""), members.get("settings", {}))
        case other:
            raise ValueError(f"unknown type {other!r}")


def sum_crc32(rows: Iterable[Sequence[Cell]]) -> tuple[int, int]:
    """The row count, and the sum modulo 2^64 of the CRC-32 of each row's cells joined by 0x1f
    (NULL is 0x00).
    """
    count = total = 0
    for row in rows:
        total += zlib.crc32(row_bytes(row))
        count += 1
    return count, total & ((1 << 64) - 1)


def row_bytes(row: Sequence[Cell]) -> bytes:
    """A row's bytes for its checksum, and for the order of rows in tables without a primary key."""
    return b"\x1f".join(_cell_bytes(cell) for cell in row)


def snapshot_diff(
    expected: SnapshotTable,
    rows: Iterable[Sequence[Cell]],
    *,
    columns: Sequence[str] | None = None,
    limit: int = 20,
) -> list[str]:
    """The differences of `rows` (in any order, cells in the columns' order) from the expected table.

    Returns at most about `limit` lines for people; empty: they are equal. For a big table it compares the row
    count and the sum of CRC-32, and checks that its sample rows are present. Cells may be str or UTF-8 bytes,
    and are compared as bytes.
    """
    findings: list[str] = []
    if columns is not None and tuple(columns) != expected.columns:
        findings.append(f"columns are {', '.join(columns)}; expected {', '.join(expected.columns)}")
        return findings
    found = Counter(row_bytes(row) for row in rows)
    wanted = Counter(row_bytes(row) for row in (expected.sample if expected.rows is None else expected.rows))
    if expected.rows is None:
        findings += _judge_sums(expected, found)
        wanted = Counter(dict.fromkeys(wanted, 1))
        extra: Counter[bytes] = Counter()
    else:
        extra = found - wanted
    findings += [f"missing: {_readable(row)}" for row in (wanted - found).elements()]
    findings += [f"too many: {_readable(row)}" for row in extra.elements()]
    if len(findings) > limit:
        return [*findings[:limit], f"... and {len(findings) - limit} more"]
    return findings


def _judge_sums(expected: SnapshotTable, found: Counter[bytes]) -> list[str]:
    count = sum(found.values())
    total = sum(zlib.crc32(row) * times for row, times in found.items()) & ((1 << 64) - 1)
    if count != expected.count:
        return [f"{count} rows; expected {expected.count}"]
    if total != expected.sum_crc32:
        return [f"sum of row CRC-32 is {total}; expected {expected.sum_crc32}"]
    return []


def _readable(row: bytes) -> str:
    cells = [
        "NULL" if cell == b"\x00" else cell.decode(errors="backslashreplace") for cell in row.split(b"\x1f")
    ]
    return " | ".join(cells)


def _cell_bytes(cell: Cell) -> bytes:
    if cell is None:
        return b"\x00"
    return cell.encode() if isinstance(cell, str) else cell


def _table(members: dict[str, Any]) -> SnapshotTable:
    rows = members.get("rows")
    kept = None if rows is None else tuple(_row(r) for r in rows)
    if kept is None:
        count, crc = members["count"], members["sum_crc32"]
    else:
        count, crc = sum_crc32(kept)
    sample = tuple(_row(r) for r in members.get("sample", ()))
    return SnapshotTable(tuple(members["columns"]), tuple(members["types"]), kept, count, crc, sample)


def _row(cells: list[Any]) -> tuple[Cell, ...]:
    return tuple(bytes.fromhex(c["hex"]) if isinstance(c, dict) else c for c in cells)


def _mutation(members: dict[str, str]) -> LogMutation:
    op = members["op"]
    if op not in OPS:
        raise ValueError(f"unknown operation {op!r}")
    return LogMutation(op, bytes.fromhex(members["key"]), bytes.fromhex(members["value"]))


def _ts_of(line: Line) -> int:
    match line:
        case Txn() | Ddl():
            return line.commit_ts
        case SnapshotLine():
            return line.ts
        case Rollback() | Header():
            return 0


def _commit_ts_at_front(raw: bytes) -> int:
    """The commit_ts from the first members of a raw line, without parsing the rest."""
    at = raw.index(b'"commit_ts":') + 12
    end = at
    while raw[end : end + 1].isdigit():
        end += 1
    return int(raw[at:end])


def _raw_lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(
            "a change log cannot be read",
            where=str(path),
            why=str(error),
            fix="give a .jsonl or .jsonl.gz file",
        ) from error

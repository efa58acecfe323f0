import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

import pytest

from tidegate.errors import InvalidInput
from tidegate.workload.changelog import (
    Cell,
    Ddl,
    Header,
    Rollback,
    SnapshotLine,
    SnapshotTable,
    Txn,
    count_transactions,
    parse_line,
    read_log,
    snapshot_diff,
    sum_crc32,
)

LOG = Path(__file__).parent.parent / "golden/changelog/bank.jsonl.gz"


def test_the_whole_log_is_read_with_exact_timestamps() -> None:
    lines = list(read_log(LOG))
    counts = {
        kind: sum(isinstance(line, kind) for line in lines)
        for kind in (Header, Txn, Rollback, Ddl, SnapshotLine)
    }
    assert counts == {Header: 1, Txn: 6939, Rollback: 8, Ddl: 33, SnapshotLine: 20}
    base = lines[1]
    assert isinstance(base, Txn)
    assert base.is_base
    assert (base.start_ts, base.commit_ts) == (470612974443167743, 470612974443167744)
    commits = [line.commit_ts for line in lines if isinstance(line, Txn)]
    assert commits == sorted(set(commits))
    assert count_transactions(LOG) == 6939


def test_until_ends_the_log_after_the_ts() -> None:
    until = 470612974532558848
    lines = list(read_log(LOG, until=until))
    assert isinstance(lines[-1], SnapshotLine)
    assert lines[-1].ts == until
    assert max(line.commit_ts for line in lines if isinstance(line, Txn)) < until
    assert count_transactions(LOG, until=until) == sum(isinstance(line, Txn) for line in lines)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[]",
        b'{"type":"txn"}',
        b'{"type":"other"}',
        b'{"type":"rollback","start_ts":1,"keys":["zz"]}',
    ],
)
def test_a_line_that_is_none_names_file_and_line(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b'{"type":"header","name":"x"}\n' + line + b"\n")
    with pytest.raises(InvalidInput, match=r"log\.jsonl, line 2"):
        list(read_log(file))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"absent\.jsonl\.gz"):
        list(read_log(tmp_path / "absent.jsonl.gz"))
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(b'{"type":"header","name":"x"}\n' * 1000)[:40])
    with pytest.raises(InvalidInput):
        list(read_log(cut))


def test_an_operation_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="frobnicate"):
        parse_line(
            b'{"type":"txn","start_ts":1,"commit_ts":2,"primary":"61",'
            b'"mutations":[{"op":"frobnicate","key":"61","value":""}]}'
        )


def small(rows: Iterable[tuple[Cell, ...]]) -> SnapshotTable:
    kept = tuple(rows)
    return SnapshotTable(("a", "b"), ("int", "text"), kept, *sum_crc32(kept), ())


def big(rows: Iterable[tuple[Cell, ...]], sample: int) -> SnapshotTable:
    kept = list(rows)
    count, total = sum_crc32(kept)
    chosen = tuple(kept[i * count // sample] for i in range(sample))
    return SnapshotTable(("a", "b"), ("int", "text"), None, count, total, chosen)


ROWS: list[tuple[Cell, ...]] = [("1", "x"), ("2", None), ("2", None), ("3", b"\xff\x00")]


def test_the_sum_is_that_of_the_recorded_definition() -> None:
    assert sum_crc32([("1", None)]) == (1, zlib.crc32(b"1\x1f\x00"))
    assert sum_crc32([]) == (0, 0)


def test_equal_rows_in_any_order_do_not_differ() -> None:
    assert snapshot_diff(small(ROWS), reversed(ROWS)) == []
    assert snapshot_diff(big(ROWS, 2), reversed(ROWS)) == []
    assert (
        snapshot_diff(small(ROWS), [tuple(c.encode() if isinstance(c, str) else c for c in r) for r in ROWS])
        == []
    )


def test_missing_and_surplus_rows_are_named() -> None:
    found = snapshot_diff(small(ROWS), [*ROWS[:2], ("4", "new"), ROWS[3]])
    assert found == ["missing: 2 | NULL", "too many: 4 | new"]


def test_a_big_table_is_judged_by_count_sum_and_sample() -> None:
    rows: list[tuple[Cell, ...]] = [(str(n), "x") for n in range(2000)]
    expected = big(rows, 200)
    assert snapshot_diff(expected, rows[1:])[0] == "1999 rows; expected 2000"
    changed = [*rows[:-1], ("1999", "y")]
    assert "sum of row CRC-32" in snapshot_diff(expected, changed)[0]
    assert "missing: 0 | x" in snapshot_diff(expected, [("0", "z"), *rows[1:]])


def test_other_columns_are_one_finding_and_long_lists_are_cut() -> None:
    assert snapshot_diff(small(ROWS), ROWS, columns=["a", "c"]) == ["columns are a, c; expected a, b"]
    found = snapshot_diff(small((str(n), "x") for n in range(100)), [], limit=5)
    assert len(found) == 6
    assert found[-1] == "... and 95 more"

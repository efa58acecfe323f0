from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests import golden_folder
from tidegate.verify.check_log import _differences, as_delta_holds, check_log
from tidegate.workload.changelog import SnapshotLine, SnapshotTable, read_log, sum_crc32

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = (("1", "9917.3471"), ("2", None))
EXPECTED = SnapshotTable(("id", "balance"), ("bigint(20)", "varchar(20)"), ROWS, *sum_crc32(ROWS), ())


def test_a_target_with_only_columns_of_our_own_besides_is_equal() -> None:
    rows = pa.table({"id": [2, 1], "balance": [None, "9917.3471"], "_tidegate_commit_ts": [5, 6]})
    assert _differences(EXPECTED, rows) == []


def test_another_value_and_another_column_are_found() -> None:
    changed = pa.table({"id": [1, 2], "balance": ["9917.3472", None]})
    assert _differences(EXPECTED, changed) == ["missing: 1 | 9917.3471", "too many: 1 | 9917.3472"]
    renamed = pa.table({"id": [1, 2], "amount": ["9917.3471", None]})
    assert _differences(EXPECTED, renamed) == ["columns are id, amount; expected id, balance"]


def test_what_delta_cannot_hold_is_left_out_and_counted() -> None:
    rows = (
        ("1", "0000-00-00", "1", "0000-00-00 00:00:00"),
        ("2", "2020-02-30", None, "2020-02-28 10:00:00"),
        ("3", "2020-02-29", "9", None),
    )
    types = ("int", "date", "int", "datetime")
    sql = SnapshotTable(("id", "day", "twice", "seen"), types, rows, *sum_crc32(rows), ())
    held, zeros = as_delta_holds(sql, frozenset({"twice"}))
    assert zeros == 3
    assert (held.columns, held.types) == (("id", "day", "seen"), ("int", "date", "datetime"))
    assert held.rows == (("1", None, None), ("2", None, "2020-02-28 10:00:00"), ("3", "2020-02-29", None))
    held, zeros = as_delta_holds(sql, frozenset({"twice"}), exact=frozenset({"day"}))
    assert zeros == 1
    assert [row[1] for row in held.rows or ()] == ["0000-00-00", "2020-02-30", "2020-02-29"]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parametrize(
    ("log", "count", "tables", "protocol", "stripe"),
    [
        ("bank", 5, {"bank.accounts", "bank.transfers", "bank.orders"}, "open-protocol", 64),
        ("keys", 3, {"k.nokey"}, "open-protocol", 1),
        # Columns converted while rows are written: varchar to integer, decimal to fewer digits, double, text.
        # These rows can be read only with the definition of their own version of the table.
        ("onlineddl", 8, {"o.main", "o.ck", "o.part", "o.nk"}, "simple", 16),
    ],
)
def test_a_recorded_log_arrives_as_sql_saw_it(
    log: str,
    count: int,
    tables: set[str],
    protocol: str,
    stripe: int,
    kafka: str,
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Up to its `count`-th snapshot, judged there and at the first; the whole log takes minutes."""
    file = golden_folder.OURS / f"changelog/{log}.jsonl.gz"
    snapshots = (line.ts for line in read_log(file) if isinstance(line, SnapshotLine))
    upto = next(islice(snapshots, count - 1, None))
    target, every = f"delta://{tmp_path}/lake", count - 1
    options = {"protocol": protocol, "until": upto, "every": every, "ids_per_stripe": stripe, "spark": spark}
    found = list(check_log(file, target, kafka, **options))  # type: ignore[arg-type]
    assert [verdict for verdict in found if verdict.findings] == []
    assert len({verdict.ts for verdict in found}) == 2
    assert tables <= {verdict.table for verdict in found}
    assert sum(verdict.rows for verdict in found) > 1000

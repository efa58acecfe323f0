import pyarrow as pa

from tidegate.cli.check_log import _differences
from tidegate.workload.changelog import SnapshotTable, sum_crc32

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

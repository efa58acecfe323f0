"""The five recorded logs prove the plain decoders; here `bank`, replayed without any store."""

from pathlib import Path

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.tables import read_rows, read_tables, sql_row, tables_from_meta
from tidegate.tidb import keys, record
from tidegate.workload.changelog import SnapshotLine, SnapshotTable, Txn, read_log, snapshot_diff
from tidegate.workload.load import Loader

LOG = Path(__file__).parent.parent / "golden/changelog/bank.jsonl.gz"


def differences(store: dict[bytes, bytes], name: str, expected: SnapshotTable, ts: int) -> list[str]:
    meta = ((k, v) for k, v in store.items() if k.startswith(b"m"))
    table = next(t for t in tables_from_meta(meta, ts) if t.name == name)
    spans = [keys.record_span(physical_id) for physical_id in table.physical_ids]
    rows = [
        sql_row(table, record.decode(table, keys.parse_record(k), v))
        for k, v in store.items()
        if any(span.contains(k) for span in spans)
    ]
    return snapshot_diff(expected, rows, columns=[c.name for c in table.columns])


def test_a_replayed_log_equals_what_sql_read_at_every_fifth_snapshot() -> None:
    store: dict[bytes, bytes] = {}
    compared = 0
    for number, line in enumerate(read_log(LOG)):
        match line:
            case Txn():
                store.update((m.key, m.value) for m in line.mutations if m.op in ("put", "insert"))
                for m in line.mutations:
                    if m.op == "delete":
                        store.pop(m.key, None)
            case SnapshotLine(ts=ts, tables=tables) if number % 5 == 0:
                for name, expected in tables.items():
                    assert differences(store, name, expected, ts) == []
                    compared += 1
    assert compared > 10


def test_tables_and_rows_at_a_past_snapshot_are_read_over_grpc(manual_pd: PdClient) -> None:
    lines = list(read_log(LOG, until=470612974686175232))
    Loader(manual_pd).load(lines)
    for line in lines:
        if not isinstance(line, SnapshotLine):
            continue
        snapshot = Snapshot(manual_pd, line.ts)
        tables = read_tables(snapshot)
        assert {t.name for t in tables} == set(line.tables)
        for table in tables:
            rows = (sql_row(table, values) for values in read_rows(snapshot, table))
            columns = [c.name for c in table.columns]
            assert snapshot_diff(line.tables[table.name], rows, columns=columns) == []


def test_system_schemas_are_left_out_unless_asked_for(manual_pd: PdClient) -> None:
    lines = list(read_log(LOG, until=470612974443167744))
    Loader(manual_pd).load(lines)
    snapshot = Snapshot(manual_pd, manual_pd.tso())
    assert read_tables(snapshot) == []
    assert "mysql.tidb_ddl_job" in {t.name for t in read_tables(snapshot, system=True)}

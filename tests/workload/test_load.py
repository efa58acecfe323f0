from pathlib import Path

import pytest

from tidegate.errors import InvalidInput
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import CHECK_NOT_EXISTS, INSERT, PUT
from tidegate.workload.changelog import Line, LogMutation, Rollback, SnapshotLine, Txn, read_log
from tidegate.workload.load import KeyHistory, Loader

LOG = Path(__file__).parent.parent / "golden/changelog/bank.jsonl.gz"
UNTIL = 470612974686175232


def txn(start_ts: int, commit_ts: int, *mutations: tuple[str, bytes]) -> Txn:
    taken = tuple(LogMutation(op, key, b"v" if op in ("put", "insert") else b"") for op, key in mutations)
    return Txn(start_ts, commit_ts, taken[0].key, taken)


def test_a_transaction_below_a_newer_record_of_its_keys_is_pessimistic() -> None:
    history = KeyHistory()
    assert not history.plan(txn(1, 10, ("put", b"a")))[1]
    assert not history.plan(txn(2, 11, ("put", b"b")))[1]
    assert history.plan(txn(5, 12, ("lock", b"a")))[1]
    assert history.plan(txn(11, 13, ("delete", b"a")))[1]
    assert not history.plan(txn(14, 15, ("put", b"a")))[1]
    history.rolled_back(Rollback(20, (b"c",)))
    assert history.plan(txn(19, 21, ("put", b"c")))[1]


def test_absence_is_asserted_only_of_keys_the_log_has_not_left_alive() -> None:
    history = KeyHistory()
    assert history.plan(txn(1, 2, ("insert", b"a")))[0][0].op == INSERT
    assert history.plan(txn(3, 4, ("insert", b"a")))[0][0].op == PUT
    assert [m.key for m in history.plan(txn(5, 6, ("put", b"b"), ("check_not_exists", b"a")))[0]] == [b"b"]
    history.plan(txn(7, 8, ("delete", b"a")))
    assert history.plan(txn(9, 10, ("check_not_exists", b"a")))[0][0].op == CHECK_NOT_EXISTS


def test_the_75_pessimistic_transactions_of_the_recorded_log_are_found() -> None:
    history, found, prepared = KeyHistory(), 0, 0
    for line in read_log(LOG):
        if isinstance(line, Rollback):
            history.rolled_back(line)
            prepared += 1
        elif isinstance(line, Txn):
            found += history.plan(line)[1]
    assert prepared == 8
    assert found >= 75


@pytest.mark.slow
def test_a_prefix_is_loaded_once_and_skipped_the_second_time(manual_pd: PdClient) -> None:
    lines = list(read_log(LOG, until=UNTIL))
    first = Loader(manual_pd).load(lines)
    assert (first.transactions, first.skipped, first.snapshots) == (901, 0, 3)
    assert manual_pd.tso() == UNTIL
    again = Loader(manual_pd).load(lines)
    assert (again.transactions, again.skipped) == (0, 901)
    assert manual_pd.tso() == UNTIL


@pytest.mark.slow
def test_a_load_resumes_where_an_earlier_one_was_cut_off(manual_pd: PdClient) -> None:
    lines: list[Line] = list(read_log(LOG, until=UNTIL))
    half = len(lines) // 2
    Loader(manual_pd).load(lines[:half])
    stats = Loader(manual_pd).load(lines)
    assert stats.transactions + stats.skipped == 901
    assert 0 < stats.skipped < 901


def test_the_tso_follows_to_each_commit_and_to_the_snapshots(manual_pd: PdClient) -> None:
    put = [txn(10, 20, ("put", b"a")), txn(20, 21, ("put", b"a")), SnapshotLine(30, {})]
    stats = Loader(manual_pd).load(put)
    assert stats.reached == 30
    assert manual_pd.tso() == 30
    assert Snapshot(manual_pd, 20).get(b"a") == b"v"
    assert Snapshot(manual_pd, 19).get(b"a") is None


def test_a_rollback_line_is_rolled_back_and_may_lie_below_the_last_commit(manual_pd: PdClient) -> None:
    lines: list[Line] = [
        txn(10, 20, ("put", b"a")),
        Rollback(15, (b"a", b"\xf0")),
        txn(21, 22, ("put", b"\xf0")),
    ]
    assert Loader(manual_pd).load(lines).rollbacks == 1
    assert Loader(manual_pd).load(lines).skipped == 2
    assert Snapshot(manual_pd, 22).get(b"\xf0") == b"v"


def test_a_transaction_behind_the_tso_that_is_not_there_is_refused(manual_pd: PdClient) -> None:
    manual_pd.advance_tso(100)
    with pytest.raises(InvalidInput, match="is beyond a transaction"):
        Loader(manual_pd).load([txn(10, 20, ("put", b"a"))])


def test_a_tso_that_follows_the_clock_is_refused(pd: PdClient) -> None:
    with pytest.raises(InvalidInput, match="--tso manual"):
        Loader(pd).load([txn(10, 20, ("put", b"a"))])


def test_a_rate_spreads_the_load(manual_pd: PdClient) -> None:
    lines = [txn(10 * n, 10 * n + 5, ("put", b"k%d" % n)) for n in range(1, 21)]
    stats = Loader(manual_pd, rows_per_s=40).load(lines)
    assert stats.seconds >= 0.4

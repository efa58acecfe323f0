import threading
from decimal import Decimal

import pytest

from tidegate.errors import InvalidInput
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.tables import read_rows, read_tables
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankStats, BankWorkload


def balances(pd: PdClient, ts: int) -> Decimal:
    snapshot = Snapshot(pd, ts)
    accounts = next(t for t in read_tables(snapshot) if t.name == "bank.accounts")
    at = [c.name for c in accounts.columns].index("balance")
    return sum((Decimal(str(row[at])) for row in read_rows(snapshot, accounts)), Decimal(0))


def contents(pd: PdClient) -> dict[str, list[object]]:
    snapshot = Snapshot(pd, pd.tso())
    return {t.name: sorted(map(repr, read_rows(snapshot, t))) for t in read_tables(snapshot)}


def test_the_sum_holds_at_every_ts_over_ddls_and_a_second_run_continues(
    upstream: EmbeddedUpstream, pd: PdClient
) -> None:
    seen: list[int] = []

    def note(stats: BankStats) -> None:
        seen.append(stats.last_commit_ts)

    for _ in range(2):
        bank = BankWorkload(upstream.pd_addr, 1, accounts=50, ddl_every_rows=150)
        bank.setup()
        stats = bank.run(None, threading.Event(), note, max_rows=1000)
        bank.close()
        assert stats.rows >= 1000
        assert stats.ddls >= 4
        assert stats.retries == 0
        assert Decimal(stats.total) == 50 * 10_000
    for ts in seen:
        assert balances(pd, ts) == 50 * 10_000


def test_row_checksums_of_an_unknown_version_are_refused(upstream: EmbeddedUpstream) -> None:
    with pytest.raises(InvalidInput, match="version 3 do not exist"):
        BankWorkload(upstream.pd_addr, 1, checksum=3)


def test_one_seed_leaves_the_same_tables_whatever_the_threads(tmp_path: object) -> None:
    found = []
    for threads in (1, 4):
        with (
            EmbeddedUpstream(f"{tmp_path}/{threads}", regions=3) as upstream,
            PdClient(upstream.pd_addr) as pd,
        ):
            bank = BankWorkload(upstream.pd_addr, 9, accounts=40, threads=threads, ddl_every_rows=0)
            bank.setup()
            bank.run(None, threading.Event(), max_rows=800)
            bank.close()
            found.append(contents(pd))
    assert found[0] == found[1]


def test_a_set_event_ends_it_and_the_rate_holds(upstream: EmbeddedUpstream) -> None:
    bank, stop = BankWorkload(upstream.pd_addr, 2, accounts=20), threading.Event()
    bank.setup()
    stats = bank.run(500, stop, lambda stats: stop.set() if stats.seconds > 0.4 and stats.rows else None)
    bank.close()
    assert stop.is_set()
    assert 0 < stats.rows <= 500 * (stats.seconds + 0.2) + 60


def test_a_tso_that_does_not_advance_is_refused(manual_upstream: EmbeddedUpstream) -> None:
    bank = BankWorkload(manual_upstream.pd_addr, 1)
    with pytest.raises(InvalidInput, match="--tso system"):
        bank.setup()
    bank.close()

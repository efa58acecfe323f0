from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tidegate.errors import InvalidInput, Retryable
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionMoved, RegionRequester
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import (
    CHECK_NOT_EXISTS,
    DEL,
    LOCK,
    PUT,
    AlreadyExists,
    Mutation,
    Transaction,
    TwoPhase,
    WriteConflict,
    is_loaded,
    load_transaction,
)
from tidegate.kvclient.upstream_control import UpstreamControl
from tidegate.tidb.memcomparable import encode_bytes

SPREAD = [bytes([at]) + b"key" for at in range(5, 250, 7)]
"""Keys in all five regions."""


def read(pd: PdClient, key: bytes) -> bytes | None:
    return Snapshot(pd, pd.tso()).get(key)


def test_a_transaction_over_all_regions_is_visible_whole_at_its_commit_ts(pd: PdClient) -> None:
    txn = Transaction(pd)
    for key in SPREAD:
        txn.put(key, b"v" + key)
    commit_ts = txn.commit()
    assert Snapshot(pd, commit_ts - 1).batch_get(SPREAD) == {}
    assert Snapshot(pd, commit_ts).batch_get(SPREAD) == {k: b"v" + k for k in SPREAD}


def test_a_transaction_reads_its_own_writes_and_its_snapshot(pd: PdClient) -> None:
    first = Transaction(pd)
    first.put(b"a", b"1")
    first.put(b"b", b"2")
    first.commit()
    txn = Transaction(pd)
    txn.put(b"a", b"3")
    txn.delete(b"b")
    other = Transaction(pd)
    other.put(b"c", b"4")
    other.commit()
    assert (txn.get(b"a"), txn.get(b"b"), txn.get(b"c")) == (b"3", None, None)


def test_the_second_of_two_writers_conflicts_and_leaves_nothing(pd: PdClient) -> None:
    first, second = Transaction(pd), Transaction(pd)
    first.put(b"k", b"1")
    second.put(b"k", b"2")
    second.put(b"\xf0other", b"2")
    first.commit()
    with pytest.raises(WriteConflict):
        second.commit()
    assert read(pd, b"k") == b"1"
    assert read(pd, b"\xf0other") is None
    assert second.settle() == 0


def test_an_insert_of_an_existing_key_fails(pd: PdClient) -> None:
    first = Transaction(pd)
    first.insert(b"k", b"1")
    first.commit()
    second = Transaction(pd)
    second.insert(b"k", b"2")
    with pytest.raises(AlreadyExists):
        second.commit()
    assert read(pd, b"k") == b"1"


@pytest.mark.parametrize("one_phase", [False, True])
def test_a_transaction_may_only_check_that_keys_do_not_exist(pd: PdClient, one_phase: bool) -> None:
    start = Transaction(pd)
    start.put(b"k", b"1")
    start.commit()
    checks = [Mutation(CHECK_NOT_EXISTS, key) for key in (b"\x05free", b"\xf0free")]
    fine = Transaction(pd, one_phase=one_phase)
    fine.write(checks)
    assert fine.commit() == 0
    other = Transaction(pd, one_phase=one_phase)
    other.write([*checks, Mutation(CHECK_NOT_EXISTS, b"k")])
    with pytest.raises(AlreadyExists):
        other.commit()
    assert read(pd, b"k") == b"1"


def test_empty_values_are_refused(pd: PdClient) -> None:
    with pytest.raises(InvalidInput):
        Transaction(pd).put(b"k", b"")


def test_pessimistic_increments_side_by_side_lose_none(pd: PdClient) -> None:
    start = Transaction(pd)
    start.put(b"n", b"0")
    start.commit()

    def increment(_: int) -> None:
        txn = Transaction(pd, pessimistic=True)
        value = txn.lock_keys([b"n"])[b"n"]
        txn.put(b"n", b"%d" % (int(value) + 1))
        txn.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(increment, range(40)))
    assert read(pd, b"n") == b"40"


def test_a_rolled_back_pessimistic_transaction_releases_its_locks(pd: PdClient) -> None:
    holder = Transaction(pd, pessimistic=True)
    assert holder.lock_keys([b"a", b"\xf0"]) == {}
    holder.rollback()
    txn = Transaction(pd, budget_ms=2000)
    txn.put(b"a", b"1")
    assert txn.commit() > holder.start_ts


def test_committing_twice_the_same_settles_to_the_same_commit_ts(pd: PdClient) -> None:
    txn = Transaction(pd)
    txn.write(Mutation(PUT, key, b"x") for key in SPREAD)
    commit_ts = txn.commit()
    assert txn.settle() == commit_ts


def test_a_commit_that_arrives_while_its_fate_is_looked_up_is_found(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = Transaction(pd)
    txn.put(b"late", b"1")
    commit_ts = txn.commit()
    look, looks = TwoPhase.committed_at, iter([0])
    monkeypatch.setattr(TwoPhase, "committed_at", lambda self, backoff: next(looks, look(self, backoff)))
    assert txn.settle() == commit_ts, "the rollback was refused, so it looked again"


def test_keys_of_one_region_are_committed_in_one_phase(pd: PdClient, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = _methods(monkeypatch)
    txn = Transaction(pd, one_phase=True)
    txn.put(b"a", b"1")
    txn.put(b"b", b"2")
    before = pd.tso()
    commit_ts = txn.commit()
    assert before < commit_ts <= pd.tso()
    assert Snapshot(pd, commit_ts - 1).batch_get([b"a", b"b"]) == {}
    assert Snapshot(pd, commit_ts).batch_get([b"a", b"b"]) == {b"a": b"1", b"b": b"2"}
    assert "KvCommit" not in sent
    assert txn.settle() == commit_ts


def test_keys_of_several_regions_have_two_phases_for_one(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request with a part of the keys must not commit this part."""
    sent = _methods(monkeypatch)
    txn = Transaction(pd, one_phase=True)
    txn.write(Mutation(PUT, key, b"x") for key in SPREAD)
    commit_ts = txn.commit()
    assert Snapshot(pd, commit_ts - 1).batch_get(SPREAD) == {}
    assert len(Snapshot(pd, commit_ts).batch_get(SPREAD)) == len(SPREAD)
    assert "KvCommit" in sent


def test_a_one_phase_commit_without_an_answer_is_looked_up(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prewrite = TwoPhase.prewrite

    def lost(self: TwoPhase, *arguments: Any, **more: Any) -> None:
        prewrite(self, *arguments, **more)
        raise Retryable("no answer")

    monkeypatch.setattr(TwoPhase, "prewrite", lost)
    txn = Transaction(pd, one_phase=True)
    txn.put(b"a", b"1")
    commit_ts = txn.commit()
    assert commit_ts, "it was committed"
    assert Snapshot(pd, commit_ts).get(b"a") == b"1"
    assert Snapshot(pd, commit_ts - 1).get(b"a") is None


@pytest.mark.parametrize("pessimistic", [False, True])
def test_a_one_phase_commit_is_not_repeated_after_a_split(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch, pessimistic: bool
) -> None:
    """The requests for the two new regions meet the records of the one that committed all keys."""
    send, sent = RegionRequester.send, list[str]()

    def lost_once(self: RegionRequester, region: Any, method: str, *more: Any) -> Any:
        found = send(self, region, method, *more)
        sent.append(method)
        if sent == ["KvPrewrite"]:
            UpstreamControl(pd).split(0, [encode_bytes(b"split")])
            raise RegionMoved
        return found

    monkeypatch.setattr(RegionRequester, "send", lost_once)
    txn = Transaction(pd, one_phase=True, pessimistic=pessimistic)
    txn.put(b"spa", b"1")
    txn.put(b"spz", b"2")
    commit_ts = txn.commit()
    assert sent.count("KvPrewrite") > 1
    assert Snapshot(pd, commit_ts).batch_get([b"spa", b"spz"]) == {b"spa": b"1", b"spz": b"2"}
    assert Snapshot(pd, commit_ts - 1).batch_get([b"spa", b"spz"]) == {}, "committed twice"


def test_a_one_phase_commit_that_never_arrived_is_rolled_back(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TwoPhase, "prewrite", _sent_and_lost)
    txn = Transaction(pd, one_phase=True)
    txn.put(b"a", b"1")
    with pytest.raises(Retryable, match="no answer"):
        txn.commit()
    assert read(pd, b"a") is None


def test_a_one_phase_commit_whose_fate_is_unknown_says_so(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise Retryable("no answer")

    monkeypatch.setattr(TwoPhase, "prewrite", _sent_and_lost)
    monkeypatch.setattr(TwoPhase, "committed_at", lost)
    txn = Transaction(pd, one_phase=True)
    txn.put(b"a", b"1")
    with pytest.raises(Retryable, match="undetermined"):
        txn.commit()


def test_nothing_is_undetermined_if_no_request_could_commit(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of several regions are only locked, so the caller may repeat the transaction at once."""

    def down(*_: Any, **__: Any) -> None:
        raise Retryable("a store is down")

    txn = Transaction(pd, one_phase=True)
    txn.write(Mutation(PUT, key, b"x") for key in SPREAD)
    with monkeypatch.context() as failing:
        failing.setattr(RegionRequester, "send", down)
        with pytest.raises(Retryable) as raised:
            txn.commit()
    assert raised.value.what == "a store is down"
    assert txn.settle() == 0


def test_a_one_phase_commit_conflicts_as_two_phases_do(pd: PdClient) -> None:
    first, second = Transaction(pd, one_phase=True), Transaction(pd, one_phase=True)
    first.put(b"k", b"1")
    second.put(b"k", b"2")
    first.commit()
    with pytest.raises(WriteConflict):
        second.commit()
    assert read(pd, b"k") == b"1"


def _sent_and_lost(writer: TwoPhase, *_: Any, **__: Any) -> None:
    writer.tried_one_phase = True
    raise Retryable("no answer")


def _methods(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods of the requests to regions from now on."""
    sent: list[str] = []
    send = RegionRequester.send

    def noted(self: RegionRequester, region: Any, method: str, *more: Any, **named: Any) -> Any:
        sent.append(method)
        return send(self, region, method, *more, **named)

    monkeypatch.setattr(RegionRequester, "send", noted)
    return sent


def test_a_large_transaction_is_cut_into_requests(pd: PdClient) -> None:
    txn = Transaction(pd)
    keys = [b"big%06d" % n for n in range(20_000)]
    for key in keys:
        txn.put(key, key)
    commit_ts = txn.commit()
    assert sum(1 for _ in Snapshot(pd, commit_ts).batch_get(keys)) == len(keys)


def test_recorded_transactions_keep_their_timestamps(manual_pd: PdClient) -> None:
    put = [Mutation(PUT, key, b"1") for key in SPREAD]
    assert load_transaction(manual_pd, start_ts=10, commit_ts=20, primary=SPREAD[3], mutations=put)
    manual_pd.advance_tso(20)
    assert Snapshot(manual_pd, 19).batch_get(SPREAD) == {}
    assert len(Snapshot(manual_pd, 20).batch_get(SPREAD)) == len(SPREAD)
    again = load_transaction(manual_pd, start_ts=10, commit_ts=20, primary=SPREAD[3], mutations=put)
    assert not again
    assert is_loaded(manual_pd, start_ts=10, commit_ts=20, primary=SPREAD[3])


def test_a_recorded_transaction_below_a_newer_commit_loads_pessimistically(manual_pd: PdClient) -> None:
    load_transaction(
        manual_pd, start_ts=10, commit_ts=30, primary=b"k", mutations=[Mutation(PUT, b"k", b"1")]
    )
    later = [Mutation(PUT, b"k", b"2"), Mutation(CHECK_NOT_EXISTS, b"free"), Mutation(LOCK, b"\xf0")]
    with pytest.raises(WriteConflict):
        load_transaction(manual_pd, start_ts=20, commit_ts=31, primary=b"k", mutations=later)
    assert load_transaction(
        manual_pd, start_ts=20, commit_ts=31, primary=b"k", mutations=later, pessimistic=True
    )
    assert Snapshot(manual_pd, 31).get(b"k") == b"2"
    assert Snapshot(manual_pd, 30).get(b"k") == b"1"
    assert not load_transaction(
        manual_pd, start_ts=20, commit_ts=31, primary=b"k", mutations=later, pessimistic=True
    )


def test_a_load_that_was_cut_off_after_the_primary_is_completed(manual_pd: PdClient) -> None:
    mutations = [Mutation(PUT, key, b"1") for key in SPREAD]
    cut_off = TwoPhase(manual_pd, 10, SPREAD[0])
    cut_off.prewrite(mutations, Backoff())
    cut_off.commit([SPREAD[0]], 20, Backoff())
    assert not load_transaction(manual_pd, start_ts=10, commit_ts=20, primary=SPREAD[0], mutations=mutations)
    assert len(Snapshot(manual_pd, 20).batch_get(SPREAD)) == len(SPREAD)


def test_deleting_a_key_that_never_existed_commits(manual_pd: PdClient) -> None:
    gone = [Mutation(DEL, b"never")]
    assert load_transaction(manual_pd, start_ts=10, commit_ts=11, primary=b"never", mutations=gone)
    assert Snapshot(manual_pd, 11).get(b"never") is None

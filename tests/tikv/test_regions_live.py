"""Regions that change under requests: what every store answers, and what is durable."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tikv.cluster import WAIT_S, Cluster, Pending, wait_until
from tests.tikv.support import commit, pessimistic_lock, prewrite, put
from tidegate.errors import InvalidInput
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys
from tidegate.tikv.engine import META, Engine
from tidegate.tikv.pd.splitter import by_size, middle
from tidegate.tikv.pd.tso import TsoMode
from tidegate.tikv.raft.raftstore import Command
from tidegate.tikv.raft.region import Region
from tidegate.tikv.raft.region_change import RegionChange
from tidegate.tikv.raft.region_meta import Ids, load


def error(pending: Pending) -> Any:
    """The region error of an answer."""
    pending._done.wait(WAIT_S)
    response, failure = pending._answered
    assert failure is None, failure
    assert response.HasField("region_error"), response
    return response.region_error


def noted_proposals(cluster: Cluster) -> list[Command]:
    """Every command that is proposed from now on."""
    proposed: list[Command] = []
    propose = cluster.raftstore.propose

    def noted(command: Command) -> None:
        propose(command)
        proposed.append(command)

    cluster.raftstore.propose = noted  # type: ignore[method-assign]
    return proposed


def get(key: bytes, version: int = 1 << 60) -> pb.GetRequest:
    return pb.GetRequest(key=key, version=version)


REQUESTS: list[Callable[[], Any]] = [
    lambda: get(b"k", 10),
    lambda: pb.BatchGetRequest(keys=[b"k"], version=10),
    lambda: pb.ScanRequest(start_key=b"k", limit=1, version=10),
    lambda: prewrite(10, put(b"k")),
    lambda: pb.FlushRequest(mutations=[put(b"k")], primary_key=b"k", start_ts=10, generation=1),
    lambda: commit(10, 11, b"k"),
    lambda: pb.BatchRollbackRequest(start_version=10, keys=[b"k"]),
    lambda: pb.CleanupRequest(key=b"k", start_version=10),
    lambda: pb.PessimisticLockRequest(mutations=[put(b"k")], primary_lock=b"k", start_version=10),
    lambda: pb.PessimisticRollbackRequest(keys=[b"k"], start_version=10),
    lambda: pb.TxnHeartBeatRequest(primary_lock=b"k", start_version=10),
    lambda: pb.CheckTxnStatusRequest(primary_key=b"k", lock_ts=10),
    lambda: pb.CheckSecondaryLocksRequest(keys=[b"k"], start_version=10),
    lambda: pb.ScanLockRequest(max_version=10),
    lambda: pb.ResolveLockRequest(start_version=10),
    lambda: pb.DeleteRangeRequest(start_key=b"k", end_key=b"l"),
    lambda: pb.SplitRegionRequest(split_keys=[b"k"]),
    lambda: pb.RawGetRequest(key=b"k"),
    lambda: pb.RawPutRequest(key=b"k", value=b"v"),
    lambda: pb.RawDeleteRequest(key=b"k"),
    lambda: pb.RawScanRequest(start_key=b"k", limit=1),
    lambda: pb.RawCASRequest(key=b"k", value=b"v", previous_not_exist=True),
]


@pytest.mark.parametrize("make_request", REQUESTS)
def test_every_command_gets_the_region_errors(make: Callable[..., Cluster], make_request: Any) -> None:
    cluster = make(b"m", stores=4)
    low = cluster.regions.of_key(b"")
    outside = next(store for store in (1, 2, 3, 4) if low.peer_on(store) is None)
    follower = next(store for store in low.stores if store != low.leader)
    found = error(cluster.at(low, make_request(), outside))
    assert found.region_not_found.region_id == low.id
    found = error(cluster.at(low, make_request(), follower))
    assert found.not_leader.leader == low.leader_peer
    request = make_request()
    request.context.peer.store_id = 4
    pending = Pending()
    request.context.region_id = low.id
    cluster.shared.nodes[low.leader].store.submit(request, pending.answer)
    assert error(pending).store_not_match.actual_store_id == low.leader
    moved = cluster.operators.transfer(low.id, follower)
    moved = cluster.operators.transfer(low.id, low.leader)
    found = error(cluster.at(moved, make_request(), term=low.term))
    assert found.HasField("stale_command")
    parts = cluster.operators.split(low.id, [keys.encode(b"d"), keys.encode(b"g")])
    found = error(cluster.at(low, make_request()))
    current = list(found.epoch_not_match.current_regions)
    assert current[0] == parts[-1].message
    assert {each.id for each in current} == {part.id for part in parts}


def test_a_key_elsewhere_is_not_in_the_region(make: Callable[..., Cluster]) -> None:
    cluster = make(b"m")
    low, high = cluster.regions.all
    for request in (get(b"z", 10), prewrite(10, put(b"a"), put(b"z")), pb.RawGetRequest(key=b"z")):
        found = error(cluster.at(low, request)).key_not_in_region
        assert (found.key, found.region_id) == (b"z", low.id)
    assert error(cluster.at(high, get(b"a", 10))).key_not_in_region.end_key == b""


def test_writes_during_region_changes_are_rejected_or_applied_whole(
    make: Callable[..., Cluster],
) -> None:
    """The changes are a split, a leader transfer and a merge."""
    cluster = make(b"m", stores=3)
    low = cluster.regions.of_key(b"")
    proposed, proceed = noted_proposals(cluster), cluster.hold_applies()
    splitting = threading.Thread(target=cluster.operators.split, args=(low.id, [keys.encode(b"f")]))
    before = cluster.at(low, prewrite(10, put(b"a"), put(b"g")))
    wait_until(lambda: len(proposed) == 1)
    splitting.start()
    wait_until(lambda: any(command.admin for command in proposed))
    behind = cluster.at(low, prewrite(20, put(b"b"), put(b"h")))
    wait_until(lambda: len(proposed) == 3)
    proceed.set()
    splitting.join()
    assert not before.response().errors
    assert error(behind).HasField("epoch_not_match")
    left, right = cluster.regions.all[:2]
    for region, raw in ((left, b"a"), (right, b"g")):
        assert cluster.at(region, get(raw, 30)).response().error.locked.lock_version == 10
    for region, raw in ((left, b"b"), (right, b"h")):
        assert cluster.at(region, get(raw, 30)).response().not_found
    source = cluster.operators.prepare_merge(left.id, right.id)
    assert error(cluster.at(left, get(b"a", 5))).HasField("epoch_not_match")
    assert cluster.at(source, get(b"a", 5)).response().not_found, "it still reads"
    refused = error(cluster.at(source, prewrite(40, put(b"c"))))
    assert refused.proposal_in_merging_mode.region_id == left.id
    merged = cluster.operators.commit_merge(left.id)
    assert (merged.start, merged.end) == (left.start, right.end)
    assert error(cluster.at(source, get(b"a", 5), right.leader)).region_not_found.region_id == left.id
    assert not cluster.at(merged, commit(10, 50, b"a", b"g")).response().HasField("error")


def test_a_merge_can_be_given_up(make: Callable[..., Cluster]) -> None:
    cluster = make(b"m")
    low, high = cluster.regions.all
    source = cluster.operators.prepare_merge(low.id, high.id)
    back = cluster.operators.rollback_merge(low.id)
    assert (back.version, back.merging) == (source.version + 1, 0)
    assert not cluster.at(back, prewrite(10, put(b"a"))).response().errors
    with pytest.raises(InvalidInput, match="is not being merged"):
        cluster.operators.rollback_merge(low.id)


def test_a_new_leader_chooses_timestamps_above_the_reads_of_the_old_one(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(stores=3)
    (region,) = cluster.regions.all
    read_at = cluster.tso.get()
    assert cluster.at(region, get(b"k", read_at)).response().not_found
    start_ts = cluster.tso.get()
    moved = cluster.operators.transfer(region.id, 2)
    cluster.tso.freeze()
    one_pc = prewrite(start_ts, put(b"k"), try_one_pc=True, use_async_commit=True)
    assert error(cluster.at(moved, one_pc)).HasField("max_timestamp_not_synced")
    assert not cluster.at(moved, prewrite(start_ts, put(b"two-phase"))).response().errors
    cluster.tso.thaw()
    response = cluster.at(moved, one_pc).response()
    assert response.one_pc_commit_ts > read_at
    assert cluster.at(moved, get(b"k", read_at)).response().not_found


def test_in_memory_locks_do_not_outlive_the_leader(make: Callable[..., Cluster]) -> None:
    cluster = make(stores=3)
    (region,) = cluster.regions.all
    proposed, proceed = noted_proposals(cluster), cluster.hold_applies()
    moving = threading.Thread(target=cluster.operators.transfer, args=(region.id, 2))
    moving.start()
    wait_until(lambda: any(command.admin for command in proposed))
    behind = cluster.at(region, prewrite(cluster.tso.get(), put(b"k"), use_async_commit=True))
    wait_until(lambda: len(proposed) == 2)
    proceed.set()
    moving.join()
    found = error(behind)
    assert found.HasField("stale_command") or found.HasField("not_leader")
    assert cluster.shared.nodes[1].concurrency.lock(keys.encode(b"k")) is None
    now = cluster.regions.all[0]
    assert cluster.at(now, get(b"k", cluster.tso.get())).response().not_found


def test_a_request_that_waits_for_a_lock_is_answered_when_the_region_moves(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(stores=3)
    (region,) = cluster.regions.all
    first, second = cluster.tso.get(), cluster.tso.get()
    cluster.at(region, pessimistic_lock(first, first, b"k")).response()
    waiting = cluster.at(region, pessimistic_lock(second, second, b"k", wait_timeout=60_000))
    wait_until(lambda: cluster.shared.nodes[1].waiting.is_busy)
    cluster.operators.transfer(region.id, 3)
    assert error(waiting).HasField("stale_command")
    assert cluster.shared.detector.entries() == []


def test_deadlocks_are_found_across_stores(make: Callable[..., Cluster]) -> None:
    cluster = make(b"m", stores=3)
    low, high = cluster.regions.all
    assert low.leader != high.leader
    one, two = cluster.tso.get(), cluster.tso.get()
    cluster.at(low, pessimistic_lock(one, one, b"a")).response()
    cluster.at(high, pessimistic_lock(two, two, b"z")).response()
    waiting = cluster.at(high, pessimistic_lock(one, one, b"z", wait_timeout=60_000))
    wait_until(lambda: cluster.shared.nodes[high.leader].waiting.is_busy)
    victim = cluster.at(low, pessimistic_lock(two, two, b"a", wait_timeout=60_000)).response()
    assert victim.errors[0].deadlock.lock_ts == one
    cluster.at(
        high, pb.PessimisticRollbackRequest(start_version=two, for_update_ts=two, keys=[b"z"])
    ).response()
    assert not waiting.response().errors


def test_a_stopped_store_loses_its_leaders_only_if_a_majority_is_left(
    make: Callable[..., Cluster],
) -> None:
    cluster = make(b"m", stores=3)
    low = cluster.regions.of_key(b"")
    cluster.stop_store(low.leader)
    moved = cluster.regions.of_key(b"")
    assert (moved.leader != low.leader, moved.term) == (True, low.term + 1)
    assert not cluster.at(moved, prewrite(10, put(b"a"))).response().errors
    cluster.stop_store(moved.leader)
    lost = cluster.regions.of_key(b"")
    assert lost.leader == 0
    (alive,) = cluster.shared.nodes
    found = error(cluster.at(lost, get(b"a", 20), alive)).not_leader
    assert not found.HasField("leader")
    with pytest.raises(InvalidInput, match=f"region {low.id} has no leader"):
        cluster.operators.split(low.id, [keys.encode(b"d")])
    cluster.start_store(low.leader)
    cluster.operators.resume()
    assert cluster.regions.of_key(b"").leader in (low.leader, alive)


def test_peers_move_with_their_leader_and_a_merge_gathers_them(make: Callable[..., Cluster]) -> None:
    cluster = make(b"m", stores=4)
    low, high = cluster.regions.all
    spare = next(store for store in (1, 2, 3, 4) if low.peer_on(store) is None)
    moved = cluster.operators.move(low.id, low.leader, spare)
    assert (moved.leader, moved.conf_ver, moved.version) == (spare, low.conf_ver + 2, low.version)
    assert moved.peer_on(low.leader) is None
    merged = cluster.operators.merge(low.id, high.id)
    assert (merged.start, merged.end, set(merged.stores)) == (b"", b"", set(high.stores))
    with pytest.raises(InvalidInput, match="there is no store 9"):
        cluster.operators.move(high.id, 1, 9)
    with pytest.raises(InvalidInput, match="there is no store 9"):
        cluster.operators.transfer(high.id, 9)


def test_regions_epochs_and_ids_are_durable_and_a_cut_merge_is_carried_on(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "again", [b"m"], TsoMode.SYSTEM, stores=3)
    low, high = cluster.regions.all
    parts = cluster.operators.split(low.id, [keys.encode(b"d"), keys.encode(b"h")])
    cluster.operators.transfer(high.id, high.stores[1])
    cluster.operators.prepare_merge(parts[1].id, parts[2].id)
    before = cluster.regions.all
    last_id = cluster.ids.new()
    cluster.close()
    engine = Engine(tmp_path / "again")
    assert load(engine, []).all == before
    assert Ids(engine, load(engine, [])).new() > last_id
    engine.close()
    again = Cluster(tmp_path / "again", [], TsoMode.SYSTEM, stores=3)
    again.operators.resume()
    assert [region.id for region in again.regions.all] == [parts[0].id, parts[2].id, high.id]
    assert again.regions.by_id[high.id].leader == high.stores[1]
    again.close()


@pytest.mark.parametrize("end", ["commit_merge", "rollback_merge"])
def test_a_start_continues_when_another_has_ended_the_merge_it_resumes(
    make: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    cluster = make(b"m", stores=3)
    low, high = cluster.regions.all
    cluster.operators.prepare_merge(low.id, high.id)
    for store in (high.leader, next(each for each in high.stores if each != high.leader)):
        cluster.stop_store(store)
    assert cluster.regions.by_id[high.id].leader == 0
    carry_on, first = cluster.operators.commit_merge, getattr(cluster.operators, end)

    def beaten(source_id: int) -> Region:
        first(source_id)
        return carry_on(source_id)

    monkeypatch.setattr(cluster.operators, "commit_merge", beaten)
    cluster.start_store(high.leader)
    cluster.operators.resume()
    assert [(region.merging, region.leader != 0) for region in cluster.regions.all] == (
        [(0, True)] if end == "commit_merge" else [(0, True), (0, True)]
    )


def test_regions_of_an_older_data_directory_are_taken_over(tmp_path: Path) -> None:
    engine = Engine(tmp_path)
    rows = [[2, "", keys.encode(b"m").hex(), 1, 1], [3, keys.encode(b"m").hex(), "", 1, 1]]
    engine.write([(META, b"pd/regions", json.dumps(rows).encode())])
    table = load(engine, [b"ignored"], 1)
    assert [(region.id, region.leader, region.stores) for region in table.all] == [(2, 1, (1,)), (3, 1, (1,))]
    assert engine.get(META, b"pd/regions") is None
    assert load(engine, []).all == table.all
    engine.close()


def test_the_middle_and_the_size_say_where_to_split(make: Callable[..., Cluster]) -> None:
    cluster = make()
    (region,) = cluster.regions.all
    assert middle(cluster.engine, region) is None
    for first in range(0, 200, 50):
        cluster.txn(*(put(b"key%03d" % i, bytes(1000)) for i in range(first, first + 50)))
    cluster.txn(put(b"key100", b"again"))
    found = middle(cluster.engine, region)
    assert found is not None
    assert keys.decode(found) in [b"key%03d" % i for i in range(95, 106)]
    cuts = by_size(cluster.engine, region, 50_000)
    assert 3 <= len(cuts) <= 4
    assert by_size(cluster.engine, region, 200_000) == []
    parts = cluster.operators.split(region.id, cuts)
    assert all(by_size(cluster.engine, part, 50_000) == [] for part in parts)


def test_split_region_answers_with_the_parts_or_the_reason(make: Callable[..., Cluster]) -> None:
    cluster = make(b"m")
    low: Region = cluster.regions.of_key(b"")
    response = cluster.at(low, pb.SplitRegionRequest(split_keys=[b"h", b"d"])).response()
    assert [each.end_key for each in response.regions] == [keys.encode(b"d"), keys.encode(b"h"), low.end]
    assert [each.region_epoch.version for each in response.regions] == [3, 3, 3]
    assert response.regions[2].id == low.id
    now = cluster.regions.by_id[low.id]
    assert "no valid key found" in error(cluster.at(now, pb.SplitRegionRequest(split_keys=[b"h"]))).message


def test_a_store_that_stops_while_regions_merge_leads_none_afterwards(make: Callable[..., Cluster]) -> None:
    """The election of a region that was merged away meanwhile must not end those of the others."""
    cluster = make(b"g", b"p", stores=3)
    for region in cluster.regions.all:
        cluster.operators.transfer(region.id, 1)
    source, target, _ = cluster.regions.all
    merged, proceed = threading.Event(), threading.Event()

    class Holder:
        """A member that holds the merge's end back."""

        def will_change(self, change: RegionChange) -> None:
            if change.gone:
                merged.set()
                assert proceed.wait(WAIT_S)

        def has_changed(self, change: RegionChange) -> None:
            """Nothing to do."""

    cluster.raftstore.members[99] = Holder()
    merging = threading.Thread(target=cluster.operators.merge, args=(source.id, target.id))
    merging.start()
    assert merged.wait(WAIT_S)
    elections = noted_proposals(cluster)
    stopping = threading.Thread(target=cluster.stop_store, args=(1,))
    stopping.start()
    wait_until(lambda: bool(elections))  # that of the region that goes
    proceed.set()
    merging.join()
    stopping.join()
    assert source.id not in cluster.regions.by_id
    assert all(region.leader in (2, 3) for region in cluster.regions.all)
    with pytest.raises(InvalidInput, match="store 1 is down"):
        cluster.operators.transfer(target.id, 1)

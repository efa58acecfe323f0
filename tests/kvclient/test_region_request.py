from tidegate.kvclient.backoff import Backoff, Cause
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_cache import RegionInfo
from tidegate.kvclient.region_request import RegionRequester, correct
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import PUT, Mutation, Transaction
from tidegate.proto import errorpb_pb2 as errorpb
from tidegate.proto import metapb_pb2 as metapb


def test_a_stale_cache_is_corrected_and_the_request_arrives(pd: PdClient) -> None:
    txn = Transaction(pd)
    keys = [bytes([first]) for first in range(1, 250, 20)]
    txn.write(Mutation(PUT, key, b"v") for key in keys)
    commit_ts = txn.commit()
    true = pd.scan_regions(b"", b"", 10)
    wrong = RegionInfo(
        true[0].id,
        b"",
        b"",
        true[0].epoch_version + 0,
        true[0].conf_ver,
        true[0].leader_peer_id,
        true[0].leader_store_id,
    )
    pd.regions.clear()
    pd.regions.insert(wrong)
    assert len(Snapshot(pd, commit_ts).batch_get(keys)) == len(keys)


def test_a_wrong_epoch_and_an_unknown_region_are_corrected(pd: PdClient) -> None:
    requester, backoff = RegionRequester(pd), Backoff()
    true = pd.regions.locate(b"k")
    for wrong in (
        RegionInfo(true.id, true.start_key, true.end_key, 99, 1, true.leader_peer_id, true.leader_store_id),
        RegionInfo(4711, true.start_key, true.end_key, 99, 1, true.leader_peer_id, true.leader_store_id),
    ):
        pd.regions.clear()
        pd.regions.insert(wrong)
        assert Snapshot(pd, pd.tso()).get(b"k") is None
        assert pd.regions.locate(b"k") == true
    assert requester.pd is pd
    assert backoff.attempts == 0


def test_each_region_error_corrects_the_cache_its_own_way(pd: PdClient) -> None:
    region = pd.regions.locate(b"k")
    error = errorpb.Error()
    error.not_leader.leader.id = 71
    error.not_leader.leader.store_id = region.leader_store_id
    assert correct(pd, region, error) == (Cause.NOT_LEADER, 0)
    assert pd.regions.locate(b"k").leader_peer_id == 71

    busy = errorpb.Error()
    busy.server_is_busy.backoff_ms = 123
    assert correct(pd, region, busy) == (Cause.BUSY, 123)

    epoch = errorpb.Error()
    current = metapb.Region(id=region.id, start_key=region.start_key, end_key=region.end_key)
    current.region_epoch.version = region.epoch_version + 5
    epoch.epoch_not_match.current_regions.append(current)
    assert correct(pd, region, epoch)[0] is Cause.REGION_MISS
    assert pd.regions.locate(b"k").epoch_version == region.epoch_version + 5

    assert correct(pd, region, errorpb.Error(message="something new"))[0] is Cause.REGION_MISS
    assert pd.regions.locate(b"k") == region

"""PD of three members: the client finds a new leader, also one that it was not configured with."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from tidegate.errors import InvalidInput
from tidegate.kvclient.pd import PdClient
from tidegate.proto import pdpb_pb2 as pdpb
from tidegate.proto import pdpb_pb2_grpc
from tidegate.tikv.server import EmbeddedUpstream


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream(tmp_path, pd_members=3) as upstream:
        yield upstream


def test_timestamps_ascend_and_regions_are_found_while_the_leader_changes(three: EmbeddedUpstream) -> None:
    stop = threading.Event()
    seen: list[int] = []
    failures: list[Exception] = []

    def ask() -> None:
        try:
            while not stop.is_set():
                seen.append(pd.tso())
                assert len(pd.scan_regions(b"", b"", 10)) == 1
        except Exception as error:
            failures.append(error)

    with PdClient(three.pd_addr) as pd:
        thread = threading.Thread(target=ask)
        thread.start()
        for leader in (2, 3, 2, 1, 3):
            before = len(seen)
            three.pd_members.transfer(leader)
            assert pd.tso() > 0
            assert pd.leader_address == three.pd_members.addresses[leader - 1]
            while len(seen) < before + 5 and not failures:
                stop.wait(0.01)
        stop.set()
        thread.join()
    assert not failures
    assert seen == sorted(set(seen))


def test_an_unlisted_leader_is_found_when_all_listed_members_are_gone(
    three: EmbeddedUpstream,
) -> None:
    with PdClient(three.pd_addr) as pd:
        first = pd.tso()
        three.pd_members.transfer(2)
        three.pd_members.server(1).stop(None).wait()
        assert pd.tso() > first
        assert pd.leader_address == three.pd_members.addresses[1]


def test_an_end_of_the_timestamp_stream_that_grpc_hides_is_noticed(
    three: EmbeddedUpstream, stuck_readers: list[threading.Thread]
) -> None:
    with PdClient(three.pd_addr) as pd:
        first = pd.tso()
        three.pd_members.transfer(2)
        assert pd.tso() > first
        assert pd.leader_address == three.pd_members.addresses[1]
        # Readers of the old leader's stream, and of those that met it again as a follower, perhaps later.
        while not stuck_readers:
            pd.pause(0.01)


def test_a_follower_says_who_leads_and_refuses_the_rest(three: EmbeddedUpstream) -> None:
    with grpc.insecure_channel(three.pd_members.addresses[2]) as channel:
        stub = pdpb_pb2_grpc.PDStub(channel)
        answer = stub.GetMembers(pdpb.GetMembersRequest())
        assert [member.name for member in answer.members] == ["pd-embedded", "pd-embedded-2", "pd-embedded-3"]
        assert answer.leader.member_id == 1
        for call in (
            lambda: stub.GetAllStores(pdpb.GetAllStoresRequest()),
            lambda: next(stub.Tso(iter([pdpb.TsoRequest(count=1)]))),
        ):
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert (refused.value.code(), refused.value.details()) == (
                grpc.StatusCode.UNAVAILABLE,
                "not leader",
            )
    with pytest.raises(InvalidInput, match="PD has no member 4"):
        three.pd_members.transfer(4)

from typing import Any

import pytest

from tidegate.errors import InvalidInput, Retryable
from tidegate.kvclient.backoff import Backoff
from tidegate.kvclient.channel import ChannelPool, address_of, beginning
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.region_request import RegionRequester
from tidegate.proto import kvrpcpb_pb2 as kvrpcpb


@pytest.mark.parametrize(
    "url", ["127.0.0.1:2379", "http://127.0.0.1:2379", "https://127.0.0.1:2379/", " 127.0.0.1:2379 "]
)
def test_an_address_is_taken_as_users_and_pd_write_it(url: str) -> None:
    assert address_of(url) == "127.0.0.1:2379"


@pytest.mark.parametrize("url", ["", "127.0.0.1", ":2379", "host:port", "tls://127.0.0.1:2379"])
def test_anything_else_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        address_of(url)


def test_one_address_has_one_channel_until_the_pool_is_closed() -> None:
    pool = ChannelPool()
    assert pool.get("127.0.0.1:1") is pool.get("127.0.0.1:1")
    pool.close()
    with pytest.raises(InvalidInput):
        pool.get("127.0.0.1:1")


def test_a_channel_that_is_closed_between_stub_and_call_is_retryable(
    pd: PdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's own error for it is a ValueError; a stub made on a closed channel ends the process."""
    region = pd.regions.locate(b"k")
    address = pd.store_address(region.leader_store_id)
    pd.regions.clear()

    def stub(of: str, kind: type) -> Any:
        found = made(of, kind)
        if of not in closed:
            closed.append(of)
            pd.channels.drop(of)
        return found

    closed: list[str] = []
    made = pd.channels.stub
    monkeypatch.setattr(pd.channels, "stub", stub)
    with pytest.raises(Retryable, match="the connection was closed before a call"):
        RegionRequester(pd).send(region, "KvGet", kvrpcpb.GetRequest(key=b"k"), Backoff())
    assert closed == [address]
    closed.clear()
    assert pd.tso() > 0, "asked again"
    assert closed
    with pytest.raises(ValueError, match="another"), beginning(pd.address):
        raise ValueError("another")

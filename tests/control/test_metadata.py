import pytest

from tidegate.control.metadata import (
    FeedError,
    FeedId,
    FeedInfo,
    FeedStatus,
    Grant,
    feed_key,
    feed_of_key,
    grant_key,
)
from tidegate.errors import InvalidInput


def test_values_survive_the_store() -> None:
    grant = Grant("f00d", (7, 3), 12, 4)
    assert Grant.from_bytes(grant.to_bytes()) == grant
    status = FeedStatus(5, 9)
    assert FeedStatus.from_bytes(status.to_bytes()) == status
    error = FeedError("broken", "CDC:ErrX", 17, "127.0.0.1:8300")
    info = FeedInfo("kafka://a/b", {"filter": {}}, 1, 2, 3, "warning", "5f0c", error)
    assert FeedInfo.from_bytes(info.to_bytes()) == info


def test_keys_name_their_feed() -> None:
    feed = FeedId("default", "one")
    assert feed_key(42, feed, "grant") == "/tidegate/42/default/changefeed/grant/one"
    assert grant_key(42, "default", "one") == feed_key(42, feed, "grant")
    assert feed_of_key(feed_key(42, feed, "info")) == (feed, "info")
    assert feed_of_key("/tidegate/42/owner") is None


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"token":[1],"incarnation":1,"slots":1}'])
def test_a_damaged_grant_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInput):
        Grant.from_bytes(data)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a--b", "a_b", "a" * 129, "a/../b"])
def test_names_ticdc_would_refuse_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        FeedId.checked("default", name)

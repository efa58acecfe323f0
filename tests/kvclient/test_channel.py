import pytest

from tidegate.errors import InvalidInput
from tidegate.kvclient.channel import ChannelPool, address_of


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

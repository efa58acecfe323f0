"""RawKV: the bytes of API V2, what readers see, expiry, compare and swap; and API V1 for older clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tikv.cluster import Cluster
from tests.tikv.support import prewrite, put
from tidegate.errors import InvalidInput, Undecodable
from tidegate.proto import kvrpcpb_pb2 as pb
from tidegate.tikv import keys, mvcc
from tidegate.tikv.api_version import keyspace_prefix
from tidegate.tikv.pd.tso import TsoMode
from tidegate.tikv.raw.raw_pairs import RawValue, decode_value, encode_value
from tidegate.tikv.server import EmbeddedUpstream

K = keyspace_prefix(b"r", 0)
V2 = pb.V2
IN_V2 = pb.Context(api_version=V2)
Make = Callable[..., Cluster]


def v2(request: Any) -> Any:
    request.context.api_version = V2
    return request


class Raw:
    """The raw interface of a store of API V2."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def call(self, request: Any, key: bytes = K) -> Any:
        return self.cluster.call(v2(request), key)

    def put(self, key: bytes, value: bytes, ttl: int = 0) -> None:
        assert not self.call(pb.RawPutRequest(key=K + key, value=value, ttl=ttl)).error

    def get(self, key: bytes) -> bytes | None:
        answer = self.call(pb.RawGetRequest(key=K + key))
        return None if answer.not_found else answer.value

    def delete(self, key: bytes) -> None:
        assert not self.call(pb.RawDeleteRequest(key=K + key)).error

    def scan(self, low: bytes = b"", high: bytes = b"\xff", **more: Any) -> list[tuple[bytes, bytes]]:
        bounds = (K + high, K + low) if more.get("reverse") else (K + low, K + high)
        request = pb.RawScanRequest(
            start_key=bounds[0], end_key=bounds[1], limit=more.pop("limit", 99), **more
        )
        return [(pair.key[4:], pair.value) for pair in self.call(request).kvs]

    def swap(self, key: bytes, before: bytes | None, after: bytes, **more: Any) -> Any:
        request = pb.RawCASRequest(
            key=K + key, value=after, previous_not_exist=before is None, previous_value=before or b"", **more
        )
        return self.call(request)


@pytest.fixture
def raw(make: Make) -> Raw:
    return Raw(make(K + b"m", api_version=2))


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (RawValue(b"value"), b"value\x00"),
        (RawValue(b"value", 0x0102), b"value\x00\x00\x00\x00\x00\x00\x01\x02\x01"),
        (RawValue(b"", 0, True), b"\x02"),
        (RawValue(b"", 5, True), b"\x00\x00\x00\x00\x00\x00\x00\x05\x03"),
    ],
)
def test_a_value_has_tikvs_bytes(value: RawValue, stored: bytes) -> None:
    assert decode_value(stored) == value
    if not value.deleted:
        assert encode_value(value.value, value.expires) == stored


@pytest.mark.parametrize("stored", [b"", b"x\x04", b"\x01", b"1234567\x01"])
def test_other_bytes_are_refused(stored: bytes) -> None:
    with pytest.raises(Undecodable, match="not a raw value of API V2"):
        decode_value(stored)


def test_a_write_has_a_causal_timestamp_and_a_delete_leaves_a_tombstone(raw: Raw) -> None:
    before = raw.cluster.tso.get()
    raw.put(b"k", b"one")
    raw.put(b"k", b"two")
    raw.delete(b"k")
    encoded = keys.encode(K + b"k")
    cursor = raw.cluster.engine.cursor(mvcc.DEFAULT)
    cursor.seek(encoded)
    found = []
    while cursor.valid():
        assert cursor.key()[:-8] == encoded
        found.append((keys.version_of(cursor.key()), cursor.value()))
        cursor.next()
    assert [value for _, value in found] == [b"\x02", b"two\x00", b"one\x00"]
    assert found[0][0] > found[1][0] > found[2][0] > before
    assert raw.get(b"k") is None


def test_what_was_written_is_read_in_every_way(raw: Raw) -> None:
    pairs = [pb.KvPair(key=K + key, value=b"v" + key) for key in (b"a", b"b", b"c", b"d")]
    assert not raw.call(pb.RawBatchPutRequest(pairs=pairs)).error
    raw.delete(b"c")
    raw.put(b"b", b"")
    assert raw.get(b"b") == b"", "an empty value is a value"
    got = raw.call(pb.RawBatchGetRequest(keys=[K + key for key in (b"d", b"c", b"a")])).pairs
    assert [(pair.key[4:], pair.value) for pair in got] == [(b"d", b"vd"), (b"a", b"va")]
    everything = [(b"a", b"va"), (b"b", b""), (b"d", b"vd")]
    assert raw.scan() == everything
    assert raw.scan(reverse=True) == everything[::-1]
    assert raw.scan(limit=2) == everything[:2]
    assert raw.scan(b"b", b"d") == everything[1:2]
    assert raw.scan(b"b", b"d", reverse=True) == everything[1:2]
    assert raw.scan(key_only=True) == [(key, b"") for key, _ in everything]
    ranges = [
        pb.KeyRange(start_key=K + b"a", end_key=K + b"b"),
        pb.KeyRange(start_key=K + b"c", end_key=K + b"e"),
    ]
    batch = raw.call(pb.RawBatchScanRequest(ranges=ranges, each_limit=9)).kvs
    assert [pair.key[4:] for pair in batch] == [b"a", b"d"]
    assert not raw.call(pb.RawBatchDeleteRequest(keys=[K + b"a", K + b"d"])).error
    assert raw.scan() == [(b"b", b"")]
    assert not raw.call(pb.RawDeleteRangeRequest(start_key=K, end_key=K + b"z")).error
    assert raw.scan() == []


def test_a_value_is_gone_when_its_time_has_come(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    raw.put(b"k", b"v", ttl=10_000)
    raw.put(b"l", b"v")
    assert 9_000 <= raw.call(pb.RawGetKeyTTLRequest(key=K + b"k")).ttl <= 10_000
    assert raw.call(pb.RawGetKeyTTLRequest(key=K + b"l")).ttl == 0
    clock = raw.cluster.clock
    monkeypatch.setattr(clock, "now_ms", lambda now=clock.now_ms(): now + 10_001_000)
    assert raw.get(b"k") is None
    assert raw.scan() == [(b"l", b"v")]
    assert raw.scan(reverse=True) == [(b"l", b"v")]
    assert raw.call(pb.RawGetKeyTTLRequest(key=K + b"k")).not_found
    assert raw.swap(b"k", None, b"again").succeed, "expired is not there"


def test_ttls_are_one_for_all_or_one_each(raw: Raw) -> None:
    pairs = [pb.KvPair(key=K + key, value=b"v") for key in (b"a", b"b")]

    def ttls() -> list[bool]:
        return [raw.call(pb.RawGetKeyTTLRequest(key=K + key)).ttl > 0 for key in (b"a", b"b")]

    raw.call(pb.RawBatchPutRequest(pairs=pairs, ttls=[50]))
    assert ttls() == [True, True]
    raw.call(pb.RawBatchPutRequest(pairs=pairs, ttls=[0, 50]))
    assert ttls() == [False, True]
    assert "2 pairs with 3 ttls" in raw.call(pb.RawBatchPutRequest(pairs=pairs, ttls=[1, 2, 3])).error


def test_a_swap_happens_only_over_the_expected_value(raw: Raw) -> None:
    assert raw.swap(b"k", b"x", b"1").previous_not_exist
    assert raw.get(b"k") is None
    assert raw.swap(b"k", None, b"1").succeed
    lost = raw.swap(b"k", None, b"2")
    assert (lost.succeed, lost.previous_value, lost.previous_not_exist) == (False, b"1", False)
    assert raw.swap(b"k", b"1", b"2").succeed
    assert raw.get(b"k") == b"2"
    assert raw.swap(b"k", b"2", b"", delete=True).succeed
    assert raw.get(b"k") is None


@pytest.mark.parametrize(
    ("request_", "key", "text"),
    [
        (
            pb.RawGetRequest(key=b"k", context=IN_V2),
            b"k",
            "RawKV keys only, 6b is unknown",
        ),
        (pb.RawGetRequest(key=K), K, "API version not matched: the store has V2, the request V1"),
        (
            pb.RawPutRequest(key=K, cf="lock", context=IN_V2),
            K,
            "invalid column family 'lock'",
        ),
        (prewrite(5, put(b"other")), b"other", "TiDB keys only"),
        (prewrite(5, put(b"t1"), context=IN_V2), b"t1", "TxnKV keys only, 7431 is TiDB"),
        (
            pb.ScanRequest(start_key=b"x\0\0\0", end_key=b"z", limit=1, context=IN_V2),
            b"x",
            "invalid key mode",
        ),
    ],
)
def test_a_key_of_another_kind_is_refused(make: Make, request_: Any, key: bytes, text: str) -> None:
    copy = type(request_).FromString(request_.SerializeToString())
    answer = make(api_version=2).call(copy, key)
    error = answer.errors[0].abort if hasattr(answer, "errors") else answer.error
    assert text in (error if isinstance(error, str) else error.abort)


def test_a_v2_store_serves_tidbs_keys_to_old_and_keyspaces_to_new_clients(make: Make) -> None:
    cluster = make(api_version=2)
    assert not cluster.call(prewrite(5, put(b"t\x80")), b"t\x80").errors
    mine = keyspace_prefix(b"x", 7) + b"k"
    assert not cluster.call(v2(prewrite(5, put(mine))), mine).errors
    scan = pb.ScanRequest(
        start_key=keyspace_prefix(b"x", 7), end_key=keyspace_prefix(b"x", 8), limit=9, version=4
    )
    assert not cluster.call(v2(scan), mine).pairs


def test_raw_writes_under_a_standing_clock_are_refused(make: Make) -> None:
    cluster = make(mode=TsoMode.MANUAL, api_version=2)
    answer = cluster.call(v2(pb.RawPutRequest(key=K, value=b"v")), K)
    assert answer.error == "raw writes need a TSO that moves: start the upstream with --tso system"


def test_api_v1_keeps_key_and_value_as_they_are_and_has_no_ttl(make: Make) -> None:
    cluster = make()
    cluster.call(pb.RawPutRequest(key=b"k", value=b"v"), b"k")
    assert cluster.engine.get(mvcc.DEFAULT, b"k") == b"v"
    assert cluster.call(pb.RawGetRequest(key=b"k"), b"k").value == b"v"
    assert "ttl is not enabled" in cluster.call(pb.RawPutRequest(key=b"k", value=b"v", ttl=1), b"k").error
    assert cluster.call(pb.RawCASRequest(key=b"k", value=b"w", previous_value=b"v"), b"k").succeed
    scan = pb.RawScanRequest(start_key=b"", limit=9)
    assert [(pair.key, pair.value) for pair in cluster.call(scan, b"k").kvs] == [(b"k", b"w")]
    cluster.call(pb.RawDeleteRequest(key=b"k"), b"k")
    assert cluster.call(pb.RawGetRequest(key=b"k"), b"k").not_found


def test_the_api_version_of_a_data_directory_stays(tmp_path: Path) -> None:
    for wanted in (2, None, 2):
        with EmbeddedUpstream(tmp_path, api_version=wanted, keyspaces=["one"]) as upstream:
            assert upstream.api_version == 2
    with pytest.raises(InvalidInput, match="this data directory is of API version 2, not 1"):
        EmbeddedUpstream(tmp_path, api_version=1)
    with pytest.raises(InvalidInput, match="there is no API version 3"):
        EmbeddedUpstream(tmp_path, api_version=3)


KEYS = st.sampled_from([b"a", b"ab", b"b", b"m", b"n" * 20])
STEPS = st.one_of(
    st.tuples(st.just("put"), KEYS, st.binary(max_size=3)),
    st.tuples(st.just("delete"), KEYS, st.just(b"")),
    st.tuples(st.just("swap"), KEYS, st.binary(max_size=3)),
)


@settings(max_examples=15, deadline=None)
@given(steps=st.lists(STEPS, max_size=12))
def test_it_behaves_like_a_dict(tmp_path_factory: Any, steps: list[tuple[str, bytes, bytes]]) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("raw"), [], TsoMode.SYSTEM, 2)
    try:
        raw, model = Raw(cluster), dict[bytes, bytes]()
        for step, key, value in steps:
            if step == "put":
                raw.put(key, value)
                model[key] = value
            elif step == "delete":
                raw.delete(key)
                model.pop(key, None)
            else:
                assert raw.swap(key, model.get(key), value).succeed
                model[key] = value
        assert raw.scan() == sorted(model.items())
        assert raw.scan(reverse=True) == sorted(model.items(), reverse=True)
        assert {key: raw.get(key) for key in model} == model
    finally:
        cluster.close()

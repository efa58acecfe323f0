"""Keyspaces that collect garbage by themselves: what a feed of one needs is held there, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.test_capture import Running

from tidegate.control.gc import service_id
from tidegate.kvclient.pd import PdClient
from tidegate.tikv.server import EmbeddedUpstream

pytestmark = pytest.mark.integration

OWN, SHARED, OTHER = "own", "shared", "other"
CONFIGS = {OWN: {"gc_management_type": "keyspace_level"}, OTHER: {"tso_keyspace_group_id": "3"}}


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[EmbeddedUpstream]:
    with EmbeddedUpstream(
        tmp_path / "upstream", api_version=2, keyspaces=[OWN, SHARED, OTHER], keyspace_configs=CONFIGS
    ) as running:
        yield running


@pytest.fixture
def pd(upstream: EmbeddedUpstream) -> Iterator[PdClient]:
    with PdClient(upstream.pd_addr) as client:
        yield client


@pytest.fixture
def running(upstream: EmbeddedUpstream, tmp_path: Path) -> Iterator[Running]:
    capture = Running(upstream.pd_addr, tmp_path / "capture", tmp_path / "out")
    yield capture
    capture.stop()


def keys_of(keyspace: str | int) -> dict[str, Any]:
    named = {"keyspace": keyspace} if isinstance(keyspace, str) else {"keyspace_id": keyspace}
    return {"tidegate": {"kv_mode": "txnkv"} | named}


def held(upstream: EmbeddedUpstream) -> tuple[dict[str, int], dict[str, int]]:
    """Return the holds in the cluster's scope, and in that of the keyspace with a GC of its own."""
    now = upstream.tso.present()
    scopes = (upstream._safe_points, *upstream.keyspace_points.values())
    cluster, own = ({s.service_id: s.safe_point for s in scope.services(now)} for scope in scopes)
    return {k: v for k, v in cluster.items() if k != "gc_worker"}, {
        k: v for k, v in own.items() if k != "gc_worker"
    }


def test_history_is_held_where_the_keyspace_is_collected(
    upstream: EmbeddedUpstream, pd: PdClient, running: Running
) -> None:
    own, shared = pd.keyspaces.named(OWN).id, pd.keyspaces.named(SHARED).id
    start, node = pd.tso(), running.capture.node
    for name, keyspace in (("a", OWN), ("b", shared)):
        made = running.create(name, start_ts=start, replica_config=keys_of(keyspace))
        assert made["http"] == 200, made
    names = {number: service_id(pd.cluster_id, node.identity, number) for number in (own, shared)}
    assert held(upstream) == ({names[shared]: start - 1}, {names[own]: start - 1})
    for name in ("a", "b"):
        running.wait_checkpoint(name, start + 1)
    assert running.call("DELETE", "/changefeeds/a")["http"] == 200
    assert held(upstream)[1] == {}
    assert set(held(upstream)[0]) == {names[shared]}


def test_a_feed_is_rejected_only_if_its_own_keyspace_has_collected(
    upstream: EmbeddedUpstream, pd: PdClient, running: Running
) -> None:
    start = pd.tso()
    (points,) = upstream.keyspace_points.values()
    gone = pd.tso()
    assert points.update(gone, pd.tso()) == gone
    refused = running.create("a", start_ts=start, replica_config=keys_of(OWN))
    assert (refused["http"], refused["error_code"]) == (400, "CDC:ErrStartTsBeforeGC")
    assert str(gone) in refused["error_msg"]
    assert held(upstream) == ({}, {}), "nothing is left of the try"
    assert running.create("b", start_ts=start, replica_config=keys_of(SHARED))["http"] == 200
    assert running.create("a", start_ts=gone + 1, replica_config=keys_of(OWN))["http"] == 200
    for name in ("a", "b"):
        running.wait_checkpoint(name, gone + 1)


def test_a_keyspace_with_timestamps_of_its_own_is_refused(pd: PdClient, running: Running) -> None:
    for keyspace in (OTHER, pd.keyspaces.named(OTHER).id):
        refused = running.create("a", replica_config=keys_of(keyspace))
        assert refused["http"] == 400
        assert "TSO group 3" in refused["error_msg"]
    assert pd.keyspaces.of_id(1 << 20) is None

"""Sessions and the election, over a real etcd."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.etcd.line import Line
from tidegate.control.metadata import Compare, Put
from tidegate.errors import Fenced, Retryable
from tidegate.etcd import session as session_module
from tidegate.etcd.client import EtcdClient, LeaseGone
from tidegate.etcd.election import Election, capture_prefix, put_leased
from tidegate.etcd.metadata import EtcdMetadata
from tidegate.etcd.session import LEAST_TTL_S, MARGIN, LocalLease, Session
from tidegate.server.captures.membership import CaptureInfo, Membership

NUMBERS = iter(range(1_000_000, 2_000_000))
WAIT_S = 60


@pytest.fixture
def cluster() -> int:
    return next(NUMBERS)


@pytest.fixture
def client(etcd: str) -> Iterator[EtcdClient]:
    one = EtcdClient(etcd)
    yield one
    one.close()


def wait(what: object, holds: object) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.02)


def test_a_local_lease_counts_from_when_it_was_sent_and_ends_early() -> None:
    lease = LocalLease()
    assert not lease.holds(0.0)
    lease.renewed(10.0, 5)
    assert lease.holds(10.0 + 5 * (1 - MARGIN) - 0.001)
    assert not lease.holds(10.0 + 5 * (1 - MARGIN))
    lease.renewed(12.0, 5)
    lease.renewed(11.0, 5)  # an answer that was overtaken
    assert lease.holds(12.0 + 5 * (1 - MARGIN) - 0.001)
    lease.renewed(13.0, 0)
    assert not lease.holds(13.0)


def test_the_oldest_is_the_owner_and_the_next_has_a_higher_revision(client: EtcdClient, cluster: int) -> None:
    sessions = [Session(client, 10) for _ in range(3)]
    elections = [
        Election(client, cluster, one.lease, name) for one, name in zip(sessions, "abc", strict=True)
    ]
    assert elections[0].owner() is None
    for one in elections:
        one.stand()
        one.stand()  # a second time changes nothing
    store, revisions = EtcdMetadata(client), []
    for session, name in zip(sessions, "abc", strict=True):
        owner = elections[0].owner()
        assert owner is not None
        assert owner.capture == name
        guard = Compare(owner.key, mod_revision=owner.revision)
        assert store.transact([guard], [Put(f"/{cluster}/x", name.encode())]).succeeded
        revisions.append(owner.revision)
        session.close()
        assert not store.transact([guard], [Put(f"/{cluster}/x", b"zombie")]).succeeded
    assert revisions == sorted(set(revisions))
    assert elections[0].owner() is None


def test_a_candidate_that_steps_down_is_the_last_in_the_row(client: EtcdClient, cluster: int) -> None:
    first, second = (Election(client, cluster, Session(client, 10).lease, name) for name in "ab")
    first.stand()
    second.stand()
    old = first.owner()
    assert old is not None
    first.step_down(old.revision)
    first.stand()
    now = first.owner()
    assert now is not None
    assert now.capture == "b"
    first.step_down(old.revision)  # an attempt that was repeated arrives late
    second.step_down(now.revision)
    again = first.owner()
    assert again is not None
    assert again.key == old.key
    assert again.revision > now.revision
    guard = Compare(old.key, mod_revision=old.revision)
    assert not EtcdMetadata(client).transact([guard], [Put(f"/{cluster}/x", b"of the first term")]).succeeded


def test_the_next_session_of_a_process_does_not_wait_for_the_last_one(
    client: EtcdClient, cluster: int
) -> None:
    """etcd that was restarted keeps a lease for its whole TTL, although nobody renews it."""
    me = CaptureInfo("id", "a", "127.0.0.1:1", "1")
    last = Membership(client, cluster, me, 600)
    epoch = last.register()
    last.stand()
    with pytest.raises(Retryable, match="another capture has this name"):
        Membership(client, cluster, me, 600).register()
    now = Membership(client, cluster, me, 600, last.lease)
    assert now.register() > epoch
    assert now.owner() is None
    now.close()


def test_a_session_that_is_not_renewed_ends_here_before_it_ends_in_etcd(
    etcd: str, client: EtcdClient, cluster: int
) -> None:
    line = Line(etcd)
    session = Session(EtcdClient(line.endpoint, patience_s=1), 2 * LEAST_TTL_S)
    election = Election(client, cluster, session.lease, "a")
    election.stand()
    wait("renewed", lambda: session.holds)
    line.requests.clear()
    line.cut()

    def is_over_in_etcd() -> bool:
        # Asked in this order, a slow machine cannot make a session that ended in time seem to have held on.
        is_over, holds = election.owner() is None, session.holds
        assert not (is_over and holds)
        return is_over

    wait("over in etcd", is_over_in_etcd)
    assert not session.holds
    assert session.why_lost
    line.close()


def test_a_session_lives_as_long_as_it_is_renewed(
    client: EtcdClient, cluster: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "RENEWALS", 60)
    session = Session(client, 60)  # long, or a slow machine could end it
    first = session._lease.until
    wait("renewed twice", lambda: session._lease.until > first + 1.5)
    assert session.holds
    client.revoke(session.lease)
    wait("gone", lambda: session._lease.gone)
    assert not session.holds
    assert "ended the lease" in session.why_lost
    session.close()  # what is gone is no error


def test_a_name_belongs_to_one_session(client: EtcdClient, cluster: int) -> None:
    one, two = Session(client, 10), Session(client, 10)
    key = capture_prefix(cluster) + "a"
    put_leased(client, key, b"1", one.lease)
    put_leased(client, key, b"1", one.lease)
    with pytest.raises(Retryable, match="another capture has this name"):
        put_leased(client, key, b"2", two.lease)
    one.close()
    put_leased(client, key, b"2", two.lease)
    two.close()


def test_a_put_under_a_gone_lease_is_a_lost_session_and_not_bad_input(
    client: EtcdClient, cluster: int
) -> None:
    """A capture campaigns again after it; bad input would end the process."""
    lease, _ = client.grant_lease(10)
    client.revoke(lease)
    with pytest.raises(LeaseGone):
        put_leased(client, capture_prefix(cluster) + "a", b"1", lease)
    assert issubclass(LeaseGone, Fenced)

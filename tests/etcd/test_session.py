"""From when a session counts its lease, over a client that answers slowly and a clock that the test moves."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from tidegate.errors import Fenced
from tidegate.etcd import session as session_module
from tidegate.etcd.session import BEATS, MARGIN, Session

TTL_S = 6
BEGAN_S, SLOW_S = 100.0, 2.5
EARLY_S = 0.001


class SlowEtcd:
    """A client whose answers arrive `SLOW_S` after they were asked for; it renews a lease once."""

    def __init__(self) -> None:
        self.now, self.renewals = BEGAN_S, 0

    def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        self.now += SLOW_S
        return 1, ttl_s

    def keep_alive(self, lease: int, patience_s: float) -> int:
        self.renewals += 1
        if self.renewals > 1:
            raise Fenced("etcd refuses us")
        self.now += SLOW_S
        return TTL_S

    def revoke(self, lease: int) -> None:
        pass


@pytest.fixture
def etcd(monkeypatch: pytest.MonkeyPatch) -> SlowEtcd:
    slow = SlowEtcd()
    monkeypatch.setattr(session_module, "now_s", lambda: slow.now)
    return slow


@pytest.fixture
def session(etcd: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session that is granted, and renewed once if the test says so."""
    # The thread waits for real. The pause is an hour, so that no renewal comes, or a millisecond.
    monkeypatch.setattr(session_module, "RENEWALS", TTL_S / (0.001 if request.param else 3600.0))
    one = Session(etcd, TTL_S)
    if request.param:
        one._thread.join(60)
    yield one
    one.close()


@pytest.mark.parametrize("session", [False, True], indirect=True, ids=["granted", "renewed"])
def test_a_lease_counts_from_the_sending_however_late_the_answer(etcd: SlowEtcd, session: Session) -> None:
    """etcd counts from some moment before its answer, so another capture may take over before our TTL ends
    if we count from the answer.
    """
    sent = BEGAN_S + SLOW_S * min(etcd.renewals, 1)
    etcd.now = sent + TTL_S * (1 - MARGIN) - EARLY_S
    assert session.holds
    etcd.now = sent + TTL_S * (1 - MARGIN) + EARLY_S
    assert not session.holds


class QuickEtcd:
    """A client that renews a lease as often as it is asked to; no time passes by itself."""

    def __init__(self) -> None:
        self.now = BEGAN_S

    def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        return 1, ttl_s

    def keep_alive(self, lease: int, patience_s: float) -> int:
        return TTL_S

    def revoke(self, lease: int) -> None:
        pass


def test_a_session_whose_process_hangs_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread would renew it for ever, and nobody could take over."""
    quick: Any = QuickEtcd()
    monkeypatch.setattr(session_module, "now_s", lambda: quick.now)
    monkeypatch.setattr(session_module, "RENEWALS", TTL_S / 0.001)
    session = Session(quick, TTL_S)
    for _ in range(4 * BEATS):
        quick.now += TTL_S / 2
        session.beat()
        end = time.monotonic() + 60
        while session._lease.until < quick.now + TTL_S * (1 - MARGIN):
            assert time.monotonic() < end
            time.sleep(0.001)
        assert session.holds
    quick.now += BEATS * TTL_S + EARLY_S
    session._thread.join(60)
    assert not session._thread.is_alive()
    assert not session.holds
    assert "hangs" in session.why_lost


@pytest.mark.parametrize("session", [True], indirect=True)
def test_a_lease_ends_here_though_the_local_clock_is_a_tenth_too_slow(
    etcd: SlowEtcd, session: Session
) -> None:
    """Both clocks count the same TTL, so only a margin lets ours end first."""
    etcd.now = BEGAN_S + SLOW_S + TTL_S * 0.9
    assert not session.holds

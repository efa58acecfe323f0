"""Who holds old versions, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.model.timestamp import compose
from tidegate.tikv.engine import Engine
from tidegate.tikv.pd.gc import GC_WORKER, SafePoints

NOW = compose(1_000_000)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.close()


def test_the_least_safepoint_is_the_bound_and_none_below_it_is_accepted(engine: Engine) -> None:
    points = SafePoints(engine)
    assert points.update_service("feed", 60, 100, NOW).service_id == GC_WORKER
    assert points.update_service(GC_WORKER, 0, 500, NOW).safe_point == 100
    assert points.update_service("late", 60, 99, NOW).service_id == "feed"
    assert [each.service_id for each in points.services(NOW)] == ["feed", GC_WORKER]


def test_a_safepoint_expires_by_pds_time_and_can_be_given_up(engine: Engine) -> None:
    points = SafePoints(engine)
    points.update_service("feed", 60, 100, NOW)
    points.update_service("other", 600, 200, NOW)
    points.update_service(GC_WORKER, 0, 500, NOW)
    later = compose(1_000_000 + 60_001)
    assert points.services(compose(1_060_000))[0].service_id == "feed"
    assert points.services(later)[0].service_id == "other"
    assert points.update_service("other", 0, 0, later).service_id == GC_WORKER


def test_the_clusters_safepoint_stops_at_the_services_and_never_goes_back(engine: Engine) -> None:
    points = SafePoints(engine)
    points.update_service("feed", 60, 100, NOW)
    assert points.update(300, NOW) == 100
    assert points.update(50, NOW) == 100
    assert points.services(NOW)[0].safe_point == 100


def test_a_barrier_may_be_below_services_but_not_below_the_collectors_ts(
    engine: Engine,
) -> None:
    points = SafePoints(engine)
    points.update_service("feed", 60, 200, NOW)
    held = points.set_barrier("backup", 60, 100, NOW)
    assert held is not None
    assert held.ttl_s(NOW) == 60
    assert points.update(300, NOW) == 100
    points.update_service(GC_WORKER, 0, 100, NOW)
    assert points.set_barrier("late", 60, 99, NOW) is None
    assert points.delete_barrier("backup", NOW) == held
    assert points.delete_barrier("backup", NOW) is None
    assert points.delete_barrier(GC_WORKER, NOW) is None
    assert points.update(300, NOW) == 200


def test_all_of_it_is_there_after_a_restart(engine: Engine) -> None:
    points = SafePoints(engine)
    points.update_service("feed", 60, 100, NOW)
    points.update(90, NOW)
    again = SafePoints(engine)
    assert again.services(NOW) == points.services(NOW)
    assert again.safe_point == 90

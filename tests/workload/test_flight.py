import threading
from concurrent.futures import Future

import pytest

from tidegate.workload.flight import Flight


def test_pieces_land_in_launch_order_though_they_end_in_another() -> None:
    landed: list[tuple[int, str]] = []
    first = Future[str]()
    with Flight[int](2, 4, lambda tag, result: landed.append((tag, result))) as flight:
        flight.launch(frozenset({b"a"}), 1, first.result)
        flight.launch(frozenset({b"b"}), 2, lambda: first.set_result("one") or "two")
        flight.land(0)
    assert landed == [(1, "one"), (2, "two")]


def test_pieces_that_share_a_key_never_run_side_by_side() -> None:
    running, overlaps = threading.Semaphore(1), []

    def work() -> None:
        if not running.acquire(blocking=False):
            overlaps.append(1)
            return
        running.release()

    with Flight[int](4, 8, lambda tag, result: None) as flight:
        for number in range(200):
            flight.launch(frozenset({b"same", b"%d" % number}), number, work)
        flight.land(0)
    assert overlaps == []


def test_a_failure_is_raised_where_it_lands() -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    with Flight[int](1, 4, lambda tag, result: None) as flight:
        flight.launch(frozenset({b"a"}), 1, fail)
        with pytest.raises(RuntimeError, match="broken"):
            flight.land(0)

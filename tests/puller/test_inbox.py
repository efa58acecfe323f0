"""Tasks come in order, those of a timer when they are due, and the end ends it."""

from __future__ import annotations

import threading

from tidegate.puller.inbox import Inbox


class Clock:
    """A clock that advances only when it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return self.now


def test_timers_that_are_due_go_first_and_the_rest_in_order_of_arrival() -> None:
    clock, done = Clock(), list[str]()
    inbox = Inbox(clock)
    inbox.put(lambda: done.append("a"))
    inbox.put(lambda: done.append("b"))
    inbox.after(5, lambda: done.append("late"))
    inbox.after(2, lambda: done.append("early"))
    inbox.put(None)
    for now in (0.0, 3.0, 3.0, 6.0):
        clock.now = now
        task = inbox.take()
        assert task is not None
        task()
    assert done == ["a", "early", "b", "late"]
    assert inbox.take() is None


def test_a_timer_that_is_always_due_does_not_keep_what_was_put_waiting() -> None:
    clock, done = Clock(), list[str]()
    inbox = Inbox(clock)

    def tick() -> None:
        done.append("tick")
        inbox.after(1, tick)
        clock.now += 2

    inbox.after(0, tick)
    inbox.put(lambda: done.append("a"))
    inbox.put(lambda: done.append("b"))
    for _ in range(5):
        task = inbox.take()
        assert task is not None
        task()
    assert done == ["tick", "a", "tick", "b", "tick"]


def test_who_waits_is_woken_by_what_another_thread_puts() -> None:
    inbox, done = Inbox(Clock()), list[int]()

    def work() -> None:
        while (task := inbox.take()) is not None:
            task()

    worker = threading.Thread(target=work)
    worker.start()
    for number in range(100):
        inbox.put(lambda number=number: done.append(number))  # type: ignore[misc]
    inbox.put(None)
    worker.join(120)
    assert done == list(range(100))

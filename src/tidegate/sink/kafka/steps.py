"""Waits for a broker in short steps, so that a piece of work can be given up between two of them.

A call of the client that is decided by the broker (`init_transactions`, `commit_transaction`,
`abort_transaction`) takes a timeout. If that passes, the call raises an error that is retriable, and the next
call of the same method continues where this one stopped (librdkafka `src/rdkafka_txnmgr.c`). An answer ends a
step at once, so short steps cost time only while a broker does not answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from tidegate.sink.base import Check

STEP_S: Final = 0.1
"""How long a wait takes to notice that its work is given up. Giving up takes two steps at most, this one and
one of an abort. Together they must be well below `pipeline.host.incarnations.GRACE_S`."""
SHORTEST_S: Final = 0.001
"""The last step before a deadline. The client would take a negative timeout as none."""
T = TypeVar("T")


def _is_timeout(error: KafkaError) -> bool:
    """Whether only the timeout of a step has passed. After another error that is retriable, no request is
    under way any more, and the next call would wait in vain.
    """
    return bool(error.retriable()) and error.code() == KafkaError._TIMED_OUT


def initialise(client: Producer, limit_s: float, check: Check) -> None:
    """`init_transactions` in steps.

    After a timeout it may say why the broker has not let it through yet, instead of `_TIMED_OUT`: the last
    writer's transaction is being ended, or the coordinator is being loaded. Only such errors are retriable.
    """
    in_steps(client.init_transactions, limit_s, check, lambda error: bool(error.retriable()))


def in_steps(
    call: Callable[[float], object],
    limit_s: float,
    check: Check,
    is_end_of_step: Callable[[KafkaError], bool] = _is_timeout,
) -> None:
    """Call a method of the client until it has ended, for at most `limit_s`. Raises its last error then.

    `check` is called between two steps. If it raises, the outcome of the call is not known.
    """
    deadline = time.monotonic() + limit_s
    while True:
        ends = time.monotonic() + STEP_S
        try:
            call(max(SHORTEST_S, min(STEP_S, deadline - time.monotonic())))
            return
        except KafkaException as error:
            if not is_end_of_step(error.args[0]) or time.monotonic() >= deadline:
                raise
            # It may have ended before its time, because the broker has named a reason to wait.
            time.sleep(max(0.0, min(ends, deadline) - time.monotonic()))
        check()


def result_in_steps(answer: Future[T], limit_s: float, check: Check) -> T:
    """The result of a request. Raises its error, and TimeoutError after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return answer.result(max(0.0, min(STEP_S, deadline - time.monotonic())))
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise
        check()

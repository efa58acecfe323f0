"""Waits for a broker in short steps, so that a piece of work can be given up between two of them.

`init_transactions` takes a timeout. If that passes, the call raises an error that is retriable, and the next
call continues where this one stopped (librdkafka `src/rdkafka_txnmgr.c`). An answer ends a step at once, so
short steps cost time only while a broker does not answer.

`commit_transaction` and `abort_transaction` are never called again after a timeout: librdkafka does not tie a
result to its call, so the result of an earlier one could be taken for that of the commit.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import KafkaException, Producer

from tidegate.sink.base import Check

STEP_S: Final = 0.1
"""How long a wait takes to notice that its work is given up. Giving up takes two steps at most, this one and
one for an abort. Together they must be well below `pipeline.host.incarnations.GRACE_S`."""
SHORTEST_S: Final = 0.001
"""The last step before a deadline. The client would take a negative timeout as none."""
T = TypeVar("T")


def initialise(client: Producer, limit_s: float, check: Check) -> None:
    """`init_transactions` in steps, for at most `limit_s`. Raises its last error then.

    After a timeout it may say why the broker has not let it through yet, instead of `_TIMED_OUT`: the last
    writer's transaction is being ended, or the coordinator is being loaded. Only such errors are retriable.
    """
    deadline = time.monotonic() + limit_s
    while True:
        ends = min(deadline, time.monotonic() + STEP_S)
        try:
            client.init_transactions(max(SHORTEST_S, ends - time.monotonic()))
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() >= deadline:
                raise
            # It may have ended before its time, because the broker has named a reason to wait.
            time.sleep(max(0.0, ends - time.monotonic()))
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

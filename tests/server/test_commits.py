"""Writes that come while the metadata store is busy become one commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tidegate.control.metadata import (
    Compare,
    GuardedWrites,
    Put,
    WriteResult,
)
from tidegate.errors import TidegateError
from tidegate.server.metadata.commits import Commits
from tidegate.server.metadata.sqlite import SqliteMetadata


class Counting(SqliteMetadata):
    """Counts its commits."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.commits = 0

    def transact_all(self, asked: Sequence[GuardedWrites]) -> list[WriteResult]:
        self.commits += 1
        return super().transact_all(asked)


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[Counting]:
    store = Counting(tmp_path / "metadata.db")
    yield store
    store.close()


def put(key: str, value: bytes = b"", *guards: Compare) -> GuardedWrites:
    return GuardedWrites(guards, (Put(key, value),))


def answers(metadata: SqliteMetadata, *asked: GuardedWrites, cancelled: int = -1) -> list[Any]:
    """Those of transactions that are all asked for while the store's thread is busy."""

    async def scenario(disk: ThreadPoolExecutor) -> list[Any]:
        free = threading.Event()
        disk.submit(free.wait)
        commits = Commits(metadata, disk)
        first = asyncio.create_task(commits.transact(put("/first")))
        await asyncio.sleep(0)  # it is handed to the thread alone
        await asyncio.sleep(0)
        others = [asyncio.create_task(commits.transact(one)) for one in asked]
        await asyncio.sleep(0)
        if cancelled >= 0:
            others[cancelled].cancel()
        free.set()
        assert (await first).succeeded
        return await asyncio.gather(*others, return_exceptions=True)

    with ThreadPoolExecutor(1) as disk:
        return asyncio.run(scenario(disk))


def test_writes_of_many_that_wait_are_one_commit_and_each_has_a_revision(metadata: Counting) -> None:
    found = answers(metadata, *(put(f"/{number}") for number in range(50)))
    assert [one.revision for one in found] == list(range(2, 52))
    assert metadata.commits == 2


def test_a_guard_that_fails_concerns_no_other(metadata: Counting) -> None:
    absent = Compare("/a", mod_revision=0)
    found = answers(metadata, put("/a", b"1", absent), put("/a", b"2", absent), put("/b", b"3"))
    assert [one.succeeded for one in found] == [True, False, True]
    assert [kv.value for kv in metadata.under("/") if kv.key != "/first"] == [b"1", b"3"]


def test_who_was_cancelled_while_waiting_writes_nothing(metadata: Counting) -> None:
    found = answers(metadata, put("/a"), put("/b"), put("/c"), cancelled=1)
    assert isinstance(found[1], asyncio.CancelledError)
    assert [kv.key for kv in metadata.under("/")] == ["/a", "/c", "/first"]


def test_a_commit_that_fails_stores_nothing_of_any_and_the_next_succeeds(metadata: Counting) -> None:
    broken: Any = object()
    found = answers(metadata, put("/a"), put("/b", broken))
    assert all(isinstance(one, TidegateError) for one in found)
    assert [kv.key for kv in metadata.under("/")] == ["/first"]
    assert answers(metadata, put("/c"))[0].succeeded


def test_patient_writes_share_a_commit_and_others_do_not_wait_for_them(metadata: Counting) -> None:
    async def scenario(disk: ThreadPoolExecutor) -> tuple[int, int, bool]:
        commits = Commits(metadata, disk)
        patient = [asyncio.create_task(commits.transact(put(f"/{number}"), 0.05)) for number in range(9)]
        await asyncio.gather(*patient)
        together = metadata.commits
        longest = asyncio.create_task(commits.transact(put("/longest"), 600.0))
        await asyncio.sleep(0.01)
        waited = not longest.done()
        await commits.transact(put("/now"))
        await longest
        return together, metadata.commits, waited

    with ThreadPoolExecutor(1) as disk:
        assert asyncio.run(scenario(disk)) == (1, 2, True)


def test_a_patient_write_is_made_when_its_time_has_come(metadata: Counting) -> None:
    async def scenario(disk: ThreadPoolExecutor) -> float:
        commits, loop = Commits(metadata, disk), asyncio.get_running_loop()
        began = loop.time()
        longer = asyncio.create_task(commits.transact(put("/longer"), 600.0))
        await asyncio.sleep(0)
        await commits.transact(put("/shorter"), 0.05)
        await longer
        return loop.time() - began

    with ThreadPoolExecutor(1) as disk:
        assert asyncio.run(scenario(disk)) >= 0.05
    assert metadata.commits == 1

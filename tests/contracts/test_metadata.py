"""The contract of metadata stores: of one node (SQLite), of several captures (etcd), of the simulator."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import pytest

from tidegate.control.metadata import (
    Compare,
    Delete,
    GuardedWrites,
    KeyValue,
    MetadataStore,
    Put,
    WriteResult,
)
from tidegate.etcd.client import EtcdClient
from tidegate.etcd.metadata import EtcdMetadata
from tidegate.server.metadata.sqlite import SqliteMetadata
from tidegate.simulator.etcd import Etcd
from tidegate.simulator.virtual_time import VirtualTime


class OneAtATime(Etcd):
    """The simulator has one thread, and these tests have several."""

    turn = Lock()

    def transact(
        self, guards: Sequence[Compare], writes: Sequence[Put | Delete], lease: int = 0
    ) -> WriteResult:
        with self.turn:
            return super().transact(guards, writes, lease)


@dataclass
class Stores:
    """A store under test, opened as often as one likes."""

    opens: Callable[[], MetadataStore]
    root: str

    def __post_init__(self) -> None:
        self.one = self.opens()

    def found(self, name: str) -> KeyValue:
        held = self.one.get(self.root + name)
        assert held is not None
        return held

    def key(self, name: str) -> str:
        return self.root + name


@pytest.fixture(params=["sqlite", "etcd", "simulated"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    root = f"/{uuid.uuid4().hex}/"
    opened: list[MetadataStore] = []
    simulated = OneAtATime(VirtualTime(random.Random(0)))

    def opens() -> MetadataStore:
        if request.param == "sqlite":
            opened.append(SqliteMetadata(tmp_path / "metadata.db"))
        elif request.param == "simulated":
            opened.append(simulated)
        else:
            opened.append(EtcdMetadata(EtcdClient(request.getfixturevalue("etcd"))))
        return opened[-1]

    yield Stores(opens, root)
    for one in opened:
        one.close()


def test_revisions_rise_and_stay_with_their_key(stores: Stores) -> None:
    store, key = stores.one, stores.key
    first = store.transact([], [Put(key("a"), b"1"), Put(key("b"), b"1")]).revision
    second = store.transact([], [Put(key("a"), b"2")]).revision
    assert second > first
    found = stores.found("a")
    assert (found.value, found.create_revision, found.mod_revision) == (b"2", first, second)
    assert [kv.key for kv in store.under(key(""))] == [key("a"), key("b")]
    assert store.get(key("c")) is None


def test_a_failed_guard_changes_nothing(stores: Stores) -> None:
    store, key = stores.one, stores.key
    made = store.transact([], [Put(key("a"), b"1")]).revision
    refused = store.transact([Compare(key("a"), mod_revision=0)], [Put(key("a"), b"2"), Put(key("b"), b"2")])
    assert not refused.succeeded
    assert store.get(key("b")) is None
    assert stores.found("a").value == b"1"
    both = Compare(key("a"), mod_revision=made, create_revision=made)
    assert store.transact([both], [Delete(key("a"))]).succeeded
    assert store.get(key("a")) is None
    assert store.transact([], [Delete(key("a"))]).succeeded, "what is gone is no error"
    again = store.transact([], [Put(key("a"), b"3")]).revision
    assert stores.found("a").create_revision == again


def test_a_prefix_is_bytes_and_no_pattern(stores: Stores) -> None:
    store, key = stores.one, stores.key
    store.transact([], [Put(key("a%/x"), b""), Put(key("ab/x"), b""), Put(key("a%"), b"")])
    assert [kv.key for kv in store.under(key("a%/"))] == [key("a%/x")]


def test_a_thousand_keys_are_read_whole_and_in_order(stores: Stores) -> None:
    store, key = stores.one, stores.key
    names = [key(f"{number:04}") for number in range(1100)]
    for at in range(0, len(names), 100):
        store.transact([], [Put(name, name.encode()) for name in names[at : at + 100]])
    assert [(kv.key, kv.value) for kv in store.under(key(""))] == [(name, name.encode()) for name in names]


def test_of_many_that_compare_and_swap_each_sees_the_one_before(stores: Stores) -> None:
    stores.one.transact([], [Put(stores.key("n"), b"0")])

    def count(_: int) -> None:
        store = stores.opens()
        for _ in range(20):
            while True:
                found = store.get(stores.key("n"))
                assert found is not None
                guard = Compare(stores.key("n"), mod_revision=found.mod_revision)
                value = str(int(found.value) + 1).encode()
                if store.transact([guard], [Put(stores.key("n"), value)]).succeeded:
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert stores.found("n").value == b"80"


def test_of_transactions_at_once_each_has_guards_and_a_revision_of_its_own(stores: Stores) -> None:
    store, key = stores.one, stores.key
    made = store.transact([], [Put(key("owner"), b"me")]).revision
    mine = Compare(key("owner"), mod_revision=made)
    outcomes = store.transact_all(
        [
            GuardedWrites((mine,), (Put(key("a"), b"1"),)),
            GuardedWrites((Compare(key("a"), mod_revision=0),), (Put(key("b"), b"never"),)),
            GuardedWrites((mine,), (Put(key("a"), b"2"), Put(key("c"), b"2"))),
            GuardedWrites((), (Put(key("owner"), b"another"),)),
            GuardedWrites((mine,), (Put(key("a"), b"3"),)),
            GuardedWrites((), (Delete(key("c")),)),
        ]
    )
    assert [one.succeeded for one in outcomes] == [True, False, True, True, False, True]
    done = [one.revision for one in outcomes if one.succeeded]
    assert done == sorted(set(done))
    assert stores.found("a").value == b"2"
    assert [store.get(key("b")), store.get(key("c"))] == [None, None]


def test_what_another_wrote_is_seen_and_written_over_without_a_guard(stores: Stores) -> None:
    """Also by a store that has written the key before and remembers its revision."""
    other = stores.opens()
    stores.one.transact([], [Put(stores.key("a"), b"1")])
    other.transact([], [Put(stores.key("a"), b"2")])
    assert stores.found("a").value == b"2"
    assert stores.one.transact([], [Put(stores.key("a"), b"3")]).succeeded
    assert other.transact([], [Delete(stores.key("a"))]).succeeded
    assert stores.one.transact(
        [Compare(stores.key("a"), mod_revision=0)], [Put(stores.key("a"), b"4")]
    ).succeeded
    assert stores.found("a").value == b"4"

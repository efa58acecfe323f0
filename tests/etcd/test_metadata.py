"""Writes to etcd whose answer is lost: done once, and never late."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.etcd.line import Line
from tests.kvclient.test_tls import certified
from tests.server.test_trouble import free_address
from tidegate.control.metadata import (
    Compare,
    Delete,
    GuardedWrites,
    Put,
)
from tidegate.errors import InvalidInput, Retryable
from tidegate.etcd import client as client_module
from tidegate.etcd.client import EtcdClient, Unanswered, parse_endpoints
from tidegate.etcd.metadata import EtcdMetadata
from tidegate.launcher import bound


@pytest.fixture
def line(etcd: str) -> Iterator[Line]:
    one = Line(etcd)
    yield one
    one.close()


@pytest.fixture
def key() -> str:
    return f"/{uuid.uuid4().hex}/a"


def lose_the_answer(
    line: Line, store: EtcdMetadata, transactions: list[GuardedWrites], is_done: Callable[[], bool]
) -> list[Any]:
    """The transactions' outcomes, where the first attempt is carried out and its answers do not arrive."""
    store.get("/")  # the connection is open
    line.answers.clear()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(store.transact_all, transactions)
        end = time.monotonic() + 60
        while not is_done():
            assert time.monotonic() < end
            time.sleep(0.01)
        line.answers.set()
        line.cut()
        return asked.result(60)


def test_a_write_whose_answer_is_lost_was_ours(etcd: str, line: Line, key: str) -> None:
    """Its guard fails at the second attempt, because of the first."""
    store, direct = EtcdMetadata(EtcdClient(line.endpoint)), EtcdMetadata(EtcdClient(etcd))
    store.transact([], [Delete(key)])  # it knows the key, and need not read it first
    absent = Compare(key, mod_revision=0)
    (outcome,) = lose_the_answer(
        line, store, [GuardedWrites((absent,), (Put(key, b"ours"),))], lambda: direct.get(key) is not None
    )
    found = direct.get(key)
    assert found is not None
    assert (outcome.succeeded, outcome.revision) == (True, found.mod_revision)
    guard = Compare(key, mod_revision=found.mod_revision)
    (outcome,) = lose_the_answer(
        line, store, [GuardedWrites((guard,), (Delete(key),))], lambda: direct.get(key) is None
    )
    assert outcome.succeeded
    assert direct.get(key) is None


def test_a_write_that_another_was_quicker_with_is_not_ours(etcd: str, key: str) -> None:
    store, other = EtcdMetadata(EtcdClient(etcd)), EtcdMetadata(EtcdClient(etcd))
    other.transact([], [Put(key, b"theirs")])
    assert not store.transact([Compare(key, mod_revision=0)], [Put(key, b"ours")]).succeeded


class Late:
    """A client whose first attempt is not answered, and is carried out only when the test says so."""

    def __init__(self, endpoints: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = EtcdClient(endpoints)
        self.held: list[Any] = []
        self._send = self.client.try_txn
        monkeypatch.setattr(self.client, "try_txn", self._first_is_held)

    def _first_is_held(self, request: Any) -> Any:
        if not self.held:
            self.held.append(request)
            raise Unanswered("on its way")
        return self._send(request)

    def arrives(self) -> Any:
        return self._send(self.held[0])


def test_an_attempt_that_arrives_late_sets_no_older_value(
    etcd: str, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would set a checkpoint back."""
    late = Late(etcd, monkeypatch)
    store = EtcdMetadata(late.client)
    assert store.transact([], [Put(key, b"100")]).succeeded
    assert store.transact([], [Put(key, b"200")]).succeeded
    assert not late.arrives().succeeded
    found = store.get(key)
    assert found is not None
    assert found.value == b"200"


def test_no_answer_is_an_error_that_says_where(line: Line, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "CALL_S", 0.2)
    client = EtcdClient(line.endpoint, patience_s=0.5)
    line.close()
    with pytest.raises(Retryable, match="etcd does not answer") as raised:
        EtcdMetadata(client).transact([], [Put(key, b"1")])
    assert line.endpoint.removeprefix("http://") in str(raised.value)


def test_the_next_endpoint_is_asked_when_one_does_not_answer(etcd: str, line: Line, key: str) -> None:
    line.close()
    store = EtcdMetadata(EtcdClient(f"{line.endpoint},{etcd}"))
    assert store.transact([], [Put(key, b"1")]).succeeded
    found = store.transact_all([GuardedWrites((), (Put(key + str(n), b"1"),)) for n in range(8)])
    assert all(one.succeeded for one in found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://a:1,http://b:2/", (("a:1", "b:2"), False)),
        ("https://a:1", (("a:1",), True)),
        ("a:1, b:2", (("a:1", "b:2"), None)),
        ("http://[::1]:2379", (("[::1]:2379",), False)),
    ],
)
def test_endpoints(text: str, found: object) -> None:
    assert parse_endpoints(text) == found


@pytest.mark.parametrize("text", ["", "a", "a:b", "http://a:1,https://b:2", "ftp://a:1", "http://u:p@a:1"])
def test_endpoints_that_will_not_do(text: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_endpoints(text)
    assert "u:p" not in str(raised.value)


@contextlib.contextmanager
def own_etcd(folder: Path, scheme: str, options: list[str]) -> Iterator[str]:
    """The endpoint of an etcd with other options than the session's."""
    server = shutil.which("etcd")
    assert server is not None
    client, peer = free_address(), free_address()
    endpoint = f"{scheme}://{client}"
    command = [server, "--name", "one", "--data-dir", str(folder / "data"), "--log-level", "error"]
    command += ["--listen-client-urls", endpoint, "--advertise-client-urls", endpoint]
    command += ["--listen-peer-urls", f"http://{peer}", "--initial-advertise-peer-urls", f"http://{peer}"]
    command += ["--initial-cluster", f"one=http://{peer}", *options]
    running = subprocess.Popen(bound(command, signal.SIGKILL))
    try:
        yield endpoint
    finally:
        running.kill()
        running.wait()


def test_etcd_is_reached_by_tls_with_the_certificates_of_the_command_line(
    etcd: str, tmp_path: Path, key: str
) -> None:
    """`etcd` is only asked for because it installs the package."""
    ours, theirs = certified(tmp_path, "one"), certified(tmp_path, "two")
    options = ["--client-cert-auth", "--trusted-ca-file", str(ours.ca)]
    options += ["--cert-file", str(ours.cert), "--key-file", str(ours.key)]
    with own_etcd(tmp_path, "https", options) as endpoint:
        store = EtcdMetadata(EtcdClient(endpoint, tls=ours, patience_s=60))
        assert store.transact([], [Put(key, b"1")]).succeeded
        with pytest.raises(Retryable, match="does not answer"):
            EtcdMetadata(EtcdClient(endpoint, tls=theirs, patience_s=0.5)).get(key)
        store.close()


def test_a_full_database_is_named_with_what_frees_it(etcd: str, tmp_path: Path, key: str) -> None:
    """`etcd` is only asked for because it installs the package."""
    with own_etcd(tmp_path, "http", ["--quota-backend-bytes", str(1 << 20)]) as endpoint:
        store = EtcdMetadata(EtcdClient(endpoint, patience_s=60))
        assert store.transact([], [Put(key, b"1")]).succeeded
        asked = EtcdMetadata(EtcdClient(endpoint, patience_s=0.5))

        def refused(call: Callable[[int], object]) -> Retryable:
            """The last error of calls until etcd refuses one; a slow machine may leave some unanswered."""
            end, n = time.monotonic() + 60, 0
            while True:
                try:
                    call(n)
                except Retryable as error:
                    if "does not answer" not in error.what or time.monotonic() >= end:
                        return error
                n += 1
                assert time.monotonic() < end, "it takes everything"

        # etcd compares the size with its quota after each of its own commits, every 100 ms.
        full = refused(lambda n: asked.transact([], [Put(f"{key}{n % 16}", bytes(1 << 18))]))
        assert "database is full" in full.what
        assert all(word in full.fix for word in ("compact", "defrag", "alarm disarm"))
        assert "database is full" in refused(lambda n: asked.client.grant_lease(10)).what
        assert store.get(key) is not None, "it still answers reads"
        store.close()
        asked.close()


def test_tls_without_certificates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_CA", raising=False)
    with pytest.raises(InvalidInput, match="none are given"):
        EtcdClient("https://127.0.0.1:1")

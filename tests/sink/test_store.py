"""The contract of both stores, a disk and a real S3 server, and the faults of object stores only."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.fixtures.s3 import S3Place
from tidegate.consumer.delta.target import BucketAddress
from tidegate.errors import Fatal, InvalidInput, Retryable
from tidegate.sink.lakehouse.object_store import Bucket, ObjectStore
from tidegate.sink.lakehouse.store import OWN, DiskStore, Store, said

pytestmark = pytest.mark.integration
Opened = Callable[[], Store]
LOG = f"{OWN}/ddl.jsonl"


@pytest.fixture(params=["disk", "s3"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens one place again and again."""
    if request.param == "disk":
        DiskStore(tmp_path).make_folder(OWN)
        return lambda: DiskStore(tmp_path)
    s3: S3Place = request.getfixturevalue("s3")
    return s3.store


def test_a_file_is_created_once_and_read_as_it_was(opened: Opened) -> None:
    store = opened()
    assert (store.get("a/b"), store.read("a/b"), store.stamp("a/b")) == (None, None, None)
    assert store.create("a/b", b"one")
    assert not opened().create("a/b", b"two")
    assert store.get("a/b") == b"one"
    found = store.read("a/b")
    assert found is not None
    assert found[1] == store.files("a")["b"]
    before = store.stamp("a/b")
    assert store.stamp("a/b") == before
    store.delete(["a/b", "a/not-there"])
    assert store.create("a/b", b"three")
    assert store.stamp("a/b") != before


def test_a_file_whose_name_nobody_else_uses_is_put(opened: Opened) -> None:
    opened().put("a/b/c", b"one")
    assert opened().get("a/b/c") == b"one"
    assert opened().names("a/b") == ["c"]


def test_an_object_is_put_again_and_its_beginning_is_read(s3: S3Place) -> None:
    store = s3.store()
    assert store.beginning("a/b", 4) is None
    for data in (b"first", b"second"):
        store.put("a/b", data)
    assert store.beginning("a/b", 4) == (b"seco", 6)
    assert store.beginning("a/b", 100) == (b"second", 6)


def test_folders_hold_their_own_files_and_folders(opened: Opened) -> None:
    store = opened()
    for key in ("x/t/1.parquet", "x/t/_log/0.json", "x/u=5F ~a/1.parquet", "x/file"):
        store.create(key, b"")
    assert store.folders("x") == ["t", "u=5F ~a"]
    assert set(store.files("x")) == {"file"}
    assert set(store.files("x/t")) == {"1.parquet"}
    assert store.folders("") == (["_tidegate", "x"] if store.local("") else ["x"])
    assert store.has_folder("x/t/_log")
    assert not store.has_folder("x/_log")
    assert (store.files("y"), store.folders("y")) == ({}, [])
    store.copy("x/file", "x/copy")
    store.copy("x/file", "x/copy")
    assert set(store.files("x")) == {"file", "copy"}


def test_lines_stay_in_order_and_none_is_lost(opened: Opened) -> None:
    store = opened()
    assert store.lines(LOG) == []
    for number in range(3):
        store.append(LOG, b"%d" % number)
        assert store.lines(LOG)[-1] == b"%d" % number
    assert opened().lines(LOG) == [b"0", b"1", b"2"]


def test_a_discarded_folder_is_out_of_sight_and_then_gone(opened: Opened) -> None:
    store = opened()
    for number in range(3):
        store.create(f"x/t/{number}", b"")
        store.create(f"x/t/_delta_log/{number}", b"")
    store.create("x/tt/0", b"the name begins alike")
    store.discard("x/t", lambda: None)
    assert not store.has_folder("x/t/_delta_log")
    assert set(store.discarded()) == ({"x/t"} if store.has_folder("x/t") else set())
    for _ in store.emptying_trash():
        pass
    assert not store.has_folder("x/t")
    assert not store.has_folder(f"{OWN}/trash")
    assert store.files("x/tt")


def test_of_many_writers_one_creates_a_key_and_each_adds_its_line(s3: S3Place) -> None:
    stores = [s3.store() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            won = list(pool.map(lambda store: store.create(f"k{number}", b""), stores))  # noqa: B023
            assert won.count(True) == 1
        list(pool.map(lambda store: [store.append(LOG, b"x") for _ in range(5)], stores))
    assert len(s3.store().lines(LOG)) == 20


def test_a_kill_within_a_discard_leaves_a_note_for_the_next_process(s3: S3Place) -> None:
    class Dies(ObjectStore):
        def delete(self, keys: object) -> None:
            raise KeyboardInterrupt

    store = Dies(s3.bucket)
    store.create("x/t/0", b"")
    with pytest.raises(KeyboardInterrupt):
        store.discard("x/t", lambda: None)
    assert s3.store().has_folder("x/t")
    assert s3.store().discarded() == {"x/t"}
    for _ in s3.store().emptying_trash():
        pass
    assert not s3.store().has_folder("x/t")
    assert not s3.store().has_folder(f"{OWN}/trash")


def test_what_a_successor_creates_behind_the_check_is_not_deleted(s3: S3Place) -> None:
    store = s3.store()
    log = "x/t/_delta_log"
    store.create(f"{log}/0", b"")
    store.discard("x/t", lambda: s3.store().create(f"{log}/1", b"of the successor"))
    assert set(store.files(log)) == {"1"}


def test_the_trash_of_a_bucket_goes_piece_by_piece(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.sink.lakehouse.object_store.DELETE_A_PIECE", 2)
    store = s3.store()
    for number in range(5):
        store.create(f"x/t/{number}", b"")
    store.discard("x/t", lambda: None)
    assert [len(store.files("x/t")) for _ in store.emptying_trash()] == [3, 1, 0, 0]


def test_names_are_those_of_files_and_behind_another(opened: Opened) -> None:
    store = opened()
    for key in ("x/1", "x/2", "x/2.json", "x/_a", "x/3/4", "xx/5"):
        store.create(key, b"")
    assert set(store.names("x")) == {"1", "2", "2.json", "_a"}
    assert set(store.names("x", after="2")) == {"2.json", "_a"}
    assert (store.names("y"), store.names("y", after="1")) == ([], [])


def test_a_file_that_vanishes_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, scan = DiskStore(tmp_path), os.scandir
    for name in ("1", "2", "3"):
        store.create(f"x/{name}", b"")

    def deleted_behind_it(folder: Path) -> AbstractContextManager[list[os.DirEntry[str]]]:
        with scan(folder) as entries:
            found = list(entries)
        (folder / "2").unlink(missing_ok=True)
        return nullcontext(found)

    monkeypatch.setattr(os, "scandir", deleted_behind_it)
    assert set(store.files("x")) == {"1", "3"}


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("<?xml version='1.0'?><Error><Code>A</Code><Message>b</Message><Token-0>geheim</Token-0>", ": A, b"),
        ("<Error><Token-0>geheim</Token-0><Message>b</Message><Code>A</Code></Error>", ": A, b"),
        ("<Error><Token-0>geheim", ": an answer that is not shown"),
    ],
)
def test_of_an_answer_only_the_code_and_the_message_are_shown(answer: str, wanted: str) -> None:
    assert said(OSError(f"Generic S3 error: {answer}")) == f"Generic S3 error{wanted}"
    assert said(OSError("no  such\nthing")) == "no such thing"


def test_a_numbered_line_that_finds_no_place_says_so(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ObjectStore, "create", lambda self, key, data: False)
    with pytest.raises(Fatal, match="no free number"):
        s3.store().append(LOG, b"x")


class Old(BaseHTTPRequestHandler):
    """An S3 server of the time before conditional puts: it takes any PUT, and looks at no signature."""

    put_status = 200

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"", self.put_status)

    def do_POST(self) -> None:
        """Answer a request to delete several keys."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"<DeleteResult><Deleted><Key>k</Key></Deleted></DeleteResult>")

    def _answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def old_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Old) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("answer", "why"), [(200, "412"), (501, "501 Not Implemented")])
def test_a_store_without_a_conditional_put_is_refused(
    s3: S3Place, old_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int, why: str
) -> None:
    """Some take the second PUT, others refuse the header."""
    s3.store().probe()
    assert s3.store().files(f"{OWN}/probe") == {}
    monkeypatch.setattr(Old, "put_status", answer)
    monkeypatch.setattr("tidegate.sink.lakehouse.object_store.RETRIES", 0)
    address = BucketAddress(ObjectStore(replace(s3.bucket, endpoint=old_server)), "one", tmp_path)
    with pytest.raises(InvalidInput, match="has no conditional put") as refused, address.opened():
        pass
    assert why in refused.value.why


def test_trouble_with_the_store_is_named(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Fatal, match="an object of the target is gone"):
        s3.store().copy("not/there", "x")
    with pytest.raises(InvalidInput, match="the bucket is not there") as missing:
        ObjectStore(replace(s3.bucket, name="no-such-bucket")).probe()
    assert missing.value.why.endswith("NoSuchBucket, The specified bucket does not exist")
    monkeypatch.setattr("tidegate.sink.lakehouse.object_store.RETRIES", 0)
    with pytest.raises(Retryable, match="does not answer") as silent:
        ObjectStore(replace(s3.bucket, endpoint="http://127.0.0.1:1")).files("")
    assert "127.0.0.1:1" in silent.value.why
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(InvalidInput, match="refuses access") as refused:
        s3.store().get("a")
    assert "SignatureDoesNotMatch" in refused.value.why
    assert "StringToSign" not in refused.value.why


def test_an_address_has_a_bucket_a_prefix_and_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://there:1")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    full = Bucket.from_uri("delta+s3://lake/a/b/?endpoint=https://here:9000&region=x")
    assert full == Bucket("lake", "a/b", "https://here:9000", "x")
    assert (full.options["aws_endpoint"], full.options["aws_region"]) == ("https://here:9000", "x")
    assert "aws_allow_http" not in full.options
    plain = Bucket.from_uri("delta+s3://lake/a").options
    assert (plain["aws_endpoint"], plain["aws_region"]) == ("http://there:1", "eu-west-1")
    assert plain["aws_allow_http"] == "true"
    for text, why in (
        ("delta+s3://lake", "a prefix"),
        ("delta+s3:///a", "a bucket"),
        ("delta+s3://me:geheim@lake/a", "credentials"),
        ("delta+s3://me:geheim?x@lake/a", "a prefix"),
        ("delta+s3://lake/a?endpoint=https://me:geheim@here", "no @"),
        ("delta+s3://lake/a?secret=geheim", "unknown: secret"),
        ("delta+s3://lake/a//b", "empty part"),
        ("delta+s3://lake/a%20b", "a sign"),
        ("delta+s3://lake/a?endpoint=here:9000", "begins with"),
    ):
        with pytest.raises(InvalidInput) as refused:
            Bucket.from_uri(text)
        assert why in refused.value.why
        assert "geheim" not in str(refused.value)

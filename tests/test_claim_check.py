"""The storage of claim-check: whole objects or none, and no secret in any word of it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
from pyarrow import fs

from tidegate.claim_check import ClaimStorage
from tidegate.errors import InvalidInput, Retryable


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://{}/"])
def test_a_directory_takes_messages_and_gives_them_back(tmp_path: Path, form: str) -> None:
    storage = ClaimStorage(form.format(tmp_path / "not" / "there"))
    place = storage.location()
    assert place.startswith(f"file://{tmp_path}/not/there/")
    storage.store(place, b"message")
    assert (
        pickle.loads(pickle.dumps(storage)).read("gs://elsewhere/" + place.rpartition("/")[2]) == b"message"
    )
    assert [path.name for path in (tmp_path / "not" / "there").iterdir()] == [place.rpartition("/")[2]]


def test_names_are_uuids_that_differ(tmp_path: Path) -> None:
    storage = ClaimStorage(str(tmp_path))
    places = {storage.location() for _ in range(100)}
    assert len(places) == 100
    assert all(
        len(place.rpartition("/")[2]) == len("8a6c72cc-6c2e-4f54-ba62-fa5a2a2f2023.json") for place in places
    )


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ClaimStorage(str(tmp_path))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device", str(tmp_path))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Retryable, match="No space left"):
        storage.store(storage.location(), b"x" * 1000)
    assert list(tmp_path.iterdir()) == []


def test_a_bucket_takes_messages_under_its_prefix() -> None:
    storage = ClaimStorage("s3://bucket/some/prefix?region=x&access-key=AK&secret-access-key=hidden")
    bucket = fs._MockFileSystem()
    bucket.create_dir("bucket/some/prefix")
    storage._files = bucket
    place = storage.location()
    assert place.startswith("s3://bucket/some/prefix/")
    storage.store(place, b"message")
    assert storage.read(place) == b"message"


@pytest.mark.parametrize("name", ["gone.json", "../../etc/passwd", "", "..", "x" * 5000])
def test_what_is_not_there_is_retryable_and_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(Retryable, match="claim-check storage cannot be read"):
        ClaimStorage(str(tmp_path)).read(f"file:///claim/{name}")


@pytest.mark.parametrize(
    "uri", ["", "relative/path", "s3://", "file://host/path", "s3:bucket", "http://[::1"]
)
def test_what_is_no_storage_is_refused(uri: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be used"):
        ClaimStorage(uri)


def test_no_word_of_it_has_its_credentials() -> None:
    uri = "s3://user:hidden@bucket/p?access-key=AK&secret-access-key=hidden&endpoint=http://127.0.0.1:9"
    storage = ClaimStorage(uri)
    words = [repr(storage), storage.location(), storage.prefix]
    with pytest.raises((Retryable, InvalidInput)) as caught:
        ClaimStorage("nosuch://user:hidden@bucket/p?secret=hidden").read("nosuch://b/x")
    words.append(caught.value.render())
    assert all("hidden" not in word for word in words)

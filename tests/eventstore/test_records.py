"""A file of records: what a reader makes of it at any moment, and of what a crash has left of it."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.disk import DiskFull
from tidegate.eventstore import records
from tidegate.eventstore.records import ReadPosition, RecordFile, Torn, read

PAYLOADS = st.lists(st.binary(min_size=1, max_size=60).filter(lambda p: not p.endswith(b" ")), max_size=12)


def written(path: Path, payloads: list[bytes]) -> tuple[bytes, list[int]]:
    """A file of a base and records; its bytes, and where each of them ends."""
    file, ends = RecordFile(path, "process"), []
    file.begin(b"base")
    for payload in payloads:
        ends.append(path.stat().st_size)
        file.append(payload)
    return path.read_bytes(), [*ends, path.stat().st_size]


def plain(found: list[bytes]) -> list[bytes]:
    return [record.rstrip(b" ") for record in found]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), PAYLOADS.filter(len)), max_size=12), st.data())
def test_a_reader_that_remembers_has_what_a_new_reader_has(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[bytes] | None], data: st.DataObject
) -> None:
    """Steps: a new base, or some records. The reader looks now and then."""
    path = tmp_path_factory.mktemp("records") / "file"
    file = RecordFile(path, data.draw(st.sampled_from(["process", "fsync"])))
    versions = [file.begin(b"0")]
    expected = [b"0"]
    seen: ReadPosition | None = None
    known: list[bytes] = []
    for number, step in enumerate(steps):
        if step is None:
            expected = [b"%d" % number]
            versions.append(file.begin(expected[0]))
        for payload in step or ():
            versions.append(file.append(payload))
            expected.append(payload)
        if data.draw(st.booleans()):
            found = read(path, seen)
            known = plain(found.records) if found.whole else known + plain(found.records)
            seen = found.seen
            assert (known, found.torn) == (expected, False)
            assert seen.version == versions[-1]
    assert plain(read(path).records) == expected
    assert len(set(versions)) == len(versions), "a version is one content"


@settings(max_examples=100, deadline=None)
@given(PAYLOADS, st.data())
def test_a_tail_cut_anywhere_is_as_if_its_last_record_was_never_written(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("records") / "file"
    whole, ends = written(path, payloads)
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut] + bytes(data.draw(st.sampled_from([0, 0, 5, 8, 300]))))
    if cut < ends[0]:
        with pytest.raises(Torn):
            read(path)
        return
    found = read(path)
    count = max(i for i, end in enumerate(ends) if end <= cut)
    assert plain(found.records) == [b"base", *payloads[:count]]
    assert found.seen.count == count
    assert found.torn == (path.stat().st_size > ends[count])


@settings(max_examples=200, deadline=None)
@given(PAYLOADS, st.data())
def test_any_changed_byte_is_damage_or_hides_the_last_record_alone(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("records") / "file"
    whole, ends = written(path, payloads)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = bytearray(whole)
    changed[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(bytes(changed))
    if payloads and at >= ends[-2]:
        found = read(path)
        assert (plain(found.records), found.torn) == ([b"base", *payloads[:-1]], True)
    else:
        with pytest.raises(Torn) as caught:
            read(path)
        assert str(path) in caught.value.where
        assert caught.value.fix


def test_a_writer_starts_with_a_base_and_writes_one_after_a_failed_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append fails because the disk is full."""
    path = tmp_path / "file"
    file = RecordFile(path, "process")
    assert file.wants_base
    file.begin(b"base")
    file.append(b"one")
    assert not file.wants_base
    write: Any = os.write

    with monkeypatch.context() as patch:
        # The disk takes a part of it, as a full one does.
        patch.setattr(records.os, "write", lambda descriptor, data: write(descriptor, data[:13]))
        with pytest.raises(DiskFull) as caught:
            file.append(b"two, which is cut")
    assert os.strerror(errno.ENOSPC) in caught.value.why
    assert file.wants_base
    assert (plain(read(path).records), read(path).torn) == ([b"base", b"one"], True)
    with pytest.raises(AssertionError, match="a base is due"):
        file.append(b"behind a torn one")
    file.begin(b"base, one and two")
    assert (plain(read(path).records), read(path).torn) == ([b"base, one and two"], False)


def test_a_base_is_due_when_the_tail_is_longer_than_it_and_than_64_kb(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "file", "process")
    for size in (100, 200_000):
        file.begin(b"b" * size)
        base = tail = (tmp_path / "file").stat().st_size
        while not file.wants_base:
            file.append(b"r" * 1000)
            tail = (tmp_path / "file").stat().st_size
        assert max(base, 64 << 10) < tail - base < max(base, 64 << 10) + 1100


def test_each_base_has_its_own_nonce_so_a_reused_inode_deceives_no_reader(
    tmp_path: Path,
) -> None:
    """A reader that looks rarely: as many bytes, perhaps the same inode, but another file."""
    path, file = tmp_path / "file", RecordFile(tmp_path / "file", "process")
    file.begin(b"1")
    seen = read(path).seen
    inodes = [path.stat().st_ino]
    for number in range(2, 6):
        file.begin(b"%d" % number)
        inodes.append(path.stat().st_ino)
        found = read(path, seen)
        assert (found.whole, plain(found.records)) == (True, [b"%d" % number])
    assert any(a != b for a, b in pairwise(inodes))

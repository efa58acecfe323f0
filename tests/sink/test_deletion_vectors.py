"""Deletion vectors of Delta tables: their bytes are those of the protocol, and needed files stay."""

from __future__ import annotations

import base64
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import Fatal
from tidegate.sink.lakehouse.deletion_vectors import (
    Vector,
    bitmap_of,
    file_of,
    positions_in,
    vector_in,
)
from tidegate.sink.lakehouse.delta_log import FileHistory, vectors_of

INLINE = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
"""From the protocol: the rows 3, 4, 7, 11, 18 and 29 in a vector of 40 bytes, in Z85. Its last 28 bytes are
the bitmap. Those before are of the other form, in which the magic number is one less."""
ROWS = [3, 4, 7, 11, 18, 29]


def test_the_name_of_a_file_is_that_of_the_protocols_example() -> None:
    number = uuid.UUID("d2c639aa-8816-431a-aaf6-d3fe2512ff61")
    vector = Vector(number, 4, 40, 6)
    assert vector.file == "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
    found = vector.to_json()
    assert found == {
        "storageType": "u",
        "pathOrInlineDv": "^-aqEH.-t@S}K{vb[*k^",
        "offset": 4,
        "sizeInBytes": 40,
        "cardinality": 6,
    }
    assert Vector.from_json(found) == vector


def test_the_bitmap_of_a_vector_is_that_of_the_protocols_example() -> None:
    data, (vector,) = file_of([bitmap_of(np.array(ROWS, np.uint32))])
    digits = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    ours = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    expected = base64.b85decode(INLINE.encode().translate(bytes.maketrans(digits, ours)))
    assert (vector.offset, vector.size, vector.count) == (1, 16 + 28, 6)
    assert data[:5] == b"\x01" + vector.size.to_bytes(4, "big")
    magic, count, high = (1_681_511_377).to_bytes(4, "little"), (1).to_bytes(8, "little"), bytes(4)
    assert data[5 : 5 + vector.size] == magic + count + high + expected[-28:]
    assert expected[:4] == (1_681_511_376).to_bytes(4, "big")


@given(st.lists(st.sets(st.integers(0, 300_000), min_size=1, max_size=60), min_size=1, max_size=5))
def test_each_vector_of_a_file_is_found_again(some: list[set[int]]) -> None:
    some[0] = some[0] | set(range(70_000))  # a container that is a bitmap, and one that is a run
    data, vectors = file_of([bitmap_of(np.array(sorted(one), np.uint32)) for one in some])
    for expected, vector in zip(some, vectors, strict=True):
        held = vector_in(data, Vector.from_json(vector.to_json()), "file")
        assert positions_in(held).tolist() == sorted(expected)


def test_a_damaged_file_is_not_read() -> None:
    data, (vector,) = file_of([bitmap_of(np.array(ROWS, np.uint32))])
    for at in (0, 3, 8, 30, len(data) - 1):
        broken = bytearray(data)
        broken[at] ^= 1
        with pytest.raises(Fatal, match="damaged"):
            vector_in(bytes(broken), vector, "file")
    with pytest.raises(Fatal, match="damaged"):
        vector_in(data[:-1], vector, "file")
    with pytest.raises(Fatal, match="damaged"):
        vector_in(data, Vector(vector.id, vector.offset, vector.size, 5), "file")


def test_a_vector_that_another_program_stored_elsewhere_is_refused() -> None:
    for held in (
        {"storageType": "i", "pathOrInlineDv": INLINE, "sizeInBytes": 40, "cardinality": 6},
        {"storageType": "u", "pathOrInlineDv": "ab^-aqEH.-t@S}K{vb[*k^", "sizeInBytes": 4, "cardinality": 6},
    ):
        with pytest.raises(Fatal, match="stored in a way"):
            Vector.from_json(held)


def state_of(version: int, held: dict[str, str]) -> set[str]:
    return set(held) | {vector for vector in held.values() if vector}


@given(st.data())
def test_a_file_of_vectors_goes_when_no_needed_version_has_one_of_them(data: st.DataObject) -> None:
    """Each version gives some data files a vector, of a new file or, as a restore does, of an earlier one."""
    versions: list[dict[str, str]] = [dict.fromkeys("abc", "")]
    for at in range(1, data.draw(st.integers(2, 9))):
        choices = ["", "gone", f"v{at}", *(f"v{earlier}" for earlier in range(1, at))]
        chosen = {name: data.draw(st.sampled_from(choices)) for name in "abc"}
        versions.append({name: vector for name, vector in chosen.items() if vector != "gone"})
    needed = sorted(data.draw(st.sets(st.integers(0, len(versions) - 1), min_size=1)))
    begin = needed[0]
    history = FileHistory()
    first = versions[begin]
    history.begin(begin, first, 0.0, [(vector, name) for name, vector in first.items() if vector])
    for at in range(begin + 1, len(versions)):
        before, after = versions[at - 1], versions[at]
        gone = {name: vector for name, vector in before.items() if after.get(name, "gone") != vector}
        new = {name: vector for name, vector in after.items() if before.get(name, "gone") != vector}
        actions = [(name, False) for name in gone] + [(name, True) for name in new]
        vectors = [(v, name, False) for name, v in gone.items() if v]
        vectors += [(v, name, True) for name, v in new.items() if v]
        history.commit(at, actions, float(at), vectors)
    ends = [*needed, *range(needed[-1] + 1, len(versions))]
    kept = set().union(*(state_of(at, versions[at]) for at in ends))
    known = set().union(*(state_of(at, versions[at]) for at in range(begin, len(versions))))
    found, young = history.unneeded(needed, float(len(versions)))
    assert not young
    assert set(found) == known - kept


def test_a_file_that_loses_rows_in_each_commit_has_one_life() -> None:
    """Otherwise a history would grow with each commit until the file is deleted."""
    history = FileHistory()
    history.begin(0, ["a", "b"], 0.0)
    for at in range(1, 100):
        vectors = [(f"v{at - 1}", "a", False)] if at > 1 else []
        history.commit(at, [("a", False), ("a", True)], float(at), [*vectors, (f"v{at}", "a", True)])
        history.forget([f"v{at - 1}"])
    assert history._past == {}
    history.commit(100, [("a", False), ("b", False), ("b", True)], 100.0, [("v99", "a", False)])
    assert {name: len(lives) for name, lives in history._past.items()} == {"a": 1, "v99": 1}
    assert history.unneeded([100], 100.0) == (["a", "v99"], False)
    assert history.unneeded([99, 100], 100.0) == ([], False)


def test_the_vectors_of_a_commit_are_found_in_its_lines() -> None:
    vector = Vector(uuid.uuid4(), 1, 40, 6)
    text = str(vector.to_json()).replace("'", '"').replace(": ", ":")
    lines = f'{{"remove":{{"path":"a%20b"}}}}\n{{"add":{{"path":"a%20b","deletionVector":{text}}}}}\n'
    assert vectors_of(lines.encode()) == [(vector.file, "a b", True)]

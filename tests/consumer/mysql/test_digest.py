"""Digests of rows: they are the same for the same rows, however these are ordered, cut or rendered."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumer.mysql.test_values import VARCHAR, column
from tidegate.consumer.mysql.batch import OPEN, Reached
from tidegate.consumer.mysql.digest import Digest, EarlierDigest, kind_of, plain
from tidegate.consumer.mysql.literals import bag_deletes, deletes, inserts
from tidegate.consumer.mysql.texts import Texts
from tidegate.consumer.table.convert import LONGLONG

KINDS = pytest.mark.parametrize("kind", [Digest, EarlierDigest])
WORD = (1 << 64) - 1


def digest_of(kind: type[Digest], ids: Sequence[int], texts: Sequence[str], table: str = "t") -> str:
    digest = kind()
    rows = pa.table({"a": ids, "b": pa.array([text.encode() for text in texts], pa.binary())})
    list(inserts([column(LONGLONG, "a"), column(VARCHAR, "b")], rows, table, digest))
    return str(digest)


@KINDS
def test_a_digest_depends_on_rows_and_table_and_not_on_the_order(kind: type[Digest]) -> None:
    whole = digest_of(kind, [1, 2, 2], ["x", "y", "y"])
    assert whole == digest_of(kind, [2, 1, 2], ["y", "x", "y"])
    others = [
        digest_of(kind, [1, 2], ["x", "y"]),
        digest_of(kind, [1, 1, 2], ["x", "x", "y"]),
        digest_of(kind, [1, 2, 2], ["y", "x", "y"]),
        digest_of(kind, [1, 2, 2], ["x", "y", "y"], table="u"),
    ]
    assert len({whole, *others}) == 5


@KINDS
def test_digests_of_parts_join_to_that_of_the_whole(kind: type[Digest]) -> None:
    rows, of = pa.table({"a": list(range(50))}), [column(LONGLONG, "a")]
    whole, first, rest = kind(), kind(), kind()
    list(inserts(of, rows, "t", whole))
    list(inserts(of, rows.slice(0, 17), "t", first))
    list(inserts(of, rows.slice(17), "t", rest))
    rest.join(first)
    assert str(rest) == str(whole)


@KINDS
def test_a_delete_and_an_insert_of_one_row_have_two_digests(kind: type[Digest]) -> None:
    put, gone, bag = kind(), kind(), kind()
    rows, of = pa.table({"a": [1]}), [column(LONGLONG, "a")]
    list(inserts(of, rows, "t", put))
    list(deletes(of, rows, "t", gone))
    list(bag_deletes(of, rows, "t", bag))
    assert len({str(put), str(gone), str(bag)}) == 3


def test_the_digests_are_the_same_in_every_release() -> None:
    """A batch that one release began may be finished by the next."""
    assert digest_of(EarlierDigest, [1, 2], ["x", "it's"]) == "2:6e9b1b16375a05ecee1f6440b62d3957"
    assert digest_of(Digest, [1, 2], ["x", "it's"]) == "2+b8064712d79404429b3172655225dba9"


def test_a_write_continues_with_the_digests_that_it_was_begun_with() -> None:
    earlier, newest = EarlierDigest(), Digest()
    assert kind_of(["", OPEN, str(earlier)]) is EarlierDigest
    assert kind_of([str(Reached(3, str(earlier))), str(Reached(0, ""))]) is EarlierDigest
    assert kind_of(["", OPEN, str(newest)]) is Digest
    assert kind_of([str(Reached(3, str(newest))), str(Reached(0, ""))]) is Digest
    assert kind_of([]) is Digest


def test_digests_of_two_kinds_never_join() -> None:
    with pytest.raises(AssertionError, match="one kind"):
        Digest().join(EarlierDigest())


@given(st.binary(max_size=80), st.lists(st.binary(max_size=40)), st.integers(0, 3), st.integers(0, 3))
def test_the_kernel_adds_up_the_plain_digests(what: bytes, texts: list[bytes], lead: int, trail: int) -> None:
    framed = [b"(" * lead + text + b")" * trail for text in texts]
    data = np.frombuffer(b"".join(framed) or b"\0", np.uint8)
    bounds = np.cumsum([0, *map(len, framed)]).astype(np.int64)
    digest = Digest()
    digest.add(what, Texts(data, bounds, lead, trail))
    halves = [plain(what, text) for text in texts]
    first, second = (sum(half[at] for half in halves) & WORD for at in (0, 1))
    assert str(digest) == f"{len(texts)}+{first:016x}{second:016x}"


@given(st.lists(st.binary(max_size=24), min_size=1), st.data())
def test_a_byte_that_differs_makes_another_digest(texts: list[bytes], data: st.DataObject) -> None:
    def made(of: list[bytes]) -> str:
        digest = Digest()
        digest.add(b"x", Texts.of(pa.array(of, pa.binary())))
        return str(digest)

    at = data.draw(st.integers(0, len(texts) - 1))
    other = data.draw(st.binary(max_size=24).filter(lambda text: text != texts[at]))
    assert made(texts) != made([*texts[:at], other, *texts[at + 1 :]])


@given(st.lists(st.binary(max_size=9)), st.integers(0, 5), st.integers(1, 4), st.integers(1, 30))
def test_texts_are_cut_without_loss(values: list[bytes], skipped: int, most: int, size: int) -> None:
    array = pa.array(values, pa.binary()).slice(skipped)
    texts = Texts.of(array)
    assert list(texts) == array.to_pylist()
    cuts = [bytes(cut) for cut in texts.cut(size, most)]
    assert b"".join(cuts) == b"".join(values[skipped:])
    assert len(cuts) >= -(-len(array) // most)

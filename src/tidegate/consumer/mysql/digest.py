"""Digests of the rows that lanes write: they show whether an interrupted write has the same rows again. Pure.

A row's digest is made from its text in SQL. It begins with two states, together the BLAKE2b of what the row
is for (`INSERT INTO ..`). The size and each eight bytes of the text are folded into both. The digests of rows
are added up half by half, so the order of rows does not matter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from tidegate.consumer.mysql.row_kernels import fold_texts
from tidegate.consumer.mysql.texts import Texts
from tidegate.kernel import address

_WORD: Final = (1 << 64) - 1
_FACTORS: Final = (0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93)
_FINISH: Final = 0xFF51AFD7ED558CCD


class Digest:
    """A digest of the rows that a lane writes, in any order: their number, and a sum of 128-bit digests.

    It detects accidental differences, not deliberate ones.
    """

    def __init__(self) -> None:
        self._count = 0
        self._sums = [0, 0]

    def add(self, what: bytes, texts: Texts) -> None:
        """Add rows by their texts; `what` names the operation and the table."""
        sums = np.array([*begun(what), 0, 0], np.uint64)
        data = address(texts.data)
        fold_texts(len(texts), address(texts.bounds), data, texts.lead, texts.trail, address(sums))
        self._add(len(texts), sums[2:].tolist())

    def join(self, other: Digest) -> None:
        """Add the rows of another digest of this kind."""
        assert type(other) is type(self), "the digests of a write are of one kind"
        self._add(other._count, other._sums)

    def _add(self, count: int, sums: Sequence[int]) -> None:
        self._count += count
        # A sum, so that the order does not count: after a restart tables may be read in another one.
        self._sums = [one + more for one, more in zip(self._sums, sums, strict=True)]

    def __str__(self) -> str:
        first, second = (one & _WORD for one in self._sums)
        return f"{self._count}+{first:016x}{second:016x}"


class EarlierDigest(Digest):
    """The digest of earlier releases, for a write that one of them began: a sum of BLAKE2b of each row."""

    def add(self, what: bytes, texts: Texts) -> None:
        """Add rows by their texts; `what` names the operation and the table."""
        begun_with, total = hashlib.blake2b(what, digest_size=16), 0
        for text in texts:
            one = begun_with.copy()
            one.update(text)
            total += int.from_bytes(one.digest())
        self._add(len(texts), [0, total])

    def __str__(self) -> str:
        return f"{self._count}:{self._sums[1] & ((1 << 128) - 1):032x}"


def kind_of(held: Iterable[str]) -> type[Digest]:
    """The kind of digests that a write was begun with, by those that are stored for its lanes.

    If none is stored, `Digest`. A write must be completed with the kind with which it was begun.
    """
    return EarlierDigest if any(":" in one for one in held) else Digest


def begun(what: bytes) -> tuple[int, int]:
    """The two states with which the digest of a row for `what` begins."""
    digest = hashlib.blake2b(what, digest_size=16).digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def plain(what: bytes, text: bytes) -> tuple[int, int]:
    """The two halves of the digest of one row: the plain twin of `row_kernels.fold_texts`."""
    words = [len(text)] + [int.from_bytes(text[at : at + 8], "little") for at in range(0, len(text), 8)]
    found = []
    for state, factor in zip(begun(what), _FACTORS, strict=True):
        for word in words:
            state = (state ^ word) * factor & _WORD
            state ^= state >> 32
        state = (state ^ state >> 32) * _FINISH & _WORD
        found.append(state ^ state >> 32)
    return found[0], found[1]

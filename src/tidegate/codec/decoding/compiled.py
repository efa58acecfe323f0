"""Decode templates in the layout of `codec.kernels.template_kernels`, and the table that finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tidegate.codec.decoding.template import Members, Pieces, Route, Template
from tidegate.codec.kernels import json_scan_kernels, template_kernels
from tidegate.codec.kernels import match_kernels as kernels
from tidegate.kernel import PAD, address

Int64s = npt.NDArray[np.int64]
LEAST_HEAD: Final = 8
"""Bytes that must precede a message's first cell: numbers are read with the 8 bytes that end at their end."""


class CompiledTemplate:
    """One template; its arrays live as long as the object."""

    def __init__(self, template: Template, sets: dict[int, _Set]) -> None:
        self.key, self.summed = template.key, template.summed
        self.lists = np.zeros(8, dtype=np.int64)
        """Address and number of pieces of the key, and of the three alternatives of the value."""
        self._owners: list[object] = []
        self.size = 0
        self.route: int | None = None
        """The hash of the heads of its items, once it is computed."""
        for number, pieces in enumerate(template.lists):
            assert _before_cells(pieces) >= LEAST_HEAD, "a cell has some constant before it"
            rows = self._pieces(pieces, sets)
            self.lists[2 * number : 2 * number + 2] = address(rows), len(pieces)

    def _pieces(self, pieces: Pieces, sets: dict[int, _Set]) -> Int64s:
        texts = b"".join(constant for constant, _, _ in pieces)
        data = np.frombuffer(texts + bytes(PAD), dtype=np.uint8)
        rows, offset = (
            np.zeros((len(pieces) + 1, template_kernels.PIECE_BYTES // 8), dtype=np.int64),
            address(data),
        )
        for row, (constant, form, cell) in zip(rows, pieces, strict=False):
            if isinstance(cell, Members):
                found = sets.get(id(cell))
                if found is None:
                    found = sets[id(cell)] = _Set(cell)
                    self.size += found.size
                self._owners.append(found)
                row[:] = offset, len(constant), form, address(found.words)
            else:
                row[:] = offset, len(constant), form, cell
            offset += len(constant)
        # Lists and pieces hold bare addresses. Without this reference the memory behind them would be
        # freed.
        self._owners += [data, rows]
        self.size += len(data) + rows.nbytes
        return rows


def _before_cells(pieces: Pieces) -> int:
    """The number of constant bytes before the first cell."""
    total = 0
    for constant, form, _ in pieces:
        total += len(constant)
        if form in (
            template_kernels.CELL,
            template_kernels.SEEN,
            template_kernels.WRAPPED,
            template_kernels.MEMBERS,
        ):
            return total
    return LEAST_HEAD


def compiled(templates: Sequence[Template]) -> list[CompiledTemplate]:
    """Templates of one table; they share their sets of members."""
    sets: dict[int, _Set] = {}
    return [CompiledTemplate(template, sets) for template in templates]


class _Set:
    """A set of members: one run of words, in the layout from `template_kernels.S_COUNT` on."""

    def __init__(self, members: Members) -> None:
        count = len(members.entries)
        places = 4
        # At most half of the places are taken, so each search ends at a free one.
        while places < 2 * count:
            places *= 2
        stamps = template_kernels.SET_WORDS
        entries = stamps + count
        hashes = entries + (count + 1) * template_kernels.ENTRY_BYTES // 8
        texts = b"".join(constant for constant, _, _ in members.entries) + members.tail
        self._data = np.frombuffer(texts + bytes(PAD), dtype=np.uint8)
        self.words = np.zeros(hashes + places // 2, dtype=np.int64)
        self.size = len(self._data) + self.words.nbytes
        base, at = address(self.words), address(self._data)
        numbers = self.words[hashes:].view(np.int32)
        rows = self.words[entries:hashes].reshape(-1, template_kernels.ENTRY_BYTES // 8)
        for i, (constant, form, cell) in enumerate(members.entries):
            rows[i] = at, len(constant), form, cell
            place = json_scan_kernels.hash_name(at + 1, _name_length(constant)) & (places - 1)
            while numbers[place]:
                place = (place + 1) & (places - 1)
            numbers[place] = i + 1
            at += len(constant)
        self.words[:stamps] = (
            count, members.partial, members.shift, places - 1, base + 8 * hashes, base + 8 * stamps,
            base + 8 * entries, 0, at, len(members.tail),
        )  # fmt: skip


def _name_length(constant: bytes) -> int:
    """The length of the name with which a member begins, between its quotes, escapes included."""
    at = 1
    while constant[at] != ord('"'):
        at += 2 if constant[at] == ord("\\") else 1
    return at - 1


class Routes:
    """Finds the templates for an item by the hash of the names at its head."""

    def __init__(self, route: Route) -> None:
        self.in_key = route.in_key
        texts = b"".join(constant for constant, _ in route.pieces)
        self._data = np.frombuffer(texts + bytes(PAD), dtype=np.uint8)
        self.pieces = np.zeros((len(route.pieces), template_kernels.PIECE_BYTES // 8), dtype=np.int64)
        offset = address(self._data)
        for row, (constant, form) in zip(self.pieces, route.pieces, strict=True):
            row[:3] = offset, len(constant), form
            offset += len(constant)
        self._example = route.example

    def table(self, templates: Sequence[CompiledTemplate]) -> tuple[Int64s, Int64s]:
        """(for each template the next one with the same hash, the hash table of the first ones)."""
        following = np.full(len(templates), -1, dtype=np.int64)
        chains: dict[int, int] = {}
        for number, template in enumerate(templates):
            hashed = self._hash(template)
            # All templates of a table have one hash, and tables may share one. The kernel tries each in the
            # chain.
            following[number] = chains.get(hashed, -1)
            chains[hashed] = number
        places = 4
        while places < 2 * len(chains):
            places *= 2
        table = np.zeros((places, 2), dtype=np.int64)
        for hashed, number in chains.items():
            place = hashed & (places - 1)
            while table[place, 1]:
                place = (place + 1) & (places - 1)
            table[place] = hashed, number + 1
        return following, table

    def _hash(self, template: CompiledTemplate) -> int:
        """The hash of the heads of a template's items."""
        if template.route is None:
            head = np.frombuffer(self._example(template.key) + bytes(PAD), dtype=np.uint8)
            template.route = int(
                kernels.route_of(address(head), len(head) - PAD, address(self.pieces), len(self.pieces))
            )
            assert template.route != 0, "the example begins as messages do"
        return template.route

"""Recorded vectors, and blocks of Markdown that show a vector byte by byte."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from tidegate.tidb import memcomparable, row

ROOT: Final = Path(__file__).parents[1]
GOLDEN: Final = ROOT / "tests" / "golden"
PER_LINE: Final = 12

Piece = tuple[bytes, str]
"""Some bytes and their meaning."""


# --- vectors -----------------------------------------------------------------------------------------


def lines(part: str) -> Iterable[dict[str, Any]]:
    """The lines of a golden file."""
    with gzip.open(GOLDEN / f"{part}.jsonl.gz", "rt") as file:
        yield from map(json.loads, file)


def recorded(case: str, seq: int) -> dict[str, Any]:
    """Row `seq` of a case of rows/."""
    found = lines(f"rows/{case}")
    return next(one for one in found if one["kind"] == "kv" and one["seq"] == seq)


def vector(part: str, **wanted: Any) -> dict[str, Any]:
    """The first line of a file of keys/ with these members."""
    return next(one for one in lines(f"keys/{part}") if all(one.get(k) == v for k, v in wanted.items()))


def message(part: str, kind: str) -> dict[str, Any]:
    """A message of a kind in a file of messages/: the first one, or for watermarks the newest."""
    found = [one for one in lines(f"messages/{part}") if one.get("kind") == kind]
    return max(found, key=lambda one: one.get("ts", 0))


# --- blocks ------------------------------------------------------------------------------------------


def taken_apart(whole: str | bytes, pieces: list[Piece]) -> str:
    """A block of bytes with one piece in each line. The pieces together must be the whole vector."""
    data = bytes.fromhex(whole) if isinstance(whole, str) else whole
    assert b"".join(piece for piece, _ in pieces) == data, (data.hex(), pieces)
    out = []
    for piece, said in pieces:
        parts = [piece[i : i + PER_LINE] for i in range(0, len(piece), PER_LINE)]
        for i, part in enumerate(parts):
            out.append(f"{part.hex(' '):<{3 * PER_LINE}} {said if i == 0 else ''}".rstrip())
    return "```\n" + "\n".join(out) + "\n```\n"


class Cursor:
    """Cuts a vector into pieces from the front."""

    def __init__(self, data: str | bytes) -> None:
        self.data = bytes.fromhex(data) if isinstance(data, str) else data
        self.at = 0
        self.pieces: list[Piece] = []

    def take(self, size: int, said: str | Callable[[bytes], str]) -> bytes:
        """Take the next bytes. `said`: their meaning."""
        piece = self.data[self.at : self.at + size]
        self.at += size
        if piece:
            self.pieces.append((piece, said if isinstance(said, str) else said(piece)))
        return piece

    def rest(self, said: str) -> bytes:
        """Take the remaining bytes."""
        return self.take(len(self.data) - self.at, said)

    def block(self) -> str:
        """The block. All bytes must have been taken."""
        return taken_apart(self.data, self.pieces)


def table_of_key(data: str | bytes) -> Cursor:
    """A cursor after 't' and the table id."""
    cursor = Cursor(data)
    cursor.take(1, "'t'")
    cursor.take(8, lambda piece: f"table id {memcomparable.decode_int(piece)}, comparable")
    return cursor


def row_v2(data: str | bytes, said: dict[int, str]) -> str:
    """A row of format v2. `said`: the meaning of each column's value."""
    cursor = Cursor(data)
    cursor.take(1, "format v2")
    flags = cursor.take(1, lambda p: f"flags: {flags_text(p[0])}")[0]
    filled = int.from_bytes(
        cursor.take(2, lambda p: f"columns with a value: {int.from_bytes(p, 'little')}"), "little"
    )
    empty = int.from_bytes(
        cursor.take(2, lambda p: f"columns that are NULL: {int.from_bytes(p, 'little')}"), "little"
    )
    id_size, end_size = (4, 4) if flags & row.LARGE else (1, 2)
    ids = numbers(cursor.take(id_size * filled, "their ids, ascending"), id_size)
    cursor.take(id_size * empty, "ids of the NULL ones")
    ends = numbers(cursor.take(end_size * filled, "where each value ends"), end_size)
    start = 0
    for column, end in zip(ids, ends, strict=True):
        cursor.take(end - start, f"column {column}: {said.get(column, '')}".rstrip(": "))
        start = end
    if flags & row.CHECKSUM:
        cursor.take(1, lambda p: f"checksum header: version {p[0] & 7}" + (", two sums" if p[0] & 8 else ""))
        cursor.take(4, lambda p: f"checksum {int.from_bytes(p, 'little')}")
    return cursor.block()


def flags_text(flags: int) -> str:
    """The flags of a row of format v2 in words."""
    names = [name for bit, name in ((row.LARGE, "large"), (row.CHECKSUM, "checksum")) if flags & bit]
    return ", ".join(names) or "none (small: ids 1 byte, ends 2)"


def numbers(data: bytes, size: int) -> list[int]:
    """Little-endian numbers of `size` bytes."""
    return [int.from_bytes(data[i : i + size], "little") for i in range(0, len(data), size)]


def groups(data: str) -> str:
    """Comparable bytes with one group in each line."""
    cursor = Cursor(data)
    while cursor.at < len(cursor.data):
        cursor.take(8, "eight bytes, the last padded with zeros")
        cursor.take(
            1,
            lambda p: "255: another group follows" if p == b"\xff" else f"255 - {255 - p[0]} zeros: the last",
        )
    return cursor.block()


def text_of(value: Any) -> str:
    """A recorded value for people."""
    return "NULL" if value is None else f"0x{value['hex']}" if isinstance(value, dict) else str(value)


def varint_size(cursor: Cursor) -> int:
    """The number of bytes of the varint at a cursor."""
    return memcomparable.read_varint(cursor.data, cursor.at)[1] - cursor.at


def last_cell(value: str, said: str) -> str:
    """The cell of a row's last column."""
    fields = row.split(bytes.fromhex(value))
    cell = fields.cells[max(fields.cells)]
    assert isinstance(cell, bytes)
    return taken_apart(cell, [(cell, said)])


def framed(data: str, versioned: bool) -> str:
    """Length-prefixed JSON documents."""
    cursor = Cursor(data)
    if versioned:
        cursor.take(8, "version 1")
    while cursor.at < len(cursor.data):
        size = int.from_bytes(cursor.take(8, lambda p: f"length {int.from_bytes(p, 'big')}"), "big")
        piece = cursor.data[cursor.at : cursor.at + size].decode()
        cursor.take(size, f"'{piece}'" if len(piece) < 80 else "the JSON below")
    documents = [piece.decode() for piece, said in cursor.pieces if said == "the JSON below"]
    return cursor.block() + "".join(f"\n```json\n{wrapped(text)}\n```\n" for text in documents)


def wrapped(text: str) -> str:
    """A JSON document in lines of a page's width, unchanged except for spaces."""
    return (
        json.dumps(json.loads(text), ensure_ascii=False, indent=1)
        .replace("\n   ", " ")
        .replace("\n  }", " }")
    )


def document_of(data: str) -> str:
    """A JSON document, in lines."""
    return f"```json\n{wrapped(bytes.fromhex(data).decode())}\n```\n"

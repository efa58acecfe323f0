"""Rows that did not fit into their messages, read from claim-check's storage or from upstream.

The decoder reports that a message does not contain its row. This module splits the message into its rows,
reads each claimed row, decodes it like any other, and compares it with what the message says: table, commit
ts, handle key. An object that the storage does not have now is Retryable: the messages are read again later,
and nothing after them is applied. Memory is bounded, because one small message may name an object of any
size: a batch is returned in pieces. If only a row's handle key was sent, the row is read from TiKV
(`handle_keys`), if PD's address is given. If a row cannot be read at all, its message stays bad and keeps its
ts (`checks.check_complete`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from tidegate.codec import registry
from tidegate.codec.base import BadMessage, Batch, Decoded, DecodedTable, Decoder, describe
from tidegate.codec.decoding.assemble import DecodeError
from tidegate.codec.decoding.joined import cut, join
from tidegate.codec.decoding.opening import opened
from tidegate.codec.formats.compression import MAX_EXPANDED, ExpandError
from tidegate.codec.large import Large, LargeOptions, Part, Reduced, bare, location_name, unclaimed
from tidegate.consumer.reading.handle_keys import GoneError
from tidegate.errors import Retryable
from tidegate.model.row import RowChange


class Storage(Protocol):
    """The storage of claimed messages: `tidegate.claim_check.ClaimStorage`."""

    def read(self, location: str) -> bytes:
        """The message that a location names; Retryable when it is not there."""
        ...


class Upstream(Protocol):
    """The cluster that the rows come from: `handle_keys.RowReader`."""

    def row(self, stated: Mapping[str, Any], *, finds_updates: bool) -> RowChange:
        """The whole change whose key a message carries. Raises GoneError, or Retryable."""
        ...


class ClaimReader:
    """Replaces messages that only name their rows with the whole rows."""

    def __init__(
        self,
        storage: Storage | None,
        decoder: Decoder,
        options: LargeOptions,
        large: Large,
        upstream: Upstream | None = None,
        *,
        most: int = MAX_EXPANDED,
    ) -> None:
        """`decoder` takes messages that are already decompressed. A claimed row is read from `storage` if it
        is given, any other row from `upstream`. `most`: bytes of rows that are read before a piece is
        returned.
        """
        self._most = most
        self._storage, self._decoder, self._options, self._large = storage, decoder, options, large
        self._upstream = upstream

    def resolve(self, decoded: Decoded) -> Decoded:
        """All pieces of `pieces`, joined into one."""
        pieces = list(self.pieces(decoded))
        return pieces[0] if len(pieces) == 1 else join(pieces)

    def pieces(self, decoded: Decoded) -> Iterator[Decoded]:
        """The decoded batch with the rows that were read, in the order of the messages.

        A piece exceeds `most` bytes by the rows of at most one message. Raises Retryable when a row cannot be
        read now.
        """
        rest, rows, left, size = decoded, list[DecodedTable](), list[BadMessage](), 0
        for bad in decoded.bad:
            found = None if bad.reduced_ts is None else self._rows(bad)
            if not isinstance(found, list):
                left.append(found or bad)
                continue
            more = sum(map(_bytes_of, found))
            # Without rows so far a message is taken however large it is. Otherwise it would never be
            # returned.
            if size and size + more > self._most:
                whole, rest = cut(rest, bad.offset)
                yield _with(whole, rows, left)
                rows, left, size = [], [], 0
            rows += found
            size += more
        yield _with(rest, rows, left) if rows or left else rest

    def _rows(self, bad: BadMessage) -> list[DecodedTable] | BadMessage | None:
        """The rows of a message; a bad message that says why there are none; None if no place has a row."""
        try:
            parts = self._large.parts(bad.key, None if bad.value is None else self._opened(bad.value))
        except (DecodeError, ValueError) as error:
            return replace(bad, why=str(error))
        # Before anything is read: a message is complete with all of its rows or stays bad.
        if any(part.reduced is not None and not self._has(part.reduced) for part in parts):
            return None
        found: list[DecodedTable] = []
        size = 0
        for seq, part in enumerate(parts):
            if size > self._most:
                return replace(bad, why=f"{bad.why}; its rows have more than {self._most} bytes together")
            try:
                one = self._one(bad.offset, part)
            except GoneError as error:
                return replace(bad, why=f"{bad.why}; {error}")
            if one.bad:
                return replace(bad, why=one.bad[0].why, unknown=one.bad[0].unknown, reduced_ts=None)
            found += [replace(table, seq=np.full(len(table), seq, dtype=np.int32)) for table in one.rows]
            size += sum(map(_bytes_of, one.rows))
        return found

    def _has(self, reduced: Reduced) -> bool:
        """Whether the storage or upstream is there to read such a row from."""
        return self._upstream is not None or (bool(reduced.claim) and self._storage is not None)

    def _opened(self, value: bytes) -> bytes:
        return opened(value, self._options.large_message_handle_compression, framed=self._large.framed)

    def _one(self, offset: int, part: Part) -> Decoded:
        """One row of a message: as sent, or read elsewhere and compared with what the message says.

        A row whose table version is not known yet stays bad, so that its definition is searched for first.
        """
        stated = self._decoder.decode(Batch([part.key], [part.value], [offset]))
        if part.reduced is None or any(bad.unknown is not None for bad in stated.bad):
            return stated
        if not part.reduced.claim or self._storage is None:
            return self._of_upstream(offset, stated)
        content = self._storage.read(part.reduced.claim)
        try:
            key, value = unclaimed(self._options, content)
            whole = self._decoder.decode(Batch([key], [self._opened(value)], [offset]))
        except (ExpandError, ValueError) as error:
            raise _not_it(part.reduced, f"the object holds no message: {error}") from None
        if any(bad.unknown is not None for bad in whole.bad):
            return whole
        _compare(part, describe(stated) if part.value is not None else [], whole)
        return whole

    def _of_upstream(self, offset: int, stated: Decoded) -> Decoded:
        """Read the row from upstream by its key, then apply the protocol's own encoder and decoder."""
        assert self._upstream is not None, "asked for only where there is one"
        keys = describe(stated)
        if len(keys) != 1 or stated.bad:
            raise GoneError(
                "its message does not have its key as text" if not stated.bad else stated.bad[0].why
            )
        # These options leave out columns that did not change, so an update's old key may be missing and the
        # message may look like an insert's.
        hides = ("only_output_updated_columns", "content_compatible")
        options = bare(self._options)
        whole = self._upstream.row(
            keys[0], finds_updates=any(getattr(options, name, False) for name in hides)
        )
        version = stated.rows[0].version
        if version is not None:
            whole = replace(whole, table=replace(whole.table, version=version.version))
        sent = [(one.key, one.value) for one in registry.encoder(options).encode_rows([whole])]
        return self._decoder.decode(Batch([sent[0][0]], [sent[0][1]], [offset]))


def _bytes_of(table: DecodedTable) -> int:
    return sum(image.nbytes for image in (table.new, table.old) if image is not None)


def _with(decoded: Decoded, rows: list[DecodedTable], bad: list[BadMessage]) -> Decoded:
    """`decoded` with these rows added, and with `bad` as its bad messages."""
    tables = sorted([*decoded.rows, *rows], key=lambda table: (int(table.offset[0]), int(table.seq[0])))
    return replace(decoded, rows=tables, bad=bad)


def _compare(part: Part, stated: list[dict[str, Any]], whole: Decoded) -> None:
    """Raises Retryable unless an object holds the row that its message names."""
    reduced, rows = part.reduced, describe(whole)
    assert reduced is not None
    if whole.bad or len(rows) != 1 or len(whole.rows) != 1:
        why = whole.bad[0].why if whole.bad else f"it holds {len(rows)} rows or marks"
        raise _not_it(reduced, f"the object holds no row: {why}")
    row = rows[0]
    if (row["schema"], row["table"], row["commit_ts"]) != (reduced.schema, reduced.table, reduced.commit_ts):
        raise _not_it(
            reduced, f"the object holds a row of {row['schema']}.{row['table']} at {row['commit_ts']}"
        )
    for side in ("new", "old") if stated else ():
        mine: Mapping[str, Any] = stated[0].get(side) or {}
        if mine and any((row[side] or {}).get(name) != value for name, value in mine.items()):
            raise _not_it(reduced, "the object holds a row with another key")


def _not_it(reduced: Reduced, why: str) -> Retryable:
    return Retryable(
        "an object in the storage of claim-check is not the row that its message names",
        where=f"{location_name(reduced.claim)[:200]}, a row of {reduced.schema}.{reduced.table} at commit ts "
        f"{reduced.commit_ts}",
        why=why[:400],
        fix="give the changefeed's own claim-check-storage-uri, claim-check-raw-value and "
        "large-message-handle-compression in the source URI",
    )

"""Reads simple's Avro encoding, message by message, by the schema that is compiled into TiCDC.

There is no header and no registry: the schema is a union of twelve named types, and a message is the last of
them, `Message`. So every value begins with the byte 0x16, where JSON has a brace. A message is decoded into
the object that its JSON encoding would be, with two differences: values are integers, floats, texts and bytes
instead of texts, and absent members are None. The entries of `data` and `old` are in random order, because
TiCDC writes Go's maps.

All lengths and counts are checked against the rest of the message before memory is allocated for them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from tidegate.codec.decoding.assemble import DecodeError

MESSAGE: Final = 0x16
"""The number of the last of the twelve types, 11, as a zig-zag varint."""
_WATERMARK, _BOOTSTRAP, _DDL, _DML = range(4)
_KINDS: Final = 4
DDL_TYPES: Final = ("CREATE", "ALTER", "ERASE", "RENAME", "TRUNCATE", "CINDEX", "DINDEX", "QUERY")
_DML_TYPES: Final = ("INSERT", "UPDATE", "DELETE")


def is_avro(value: bytes) -> bool:
    """Whether a value is in Avro and not in JSON."""
    return value[:1] == bytes([MESSAGE])


def may_define(value: bytes) -> bool:
    """Whether a value in Avro is a BOOTSTRAP or a DDL, which define table versions."""
    return value[1:2] in (bytes([2 * _BOOTSTRAP]), bytes([2 * _DDL]))


def message(value: bytes) -> dict[str, Any]:
    """The message as an object. DecodeError or ValueError if the bytes are not valid."""
    cursor = _Cursor(value)
    if cursor.long() != MESSAGE >> 1:
        raise DecodeError("the Avro value is no Message")
    kind = cursor.long()
    if not 0 <= kind < _KINDS or cursor.long() != kind:
        raise DecodeError("the type of the Message is not that of its payload")
    body = (_watermark, _bootstrap, _ddl, _dml)[kind](cursor)
    if cursor.at != len(value):
        raise DecodeError(f"{len(value) - cursor.at} bytes follow the Message")
    return body


class _Cursor:
    """The position while a message is read; every method reads one value of that Avro type."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def _take(self, size: int) -> bytes:
        # An Avro length is signed; a negative one would move backwards.
        if not 0 <= size <= len(self.data) - self.at:
            raise DecodeError(f"a length of {size} at byte {self.at} goes beyond the message")
        self.at += size
        return self.data[self.at - size : self.at]

    def long(self) -> int:
        found = 0
        # At most ten groups of 7 bits: nine have only 63 of the 64 bits.
        for shift in range(0, 70, 7):
            byte = self._take(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                if found >> 64:
                    break
                return (found >> 1) ^ -(found & 1)
        raise DecodeError(f"the number before byte {self.at} has more than 64 bits")

    def unsigned(self) -> int:
        """A long that encodes an unsigned 64-bit number."""
        return self.long() & (1 << 64) - 1

    def boolean(self) -> bool:
        byte = self._take(1)[0]
        if byte > 1:
            raise DecodeError(f"byte {self.at - 1} is no boolean")
        return byte == 1

    def float32(self) -> float:
        return float(struct.unpack("<f", self._take(4))[0])

    def float64(self) -> float:
        return float(struct.unpack("<d", self._take(8))[0])

    def bytes_(self) -> bytes:
        return self._take(self.long())

    def string(self) -> str:
        return self.bytes_().decode()

    def text(self) -> str:
        """A string that may not be UTF-8: a bit column's default is bytes. It is not needed."""
        return self.bytes_().decode(errors="replace")

    def choice(self, names: tuple[str, ...]) -> str:
        """An enum."""
        number = self.long()
        if not 0 <= number < len(names):
            raise DecodeError(f"byte {self.at - 1} names none of {len(names)} symbols")
        return names[number]

    def optional(self, read: Callable[[], Any]) -> Any:
        """A union of null and one type."""
        return self.one_of((lambda: None, read))

    def one_of(self, reads: tuple[Callable[[], Any], ...]) -> Any:
        """A union."""
        number = self.long()
        if not 0 <= number < len(reads):
            raise DecodeError(f"byte {self.at - 1} names none of {len(reads)} types")
        return reads[number]()

    def blocks(self, read: Callable[[], Any]) -> list[Any]:
        """An array, or the entries of a map. Every item has at least one byte, which bounds the count."""
        found: list[Any] = []
        while count := self.long():
            if count < 0:
                count = -count
                self.long()  # the block's size, for readers that skip it
            if count > len(self.data) - self.at:
                raise DecodeError(f"{count} items at byte {self.at} go beyond the message")
            found += [read() for _ in range(count)]
        return found

    def map_(self, read: Callable[[], Any]) -> dict[str, Any]:
        return dict(self.blocks(lambda: (self.string(), read())))


def _watermark(cursor: _Cursor) -> dict[str, Any]:
    return {
        "version": cursor.long(),
        "type": "WATERMARK",
        "commitTs": cursor.unsigned(),
        "buildTs": cursor.unsigned(),
    }


def _bootstrap(cursor: _Cursor) -> dict[str, Any]:
    return {
        "version": cursor.long(),
        "type": "BOOTSTRAP",
        "commitTs": 0,
        "buildTs": cursor.unsigned(),
        "tableSchema": _table(cursor),
    }


def _ddl(cursor: _Cursor) -> dict[str, Any]:
    return {
        "version": cursor.long(),
        "type": cursor.choice(DDL_TYPES),
        "sql": cursor.string(),
        "commitTs": cursor.unsigned(),
        "buildTs": cursor.unsigned(),
        "tableSchema": cursor.optional(lambda: _table(cursor)),
        "preTableSchema": cursor.optional(lambda: _table(cursor)),
    }


def _dml(cursor: _Cursor) -> dict[str, Any]:
    return {
        "version": cursor.long(),
        "database": cursor.string(),
        "table": cursor.string(),
        "tableID": cursor.long(),
        "type": cursor.choice(_DML_TYPES),
        "commitTs": cursor.unsigned(),
        "buildTs": cursor.unsigned(),
        "schemaVersion": cursor.unsigned(),
        "claimCheckLocation": cursor.optional(cursor.string),
        "handleKeyOnly": cursor.optional(cursor.boolean),
        "checksum": cursor.optional(lambda: _checksum(cursor)),
        "data": cursor.optional(lambda: _image(cursor)),
        "old": cursor.optional(lambda: _image(cursor)),
    }


def _checksum(cursor: _Cursor) -> dict[str, Any]:
    return {
        "version": cursor.long(),
        "corrupted": cursor.boolean(),
        "current": cursor.long(),
        "previous": cursor.long(),
    }


def _image(cursor: _Cursor) -> dict[str, Any]:
    reads = (
        lambda: None,
        cursor.long,
        cursor.float32,
        cursor.float64,
        cursor.string,
        cursor.bytes_,
        lambda: {"location": cursor.string(), "value": cursor.string()},
        cursor.unsigned,
    )
    return cursor.map_(lambda: cursor.one_of(reads))


def _table(cursor: _Cursor) -> dict[str, Any]:
    return {
        "schema": cursor.string(),
        "table": cursor.string(),
        "tableID": cursor.long(),
        "version": cursor.long(),
        "columns": cursor.blocks(lambda: _column(cursor)),
        "indexes": cursor.blocks(lambda: _index(cursor)),
    }


def _column(cursor: _Cursor) -> dict[str, Any]:
    return {
        "name": cursor.string(),
        "dataType": {
            "mysqlType": cursor.string(),
            "charset": cursor.string(),
            "collate": cursor.string(),
            "length": cursor.long(),
            "decimal": cursor.optional(cursor.long),
            "elements": cursor.optional(lambda: cursor.blocks(cursor.string)),
            "unsigned": cursor.optional(cursor.boolean),
            "zerofill": cursor.optional(cursor.boolean),
        },
        "nullable": cursor.boolean(),
        "default": cursor.optional(cursor.text),
    }


def _index(cursor: _Cursor) -> dict[str, Any]:
    return {
        "name": cursor.string(),
        "unique": cursor.boolean(),
        "primary": cursor.boolean(),
        "nullable": cursor.boolean(),
        "columns": cursor.blocks(cursor.string),
    }

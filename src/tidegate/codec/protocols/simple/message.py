"""The members that messages of the simple protocol have in both directions, and its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tidegate.codec.base import CHECKSUMS_ON, one_of
from tidegate.codec.formats.json_text import std_string
from tidegate.codec.large import LargeOptions
from tidegate.model.cells import DELETE, INSERT, UPDATE

VERSION: Final = 1
WATERMARK: Final = "WATERMARK"
BOOTSTRAP: Final = "BOOTSTRAP"
OPERATIONS: Final = {"INSERT": INSERT, "UPDATE": UPDATE, "DELETE": DELETE}
SCHEMA_MEMBERS: Final = ("tableSchema", "preTableSchema")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleOptions(LargeOptions):
    """Simple's own options."""

    protocol: ClassVar[str] = "simple"
    encoding_format: str = one_of("json", "avro")
    """The encoding of messages. Readers recognize it by the first byte of a message."""
    integrity_check_level: str = one_of("none", CHECKSUMS_ON)

    @property
    def in_avro(self) -> bool:
        """Whether messages are in Avro."""
        return self.encoding_format == "avro"

    @property
    def has_checksums(self) -> bool:
        """Whether rows contain their checksums."""
        return self.integrity_check_level == CHECKSUMS_ON


def timestamp_head(zone: str) -> bytes:
    """A TIMESTAMP up to its text."""
    return b'{"location":%s,"value":' % std_string(zone.encode())

"""How a merge changes data files: it rewrites them, or notes which of their rows are deleted. Pure.

Iceberg notes deleted rows in delete files, Delta in deletion vectors. The names are those of Iceberg's table
properties `write.update.mode` and `write.delete.mode`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class WriteMode(StrEnum):
    """How rows are removed from a data file."""

    MERGE_ON_READ = "merge-on-read"
    """A file that loses few rows stays, and another file has their positions."""
    COPY_ON_WRITE = "copy-on-write"
    """Each file that loses a row is rewritten."""


DEFAULT: Final = WriteMode.MERGE_ON_READ
"""Iceberg's."""
WORN: Final = 0.25
"""The share of a data file's rows from which on it is rewritten: lost in one commit, or dead in total. So a
changed row costs at most about three rows that are copied."""
TINY_BYTES: Final = 128 << 10
"""A data file below this size on disk is rewritten: that costs little more than a delete file, and a reader
gains."""


def rewrites(mode: WriteMode, lost: int, rows: int, size: int) -> bool:
    """Whether a merge rewrites a data file of so many rows and bytes that loses `lost` rows."""
    return mode is WriteMode.COPY_ON_WRITE or size < TINY_BYTES or is_worn(lost, rows)


def is_worn(dead: int, rows: int) -> bool:
    """Whether so many rows of a data file are dead that it is rewritten."""
    return dead >= WORN * rows

"""Values that options may have, and the hint for those that they may not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "xxxxx"
"""The text shown in the place of a secret, as in TiCDC."""


class Secret(str):
    """A text that always prints as REDACTED; code that must send or store it calls `revealed`.

    All other uses are those of a string (it is compared, encoded, pickled). It also stays hidden as a part of
    a printed value (a tuple, a dataclass, an exception).
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(str(self))

    def __str__(self) -> str:
        return REDACTED if self else ""

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


def revealed(text: str) -> str:
    """The text itself, also of a Secret."""
    return str.__str__(text) if isinstance(text, Secret) else text


TABLE_MODE: Final = "tidb"
TXN_MODE: Final = "txnkv"
RAW_MODE: Final = "rawkv"
KV_MODES: Final = (TABLE_MODE, TXN_MODE, RAW_MODE)
"""The keys of a changefeed: TiDB's tables, transactional keys without tables, or raw keys of API V2."""
IDS_PER_STRIPE_MAX: Final = 4096
"""The set of wanted ids in a stripe is one number in what a pipeline gets, with a bit for each id."""
TABLE_CUTS_MAX: Final = 1024
"""For all tables together, because each piece is a span of its own, which has a small cost even when idle."""
FLAVOURS: Final = ("classic", "new")
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE_OPTIONS: Final = ("none", "handle-key-only", "claim-check")
MESSAGE_COMPRESSIONS: Final = ("none", "snappy", "lz4")
"""Compression of the messages themselves, apart from Kafka's own."""
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PARTITION_RULES: Final = ("default", "table", "ts", "index-value", "rowid", "columns", "conflict")
INTEGRITY_LEVELS: Final = ("none", "correctness")
CORRUPTION_LEVELS: Final = ("warn", "error")


def nearest(name: str, valid: Iterable[str], *, label: str = "valid") -> str:
    """`did you mean X?` if there is a similar name, and the list of valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}{label}: {', '.join(names)}"

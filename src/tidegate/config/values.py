"""Values that options may have, and the words for those that they may not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Final

REDACTED: Final = "xxxxx"
"""What stands in the place of a secret, as TiCDC writes it."""


class Secret(str):
    """A text that prints as REDACTED, whatever prints it; who must send or store it has it from `revealed`.

    It is taken apart like any other (compared, encoded, pickled), and as a part of a value that is printed
    (a tuple, a dataclass, an exception) it stays hidden.
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
"""What a changefeed's keys are: TiDB's tables, transactional keys without tables, raw keys of API V2."""
IDS_PER_STRIPE_MAX: Final = 4096
"""Which of them are wanted is one number in what a pipeline is told."""
TABLE_CUTS_MAX: Final = 1024
"""Of all tables together: each piece is a span of its own, which costs a little while nothing happens."""
FLAVOURS: Final = ("classic", "new")
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE_OPTIONS: Final = ("none", "handle-key-only", "claim-check")
MESSAGE_COMPRESSIONS: Final = ("none", "snappy", "lz4")
"""Of the messages themselves, apart from Kafka's own."""
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PARTITION_RULES: Final = ("default", "table", "ts", "index-value", "rowid", "columns", "conflict")
INTEGRITY_LEVELS: Final = ("none", "correctness")
CORRUPTION_LEVELS: Final = ("warn", "error")


def nearest(name: str, valid: Iterable[str], *, label: str = "valid") -> str:
    """`did you mean X?` when one is near, and the list of what is valid."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    return f"{hint}{label}: {', '.join(names)}"

"""Which messages of owners count for a processor (`control.processor`): by owner revision, sequence and
epoch.

A message may be late, or meant for the process that ran here before; after a change of owners two of them
send for a while.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Sender(StrEnum):
    """The sender of a message, by owner revision."""

    EARLIER = "an earlier owner than the last one"
    SAME = "the owner that spoke last"
    LATER = "a later owner"


class Word(StrEnum):
    """The kind of a message of an owner."""

    ANNOUNCE = "Announce"
    NEW = "Dispatch"
    OLD = "Dispatch that is not above the last one's sequence"
    MISDIRECTED = "Dispatch to another epoch of this capture"


class Verdict(StrEnum):
    """What a processor does with a message."""

    DROP = "drop it"
    SYNC = "send Sync"
    MEET = "note the owner, send Sync"
    REFUSE = "note the owner, send Sync, do nothing else"
    TAKE = "note the owner, take it"


RECEIVED: Final = MappingProxyType(
    {
        (Sender.EARLIER, Word.ANNOUNCE): Verdict.DROP,
        (Sender.EARLIER, Word.NEW): Verdict.DROP,
        (Sender.EARLIER, Word.OLD): Verdict.DROP,
        (Sender.EARLIER, Word.MISDIRECTED): Verdict.DROP,
        (Sender.SAME, Word.ANNOUNCE): Verdict.SYNC,
        (Sender.SAME, Word.NEW): Verdict.TAKE,
        (Sender.SAME, Word.OLD): Verdict.DROP,
        (Sender.SAME, Word.MISDIRECTED): Verdict.DROP,
        (Sender.LATER, Word.ANNOUNCE): Verdict.MEET,
        (Sender.LATER, Word.NEW): Verdict.TAKE,
        (Sender.LATER, Word.MISDIRECTED): Verdict.REFUSE,
    }
)
"""Each owner counts sequences of its own, so a later owner's Dispatch is never old.

A Dispatch to another epoch was meant for the process that ran here before. That process may have left a
worker behind, which the same grant would allow to write; so the Dispatch starts nothing. If it is from a
later owner, a Sync answers it, whose epoch shows the owner that another process runs here now.
"""
USED: Final = frozenset({Verdict.SYNC, Verdict.MEET, Verdict.TAKE})
"""The verdicts for which `Processor.receive` is true."""

"""Which messages of owners count for a processor (`control.processor`): by owner revision, sequence and
epoch.

A message may be late, or meant for the process that ran here before; after a change of owners two of them
send for a while. `Inbox` keeps what is needed to judge the next message, and `RECEIVED` is the judgement.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final, assert_never

from tidegate.control.messages import Announce, Dispatch, FromOwner, Header


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
    """A processor's reaction to a message."""

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


class Inbox:
    """The messages of owners to one processor. Not thread-safe, no I/O."""

    def __init__(self, mine: Header) -> None:
        """`mine`: the processor's own header; an owner's message must have the same address."""
        self._address = mine.cluster, mine.changefeed, mine.capture
        self._epoch = mine.capture_epoch
        self.last = 0, 0
        """The owner revision and sequence of the last Dispatch that counted."""
        self.latest = 0
        """The greatest sequence of this owner's messages, including those that did not count."""

    def judge(self, message: FromOwner) -> Verdict:
        """Decide what a message causes. Notes its sender, unless it has no effect."""
        header = message.header
        if (header.cluster, header.changefeed, header.capture) != self._address:
            return Verdict.DROP
        sender = self._sender(header)
        verdict = RECEIVED[sender, self._word(message)]
        if sender is not Sender.EARLIER:
            # Each owner counts its own sequences, so those of an earlier owner say nothing about this one's.
            is_new = sender is Sender.LATER
            self.latest = header.sequence if is_new else max(self.latest, header.sequence)
        match verdict:
            case Verdict.MEET | Verdict.REFUSE:
                # No Dispatch of this owner has counted yet, so each one of its Dispatches will be new.
                self.last = header.owner_rev, 0
            case Verdict.TAKE:
                self.last = header.owner_rev, header.sequence
            case Verdict.DROP | Verdict.SYNC:
                pass
            case _:
                assert_never(verdict)
        return verdict

    def _sender(self, header: Header) -> Sender:
        if header.owner_rev == self.last[0]:
            return Sender.SAME
        return Sender.EARLIER if header.owner_rev < self.last[0] else Sender.LATER

    def _word(self, message: FromOwner) -> Word:
        match message:
            case Announce():
                return Word.ANNOUNCE
            case Dispatch(header):
                if header.owner_rev == self.last[0] and header.sequence <= self.last[1]:
                    return Word.OLD
                # The epoch names the process of this capture. An order that was meant for its predecessor
                # must not start anything.
                return Word.NEW if header.capture_epoch == self._epoch else Word.MISDIRECTED
            case _:
                assert_never(message)

"""The check of topics: takes their messages, and passes them to the checkers of single rules. Pure.

    decoded messages of a partition, in order --take--> TopicCheck --finish--> Verdict

The contract (docs/formats/contract.md): a row is always on one partition, and its changes appear first in
commit order; Resolved and DDL are broadcast; what they promise about earlier and later rows holds; a change
is repeated only on its own partition. It is based on TiCDC's MQ design of 2020; `Producer` says where the
real TiCDC differs.

The number of partitions may change at a ts T (docs/repartition.md). A row is on one partition up to T, and on
one above it: the promises about a row's place and order hold within such an epoch. Resolved from T on names
the change, before any row above T. So each partition itself shows by which number its rows must be checked.

Several topics of one changefeed are checked together: their partitions are numbered as in `places`. Each
Resolved is in all topics, from the first Resolved of a topic on; a DDL is in one topic.

Partitions may be taken in any order, in pieces of any size. All changes above the lowest Resolved of all
partitions are remembered, and changes below it as far as `remember` allows: they distinguish a repeated
change from a late one. Rows that cannot be checked because too much was forgotten, or because the topic's
beginning is gone, are counted, and never reported as violations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from tidegate.codec.base import DdlMessage, Decoded
from tidegate.codec.entry import DdlTo
from tidegate.consumer.contract.alignments import Alignments
from tidegate.consumer.contract.broadcasts import Ddls, ResolvedMarks
from tidegate.consumer.contract.changes import Changes
from tidegate.consumer.contract.layouts import Layouts
from tidegate.consumer.contract.partition import Partition
from tidegate.consumer.contract.places import Places
from tidegate.consumer.contract.rows import controls, in_order
from tidegate.consumer.contract.verdict import Rule, Unjudged, Verdict
from tidegate.consumer.engine.places import place_of
from tidegate.consumer.reading.mark_headers import MarkHeaders
from tidegate.dispatcher.router import Router
from tidegate.model.layout import Layout

REMEMBER: Final = 500_000
"""How many changes are remembered, at about 250 bytes each."""
NO_HEADERS: Final = MarkHeaders()


class Producer(StrEnum):
    """The producer whose promises are checked."""

    TIDEGATE = "tidegate"
    TICDC = "ticdc"
    """After Resolved R, a row of exactly R or a DDL of R may follow; a DDL promises something only about rows
    of its own table; after a restart Resolved may go back."""


class TopicCheck:
    """Takes the messages of topics, partition by partition, and checks them. Not thread-safe, no I/O."""

    def __init__(
        self,
        partitions: Sequence[int],
        *,
        producer: Producer = Producer.TIDEGATE,
        ddl_to: DdlTo = DdlTo.ALL,
        router: Router | None = None,
        begun: Mapping[int, int] = MappingProxyType({}),
        remember: int = REMEMBER,
        topics: Sequence[str] = ("",),
        layouts: Mapping[str, Sequence[Layout]] = MappingProxyType({}),
    ) -> None:
        """`partitions`: all partitions of the topics, by number. `router`: the producer's dispatch rules, if
        known.

        `begun`: for partitions whose first messages are not taken, the greatest ts that these may have.
        `layouts`: by topic, the changes of its number of partitions that are known beforehand, in order.
        Others are learned; rows up to the first learned one are then not compared with their dispatcher.
        """
        everyone = {n: Partition(n, *place_of(topics, n), begun.get(n, 0)) for n in partitions}
        floor = max((one.began for one in everyone.values()), default=0)
        strict = producer is Producer.TIDEGATE
        # By the greatest number: a caller that reads existing messages leaves out empty partitions.
        counts: dict[str, int] = {}
        for one in everyone.values():
            counts[one.topic] = max(counts.get(one.topic, 0), one.partition + 1)
        known = Layouts(counts, layouts)
        self._partitions, self._verdict = everyone, Verdict()
        self._places = Places(everyone, known, router, self._verdict, strict_null=strict)
        self._changes = Changes(everyone, known, self._places, self._verdict, remember, strict=strict)
        self._marks = ResolvedMarks(everyone, known, floor, self._verdict, strict=strict)
        self._ddls = Ddls(everyone, known, ddl_to, floor, self._verdict, strict=strict)
        self._alignments = Alignments(known, self._verdict)

    @property
    def verdict(self) -> Verdict:
        """The verdict so far."""
        return self._verdict

    @property
    def pressed(self) -> bool:
        """Whether partitions that are ahead should wait for the others, to save memory."""
        return self._changes.pressed

    def ahead(self, partition: int) -> bool:
        """Whether a partition has a higher Resolved than the lowest."""
        return self._partitions[partition].resolved > self._marks.low

    def take(self, partition: int, decoded: Decoded, headers: MarkHeaders = NO_HEADERS) -> None:
        """Take the next messages of a partition, decoded, with their headers.

        Changes of the number of partitions are learned first: rows of the same piece may follow the Resolved
        that names one, and their place is checked by it. Then rows and marks are taken in the order of their
        offsets, because nearly every rule is about the order of messages.
        """
        state = self._partitions[partition]
        for layout in headers.layouts.values():
            self._places.learn(state, layout)
        self._places.take(state, decoded.rows)
        for table in decoded.rows:
            name = f"{table.schema}.{table.table}"
            self._verdict.tables[name] = self._verdict.tables.get(name, 0) + len(table)
        rows, at = in_order(decoded.rows), 0
        for offset, what in controls(decoded):
            upto = bisect_left(rows.offset, offset)
            self._changes.take(state, rows, at, upto)
            at = upto
            match what:
                case int():
                    if offset not in headers.layouts:
                        self._places.take_epoch(state, headers.epochs.get(offset, 0))
                    alignment = headers.alignments.get(offset)
                    if alignment is not None:
                        self._alignments.take(state, what, alignment, offset)
                    # An alignment mark, even one that cannot be read, may repeat a Resolved that was sent
                    # before.
                    is_mark = alignment is not None or offset in headers.unsound
                    if not is_mark or what > state.resolved:
                        self._marks.take(state, what, offset)
                case DdlMessage():
                    self._ddls.take(state, what)
                case None:
                    if offset not in headers.layouts:
                        self._places.repartitioned()
        self._changes.take(state, rows, at, len(rows.offset))
        for offset, why in headers.unsound.items():
            self._verdict.violated(Rule.DECODABLE, state, offset, 0, why)
        for bad in decoded.bad:
            if bad.reduced_ts is not None:
                self._verdict.unjudged[Unjudged.REDUCED] += 1
            # The message that defines it may be before the place where the check began.
            elif bad.unknown is not None and state.began:
                self._verdict.unjudged[Unjudged.UNDEFINED] += 1
            else:
                self._verdict.violated(Rule.DECODABLE, state, bad.offset, 0, bad.why)
        if self._marks.check_passed():
            self._ddls.check_passed(self._marks.low)
        self._changes.forget(self._marks.low)

    def finish(self) -> Verdict:
        """The verdict once all messages are taken."""
        found = self._verdict
        if not found.resolved and found.rows:
            found.unjudged[Unjudged.NO_MARKS] = found.rows
        found.lowest_resolved = self._marks.low
        found.dispatchers |= self._places.dispatchers()
        return found

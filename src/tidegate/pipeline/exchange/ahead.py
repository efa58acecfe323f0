"""Leaves out rows that were delivered before the feed's spans or its rules changed.

An incarnation begins at the feed's checkpoint, except for spans that have their own record of progress. After
a change of spans or rules there is no such record, and rows above the checkpoint may be in the sink already:
the rows that `model.progress.Delivered` names. They are discarded here, right after they are read, so no row
is delivered twice. Rows of a table that only the new rules follow are not discarded, so no row is lost.

Two questions decide for each row: is its key inside the stretch, and did its table, in the version valid at
commit ts - 1, pass the rules of that record? The earlier incarnation used the same two conditions, so the
answer is exact. It costs a look at each row up to the last ts of these records, and nothing after that ts.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.dispatcher.split import Part
from tidegate.eventstore.seek import classes
from tidegate.filter.verdicts import Verdicts
from tidegate.model.position import DELETE_CLASS, INSERT_CLASS, UPDATE_CLASS, Position, Rank
from tidegate.model.progress import Delivered, TableRules, delivered, table_rules
from tidegate.model.span import Span
from tidegate.mounter.decode import of_followed
from tidegate.mounter.schema_store import Follows, SchemaStore
from tidegate.tidb.table_filter import TableFilter

Bools = npt.NDArray[np.bool_]

_RANK_OF: Final = {
    (Part.OLD_HALVES, UPDATE_CLASS): Rank.OLD_HALVES,
    (Part.UPDATES, UPDATE_CLASS): Rank.UPDATES,
    (Part.NEW_HALVES, UPDATE_CLASS): Rank.NEW_HALVES,
    # A position among split updates never meets this part: such transactions are split to their end
    # (`AheadOf.split`).
    (Part.WHOLE, UPDATE_CLASS): Rank.NEW_HALVES,
    **{(part, DELETE_CLASS): Rank.DELETES for part in Part},
    **{(part, INSERT_CLASS): Rank.INSERTS for part in Part},
}
_UPDATES: Final = (Rank.OLD_HALVES, Rank.UPDATES, Rank.NEW_HALVES)


@dataclass(frozen=True, slots=True)
class Ahead:
    """The rows delivered ahead of a feed's spans. Written when an incarnation begins, read by its workers."""

    stretches: tuple[Delivered, ...] = ()
    rules: Mapping[str, TableRules] = field(default_factory=dict)
    """The rules that the stretches name, by digest."""

    @classmethod
    def of(cls, records: Mapping[str, bytes], instance: str, own: Container[str], since: int) -> Ahead:
        """From a sink's records: what was delivered above `since`, without the records whose keys are in
        `own`.
        """
        found = delivered(records, instance, own, since)
        named = {one.rules for one in found}
        return cls(tuple(found), {key: one for key, one in table_rules(records).items() if key in named})

    def to_json(self) -> dict[str, Any]:
        """The form in the file for workers (`FeedSpec.durable_file`)."""
        stretches = [
            [
                one.span.start.hex(),
                one.span.end.hex(),
                one.rules,
                one.ts,
                None if one.position is None else one.position.to_json(),
            ]
            for one in self.stretches
        ]
        return {
            "stretches": stretches,
            "rules": {digest: one.to_bytes().decode() for digest, one in self.rules.items()},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Ahead:
        """The inverse of `to_json`."""
        stretches = (
            Delivered(
                Span(bytes.fromhex(start), bytes.fromhex(end)),
                rules,
                ts,
                None if position is None else Position.from_json(position),
            )
            for start, end, rules, ts, position in found["stretches"]
        )
        rules = {digest: TableRules.from_bytes(text.encode()) for digest, text in found["rules"].items()}
        return cls(tuple(stretches), rules)


class AheadOf:
    """The part of an `Ahead` that concerns some spans, which are delivered together."""

    def __init__(self, ahead: Ahead, spans: Sequence[Span], follows: Mapping[str, Follows]) -> None:
        """`follows`: for each digest of rules, whether they let a version of a table pass (`followers`)."""
        self._stretches = tuple(
            one for one in ahead.stretches if any(one.span.intersect(span) is not None for span in spans)
        )
        self._follows = follows
        self.last_ts = max((one.last_ts for one in self._stretches), default=0)
        """No row above this commit ts was delivered."""
        self.begun = frozenset(
            (one.position.commit_ts, one.position.start_ts)
            for one in self._stretches
            if one.position is not None
        )
        """Transactions of which a part was delivered."""
        self.split = frozenset(
            (one.position.commit_ts, one.position.start_ts)
            for one in self._stretches
            if one.position is not None and one.position.rank in _UPDATES
        )
        """Those of them that were delivered with split updates, up to a position among the updates."""

    def left(self, block: pa.RecordBatch, part: Part, schemas: SchemaStore) -> pa.RecordBatch:
        """The rows of a piece that were not delivered. If the piece has rows of a transaction that is
        `begun`, they are all of one class, or no update among them is split.
        """
        # The rows are in order of commit ts, so the first one has the smallest.
        if block.column(0)[0].as_py() > self.last_ts:
            return block
        commits = block.column(0).to_numpy()
        ranks = _Ranks(block, part)
        followed: dict[str, Bools] = {}
        out = np.zeros(block.num_rows, dtype=np.bool_)
        for one in self._stretches:
            reached = commits <= one.ts
            if one.position is not None:
                reached |= ranks.reached(one.position)
            if not reached.any():
                continue
            reached &= _inside(block.column("key"), one.span)
            if one.rules:
                # Looked up once for each digest, because many stretches have the same rules.
                if one.rules not in followed:
                    followed[one.rules] = of_followed(block, schemas, self._follows[one.rules])
                reached &= followed[one.rules]
            out |= reached
        # docs/guarantees.md#nothing-is-doubled: rows that earlier rules or spans have delivered are left out.
        return block.filter(pa.array(~out)) if out.any() else block


def followers(rules: Mapping[str, TableRules], places: Iterable[int]) -> dict[str, Follows]:
    """For each digest, whether its rules let a version of a table pass. `places`: numbers of the bits in a
    version where these verdicts are kept, one for each digest.
    """
    return {
        digest: Verdicts(
            TableFilter(one.patterns, one.case_sensitive), place, force_replicate=one.force_replicate
        ).follows
        for (digest, one), place in zip(rules.items(), places, strict=False)
    }


class _Ranks:
    """The places of a piece's rows in the order of delivery."""

    def __init__(self, block: pa.RecordBatch, part: Part) -> None:
        self._block, self._part = block, part
        self._commits, self._starts = (block.column(i).to_numpy() for i in range(2))
        self._classes = classes(block)

    def reached(self, position: Position) -> Bools:
        """Which rows are at or before a position."""
        same = self._commits == position.commit_ts
        # The store orders transactions of one commit ts by their start ts.
        found: Bools = same & (self._starts < position.start_ts)
        same &= self._starts == position.start_ts
        if not same.any():
            return found
        upto_key = pc.less_equal(self._block.column("key"), position.key).to_numpy(zero_copy_only=False)
        for kind in (DELETE_CLASS, UPDATE_CLASS, INSERT_CLASS):
            rows = same & (self._classes == kind)
            match _compared(position.rank, _RANK_OF.get((self._part, kind), Rank.DONE)):
                case 1:
                    found |= rows
                case 0:
                    found |= rows & upto_key
        return found


def _compared(reached: Rank, rank: Rank) -> int:
    """How much of a rank was delivered up to the position's rank `reached`. 1: all of it; 0: the rows up to
    the position's key; -1: nothing.
    """
    if reached is Rank.DONE:
        return 1
    if reached is Rank.WHOLE_UPDATES:
        # The earlier incarnation split no updates, so it passed each key once, with the whole update.
        if rank in _UPDATES:
            return 0
        return 1 if rank is Rank.DELETES else -1
    return (reached > rank) - (reached < rank)


def _inside(keys: pa.Array, span: Span) -> Bools:
    found: Bools = pc.greater_equal(keys, span.start).to_numpy(zero_copy_only=False)
    if span.end:
        found = found & pc.less(keys, span.end).to_numpy(zero_copy_only=False)
    return found

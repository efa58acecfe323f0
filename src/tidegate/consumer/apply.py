"""From what the flow allows to the verbs of a target: rows are settled table by table, DDLs become steps.

What the user's rules leave out, and under which names the rest is applied, is settled first (`selection`).
Whatever the target is, a table looks as its definition says (`definition`), rows that no DDL announced make
it grow, and a DDL is rendered from the TableInfo of its event (`ddl_plan`), never from its SQL. How steps and
changes become durable, and what a restart finds, is the target's part (`target`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.codec import ddl_header
from tidegate.codec.base import DdlMessage
from tidegate.consumer import ddl_plan, definition, schema_changes
from tidegate.consumer.assembler import STEP_BYTES, Piece, Segment
from tidegate.consumer.bad_rows import BadRows
from tidegate.consumer.changes import (
    BadRow,
    Staged,
    staged_bytes,
    staged_changes,
    staged_rows,
    without_repeats,
)
from tidegate.consumer.convert import TIMESTAMP
from tidegate.consumer.ddl_plan import REPEAT, Drop, Nothing, Step
from tidegate.consumer.definition import Definition
from tidegate.consumer.net_effect import Changes, net_bag, net_effect
from tidegate.consumer.parted import PARTS_MAX, PartedTable
from tidegate.consumer.position import Position, Source
from tidegate.consumer.row_clock import Clock
from tidegate.consumer.schema_changes import SchemaChanges
from tidegate.consumer.selection import Chosen, Selection
from tidegate.consumer.target import Name, TableChanges, Target
from tidegate.errors import Fatal
from tidegate.model.ddl import DdlEvent

MAX_BARRIERS: Final = 1024
"""Tables of which the last DDL is remembered: a producer repeats what came since its checkpoint only."""
QUARANTINE: Final = "quarantine.jsonl"
"""In the consumer's folder."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What may be in memory at once, in bytes of staged rows: several times that when settled."""

    step: int = 2 * STEP_BYTES
    """Of a step that is settled whole."""
    part: int = 8 << 20
    """Of a part of a table, in a larger step."""


def only_topic(number: int) -> tuple[str, int]:
    """The topic and partition of a partition's number where there is one topic."""
    return "", number


class Applier:
    """Applies rows and DDLs to one target."""

    def __init__(
        self,
        target: Target,
        folder: Path,
        time_zone: str = "UTC",
        trust_inserts: bool = True,
        place: Callable[[int], tuple[str, int]] = only_topic,
        *,
        sizes: Sizes | None = None,
        learns_zone: bool = False,
        clock: Clock | None = None,
        selection: Selection | None = None,
        schema_changes: SchemaChanges = SchemaChanges.EVOLVE,
    ) -> None:
        """`folder`: where rows are set aside that the target's tables cannot hold.

        `trust_inserts`: an insert on the wire is one; False when updates carry no old values. `place`: the
        topic and partition that a number means; by default there is one topic. `learns_zone`: DDL headers
        tell the zone of TIMESTAMP texts, if `time_zone` is empty; else they must tell the same. `clock`: of
        topics that are read by offset. `selection`: what is applied, and under which names; None: everything.
        `schema_changes`: what is done when columns change.
        """
        self.target, self.stats = target, target.stats
        self._folder, self._sizes = folder, sizes or Sizes()
        self.selection, self._schema_changes = selection or Selection(), schema_changes
        self.zone, self._learns_zone, self._trust = time_zone, learns_zone, trust_inserts
        """Of TIMESTAMP texts; empty: nobody has told it."""
        self._clock, self._by_kind = clock, clock in (None, Clock.EXACT)
        self._bad = BadRows(folder / QUARANTINE, place)
        self._barriers: dict[Name, int] = {}
        self._numbers = 0
        """Of the files of parts."""
        self._counting = threading.Lock()

    def rows(self, pieces: Mapping[Name, Sequence[Piece]], reached: Position) -> None:
        """Apply the net effect of each table's pieces; `reached`: what is in then.

        Where they do not fit into memory, tables with a key are settled in parts. A table without a key is
        settled whole, however large: equal rows can be counted only together.
        """
        pieces = self.selection.pieces(pieces, self.target.definitions.keys())
        sizes = self._sizes_of(pieces)
        parts = self._parts(pieces, sizes)
        small = [partial(self._settle, name, part) for name, part in pieces.items() if name not in parts]
        with ExitStack() as files:
            parted = []
            for name, count in parts.items():
                parted.append(self._parted(name, pieces.get(name, ()), count, sizes.get(name, 0)))
                files.callback(parted[-1].close)
            cut = tuple((*name, count) for name, count in parts.items())
            reached = replace(reached, parts=cut, sources=self.sources)
            self.target.write(small, reached, parted)

    def _sizes_of(self, pieces: Mapping[Name, Sequence[Piece]]) -> dict[Name, int]:
        """By table, the bytes of its staged rows; of a step that is small for certain, none."""
        begun = self.target.begun
        most = sum(piece.segment.length for part in pieces.values() for piece in part)
        if most <= self._sizes.step and not (begun is not None and begun.parts):
            return {}
        return {name: sum(map(staged_bytes, part)) for name, part in sorted(pieces.items())}

    def _parts(self, pieces: Mapping[Name, Sequence[Piece]], sizes: Mapping[Name, int]) -> dict[Name, int]:
        """By table, into how many parts its rows are cut: as in the write that was interrupted, if any."""
        if (begun := self.target.begun) is not None:
            return {(schema, table): count for schema, table, count in begun.parts}
        if sum(sizes.values()) <= self._sizes.step:
            return {}
        return {
            name: min(1 + size // self._sizes.part, PARTS_MAX)
            for name, size in sizes.items()
            if self._has_key(name, pieces[name])
        }

    def _has_key(self, name: Name, pieces: Sequence[Piece]) -> bool:
        known = self.target.definition(name)
        columns = (column for piece in pieces for column in piece.segment.columns)
        return bool(known.keys) if known is not None else any(column.key for column in columns)

    def _parted(self, name: Name, pieces: Sequence[Piece], count: int, size: int) -> PartedTable:
        pieces = sorted(pieces, key=lambda piece: piece.segment.first_offset)
        # With the staged rows: what a killed process leaves there is removed.
        folder = Path(pieces[0].segment.file).parent if pieces else self._folder
        self._numbers += 1
        file = folder / f"parts-{self._numbers}.arrow"
        read = partial(self._pieces, name, pieces)
        return PartedTable(name, count, size, read, file, self._trust, self._by_kind)

    def _pieces(self, name: Name, pieces: Sequence[Piece]) -> Iterator[tuple[Definition, Changes]]:
        """The changes of one table, piece by piece."""
        held = [piece for piece in pieces if staged_bytes(piece)]
        if self._clock is not None:
            held = [piece for piece in held if self._fresh(name, staged_rows([piece]))]
        if not held:
            return
        known = self._definition_for(name, [piece.segment for piece in held])
        aside, zone = partial(self._set_aside, name), self._zone_for(known)
        for piece in held:
            staged = self._fresh(name, staged_rows([piece]))
            changes = staged_changes(staged, known, zone, self.target.values, aside)
            with self._counting:
                self.stats.rows += len(changes)
            yield known, changes

    def ddl(self, messages: Sequence[DdlMessage]) -> list[str]:
        """Execute the DDLs of one FinishedTS, in order; what was done, in words."""
        events = _in_order(messages)
        for _, message in events:
            self._learn_zone(message)
        done: list[str] = []
        for event, message in events:
            chosen = self.selection.ddl(event, message, self.target.definitions.keys())
            if chosen is None:
                continue
            if self.target.has_done(chosen.message):  # it cannot be planned: the tables are as it made them
                self._raise_barriers(chosen, self.target.definitions)
                continue
            if self._schema_changes is SchemaChanges.IGNORE and chosen.refusal is None:
                chosen = self._kept(chosen, message)
            steps = self._planned(chosen)
            _refuse_if_needed(message, steps)
            before = dict(self.target.definitions)
            self.target.intend(chosen.message, steps)
            for step in steps:
                self.target.execute(step)
                done.append(ddl_plan.in_words(step))
            self._raise_barriers(chosen, before)
            self.stats.ddls += 1
        return done

    def stops_at(self, messages: Sequence[DdlMessage]) -> Fatal | None:
        """The error that ends the consumer before these DDLs, if they change columns and must not."""
        if self._schema_changes is not SchemaChanges.STOP:
            return None
        selection, held = self.selection.apart(), self.target.definitions.keys()
        for event, message in _in_order(messages):
            chosen = selection.ddl(event, message, held)
            if chosen is None or chosen.refusal is not None or self.target.has_done(chosen.message):
                continue
            if chosen.event is not None:
                if words := schema_changes.changed_columns(chosen.event):
                    return schema_changes.stopped(message, words)
            elif schema_changes.changed_in_text(chosen.message):
                return schema_changes.stopped(message, ())
        return None

    def _kept(self, chosen: Chosen, message: DdlMessage) -> Chosen:
        """The DDL as if the target's columns did not change. Fatal where they cannot stay."""
        event, by_sql = chosen.event, self.target.replays_sql
        if event is None or (by_sql and self._found(event)):
            changes = schema_changes.changed_columns(event) if event is not None else ()
            if changes or (event is None and schema_changes.changed_in_text(chosen.message)):
                raise schema_changes.untold(message)
            return chosen
        held = ddl_plan.held_before(event, self.target.definitions)
        kept = schema_changes.kept(event, message, held, typed=by_sql)
        if words := schema_changes.changed_columns(event):
            self.stats.ignored.append(f"table {message.schema}.{message.table}: {'; '.join(words)}")
        return replace(chosen, event=kept)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where the tables at the target come from, for the position."""
        return self.selection.sources

    def _planned(self, chosen: Chosen) -> list[Step]:
        event, message = chosen.event, chosen.message
        if chosen.refusal is not None:
            raise chosen.refusal
        if chosen.drops is not None:
            return [Drop(*name) for name in chosen.drops] or [Nothing("the schema has no tables here")]
        held = self.target.definitions.values()
        if self.target.replays_sql and (event is None or self._found(event)):
            if chosen.sql_refusal is not None:
                raise chosen.sql_refusal
            zone = (event.time_zone if event is not None else "") or self._zone_of_sql(message)
            stated = [replace(message, query=query) for query in chosen.queries]
            return [step for one in stated for step in ddl_plan.plan_replay(one, zone)]
        if event is not None:
            return ddl_plan.plan(event, held, self.target.dropped())
        return ddl_plan.plan_without_header(message, held)

    def _learn_zone(self, message: DdlMessage) -> None:
        """Take the zone of TIMESTAMP texts from a DDL's header; Fatal when it is another than was known."""
        stated = ddl_header.timestamp_zone(message.header) if message.header is not None else ""
        if not self._learns_zone or stated in ("", self.zone):
            return
        if self.zone:
            raise Fatal(
                "the topic's TIMESTAMPs are read in the wrong time zone",
                where=f"{message.schema}.{message.table} at ts {message.ts}",
                why=f"the changefeed writes them in {stated}, and this consumer reads them in {self.zone}",
                fix="start a new target without --time-zone, or set the changefeed's time zone back",
            )
        self.zone = stated

    def _zone_for(self, known: Definition) -> str:
        """The zone for a table's rows; Fatal when it needs one and nobody has told it."""
        if not self.zone:
            needs = [column.name for column in known.columns if column.mysql_type == TIMESTAMP]
            if needs:
                raise _no_zone(f"table {known.name}, column {needs[0]}")
        return self.zone or "UTC"

    def _zone_of_sql(self, message: DdlMessage) -> str:
        if not self.zone and "timestamp" in message.query.lower():
            raise _no_zone(f"{message.query[:200]} at ts {message.ts}")
        return self.zone or "UTC"

    def _found(self, event: DdlEvent) -> bool:
        """Whether the table is known by what the target says of it: no TableInfo tells how it looks there."""
        held = self.target.definition((event.old_schema, event.old_table))
        return held is not None and held.info is None

    def commit(self, position: Position) -> Position:
        """Name the snapshot at position.ts; the position as it is kept."""
        position = self.target.commit(position)
        self.stats.snapshots += 1
        return position

    def _settle(self, name: Name, pieces: Sequence[Piece]) -> TableChanges | None:
        staged = self._fresh(name, staged_rows(pieces))
        if not staged:
            return None
        known = self._definition_for(name, [one.segment for one in staged])
        aside = partial(self._set_aside, name)
        changes = staged_changes(staged, known, self._zone_for(known), self.target.values, aside)
        if len(changes) == 0:
            return None
        with self._counting:
            self.stats.rows += len(changes)
        # A row that the topic inserts may be at an adopted table already, and its delete may yet come.
        trust = self._trust and not known.uniques
        if not known.keys:
            return TableChanges(known, net_bag(changes))
        kept = bool(known.soft_delete)
        return TableChanges(known, net_effect(changes, known.keys, trust, self._by_kind, kept))

    def _fresh(self, name: Name, staged: list[Staged]) -> list[Staged]:
        """By offset: the rows that were not sent again behind a DDL. The table may be gone, or another."""
        if self._clock is None:
            return staged
        known = self.target.definition(name)
        version = known.version if known is not None else 0
        return without_repeats(staged, max(version, self._barriers.get(name, 0)), self._clock)

    @property
    def barriers(self) -> tuple[tuple[str, str, int], ...]:
        """For the position: the ts of the last DDL about each table, of the newest `MAX_BARRIERS`."""
        return tuple((*name, ts) for name, ts in self._barriers.items())

    def know_barriers(self, kept: Sequence[tuple[str, str, int]]) -> None:
        """Go on from a position."""
        self._barriers = {(schema, table): ts for schema, table, ts in kept}

    def _raise_barriers(self, chosen: Chosen, before: Mapping[Name, Definition]) -> None:
        """A DDL is executed: rows up to its ts of the tables that it is about were before it."""
        if self._clock is None:
            return
        now, message = self.target.definitions, chosen.message
        about = {name for name in before.keys() | now.keys() if before.get(name) is not now.get(name)}
        about |= {(message.schema, message.table)} if message.table else set()
        if (event := chosen.event) is not None and event.table:
            about |= {(event.old_schema, event.old_table)}
        for name in sorted(about):
            self._barriers.pop(name, None)
            self._barriers[name] = message.ts
        while len(self._barriers) > MAX_BARRIERS:
            del self._barriers[next(iter(self._barriers))]

    def _set_aside(self, name: Name, rows: Sequence[BadRow]) -> None:
        fresh = self._bad.add(name, rows)
        with self._counting:
            self.stats.bad_rows += fresh

    def _definition_for(self, name: Name, segments: Sequence[Segment]) -> Definition:
        """The table these rows belong to; made or changed by guess when no DDL header told of it."""
        for segment in segments:
            known = self.target.definition(name)
            if known is None or (self.target.replays_sql and _other_key(known, segment)):
                guessed = definition.guess(*name, segment.columns, segment.min_ts)
                soft = self.selection.soft_delete(name)
                self.target.execute(ddl_plan.Create(replace(guessed, soft_delete=soft)))
            elif known.info is not None or self.target.replays_sql:
                _check_columns(known, segment)
            elif (grown := self._grown(known, segment)) is not None:
                self.target.execute(ddl_plan.regrown(known, grown))
        known = self.target.definition(name)
        assert known is not None
        return known

    def _grown(self, known: Definition, segment: Segment) -> Definition | None:
        # By offset, `min_ts` is none: the ts of the table's last DDL stays.
        version = segment.min_ts if self._clock is None else known.version
        return definition.grown(known, segment.columns, version)


def _in_order(messages: Sequence[DdlMessage]) -> list[tuple[DdlEvent | None, DdlMessage]]:
    """DDLs of one ts with what their headers say, in the order of their job."""
    events = [(ddl_header.decode(m.header), m) if m.header is not None else (None, m) for m in messages]
    return sorted(events, key=lambda pair: pair[0].seq if pair[0] is not None else 0)


def _no_zone(where: str) -> Fatal:
    return Fatal(
        "the time zone of the topic's TIMESTAMPs is not known",
        where=where,
        why="they are texts in the changefeed's zone, which neither messages nor DDL headers name",
        fix="restart the consumer with --time-zone and the changefeed's zone; TiCDC's default is that of "
        "its server",
    )


def _check_columns(known: Definition, segment: Segment) -> None:
    """Fatal when rows have a column that the DDLs do not tell of."""
    other = {*known.generated, *known.ignored}
    unknown = [c.name for c in segment.columns if known.column(c.name) is None and c.name not in other]
    if unknown:
        if known.info is None:
            raise Fatal(
                "rows carry a column that the table at the target does not have",
                where=f"table {known.name}, column {', '.join(unknown)}",
                why="somebody has changed the table, or a DDL message is missing on the topic",
                fix="give the table the column that the source has, and start again",
            )
        raise Fatal(
            "rows carry a column that the table does not have",
            where=f"table {known.name}, column {', '.join(unknown)}",
            why="a DDL message is missing on the topic, or was written without its header",
            fix="start a new target from a new changefeed, and report this",
        )


def _other_key(known: Definition, segment: Segment) -> bool:
    """Whether the topic tells rows apart by other columns than a key that was read from the target."""
    key = {column.name for column in segment.columns if column.key}
    return known.info is None and bool(key) and key != set(known.keys)


def _refuse_if_needed(message: DdlMessage, steps: Sequence[ddl_plan.Step]) -> None:
    """Fatal when a step is refused: nothing of the DDL has been done then."""
    for step in steps:
        if isinstance(step, ddl_plan.Refuse):
            name = f"{message.schema}.{message.table}".strip(".")
            raise Fatal(
                "a DDL cannot be replayed at the target",
                where=f"{name} at ts {message.ts}: {message.query[:200]}",
                why=step.why,
                fix=REPEAT,
            )

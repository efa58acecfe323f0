"""Turns what the flow releases into calls of a target: rows table by table, DDLs as steps.

The user's rules come first: `selection` leaves tables out or renames them. Every target then follows the same
rules. A table looks as its definition says (`definition`). Columns in rows that no DDL announced are added to
a guessed definition. `ddl_planner` turns a DDL into steps. How steps and changes become durable, and what a
restart finds, is up to the target (`target`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.bad_rows import BadRows
from tidegate.consumer.applying.change_rows import logged
from tidegate.consumer.applying.changes import (
    BadRow,
    Staged,
    staged_bytes,
    staged_changes,
    staged_rows,
)
from tidegate.consumer.applying.ddl_floors import DdlFloors
from tidegate.consumer.applying.ddl_planner import DdlPlanner, in_order
from tidegate.consumer.applying.net_effect import Changes, net_bag, net_effect
from tidegate.consumer.applying.parted import PARTS_MAX, PartedTable
from tidegate.consumer.applying.partition_checks import check_steps
from tidegate.consumer.applying.row_runs import runs_of
from tidegate.consumer.applying.set_aside import SetAsideTables, may_name_others, touched
from tidegate.consumer.applying.target import Name, TableChanges, Target
from tidegate.consumer.ddl import ddl_steps, ddl_text_plan
from tidegate.consumer.ddl.ddl_steps import Step
from tidegate.consumer.ddl.schema_changes import SchemaChanges
from tidegate.consumer.engine.assembler import STEP_BYTES, StagedPiece, StagedRun
from tidegate.consumer.engine.position import Position, Source
from tidegate.consumer.engine.row_clock import Clock
from tidegate.consumer.selecting.selection import Selection
from tidegate.consumer.table import definition, partition_spec
from tidegate.consumer.table.definition import Definition
from tidegate.consumer.table.timestamp_zone import TimestampZone
from tidegate.errors import Fatal

QUARANTINE: Final = "quarantine.jsonl"
"""File name, in the consumer's folder."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many bytes of staged rows may be in memory at once; their net effects take several times that."""

    step: int = 2 * STEP_BYTES
    """Bytes up to which a step is applied as a whole, without cutting tables into parts."""
    part: int = 8 << 20
    """Bytes of one part of a table, when a larger step is applied in parts."""


def only_topic(number: int) -> tuple[str, int]:
    """The default of `place`, for a consumer of one topic, which needs no name."""
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
        sets_aside: bool = False,
    ) -> None:
        """`folder`: receives the file of rows that the target's tables cannot hold (quarantine).

        `trust_inserts`: an insert on the topic is always a new row; False when updates carry no old values,
        because they then look like inserts. `place`: maps a partition's number to topic and partition.
        `learns_zone`: see `TimestampZone`. `clock`: given only for topics that are read by offset.
        `selection`: which tables are applied, and under which names; None: all, unchanged. `schema_changes`:
        the policy when a DDL changes columns. `sets_aside`: a change that cannot be applied raises
        `TableFailed`, so that the caller can set the table aside.
        """
        self.target, self.stats = target, target.stats
        self._folder, self._sizes = folder, sizes or Sizes()
        self.selection = selection or Selection()
        self.zone, self._trust = TimestampZone(time_zone, learns=learns_zone), trust_inserts
        self._clock, self._by_kind = clock, clock in (None, Clock.EXACT)
        self._bad = BadRows(folder / QUARANTINE, place)
        self.ddl_floors = DdlFloors(clock)
        self.set_aside = SetAsideTables(allowed=sets_aside)
        self.ddl_planner = DdlPlanner(target, self.selection, self.set_aside, self.zone, schema_changes)
        self._numbers = 0
        """How many files of parts were opened; makes their names distinct."""
        self._counting = threading.Lock()

    def rows(self, pieces: Mapping[Name, Sequence[StagedPiece]], reached: Position) -> None:
        """Apply the net effect of each table's pieces; `reached` is the position once they are applied.

        If they do not fit into memory, the tables are applied in parts.
        """
        # First, because everything below uses the names at the target.
        held, aside = self.target.definitions.keys(), self.set_aside.has
        pieces = self.set_aside.without(self.selection.pieces(pieces, held, aside))
        sizes = self._sizes_of(pieces)
        parts = self._parts(pieces, sizes)
        # Not computed here: the target calls them in its own threads, which also bounds how many tables are
        # in memory at once.
        small = [
            partial(self._staged_changes, name, part) for name, part in pieces.items() if name not in parts
        ]
        with ExitStack() as files:
            parted = []
            for name, count in parts.items():
                parted.append(self._parted(name, pieces.get(name, ()), count, sizes.get(name, 0)))
                # Also if the target fails: a file of parts may be as large as the step.
                files.callback(parted[-1].close)
            cut = tuple((*name, count) for name, count in parts.items())
            # A target that writes in parts stores these numbers before its first row, so that a restart cuts
            # the tables in the same way.
            reached = replace(reached, parts=cut, sources=self.sources)
            self.target.write(small, reached, parted)

    def _sizes_of(self, pieces: Mapping[Name, Sequence[StagedPiece]]) -> dict[Name, int]:
        """The bytes of staged rows by table; empty if the step is certainly small enough to apply whole."""
        begun = self.target.begun
        most = sum(piece.segment.length for part in pieces.values() for piece in part)
        # `most` counts whole segments, so it is an upper bound that needs no file to be read.
        if most <= self._sizes.step and not (begun is not None and begun.parts):
            return {}
        return {name: sum(map(staged_bytes, part)) for name, part in sorted(pieces.items())}

    def _parts(
        self, pieces: Mapping[Name, Sequence[StagedPiece]], sizes: Mapping[Name, int]
    ) -> dict[Name, int]:
        """How many parts each large table is cut into.

        If a write was interrupted, its numbers are repeated: only then do the parts that it finished hold
        the same rows as those of this run.
        """
        if (begun := self.target.begun) is not None:
            return {(schema, table): count for schema, table, count in begun.parts}
        if sum(sizes.values()) <= self._sizes.step:
            return {}
        return {name: min(1 + size // self._sizes.part, PARTS_MAX) for name, size in sizes.items()}

    def _parted(self, name: Name, pieces: Sequence[StagedPiece], count: int, size: int) -> PartedTable:
        pieces = sorted(pieces, key=lambda piece: piece.segment.first_offset)
        # The folder of staged rows is emptied at every start, so a killed process leaves no file behind.
        folder = Path(pieces[0].segment.file).parent if pieces else self._folder
        self._numbers += 1
        file = folder / f"parts-{self._numbers}.arrow"
        read = partial(self._pieces, name, pieces)
        every = self.target.every_change
        return PartedTable(name, count, size, read, file, self._trust, self._by_kind, every_change=every)

    def _pieces(self, name: Name, pieces: Sequence[StagedPiece]) -> Iterator[tuple[Definition, Changes]]:
        """The changes of one table, piece by piece."""
        held = [piece for piece in pieces if staged_bytes(piece)]
        # Before the definition is looked up: rows from before a DDL that has run must neither create a table
        # nor add columns to one.
        if self._clock is not None:
            held = [piece for piece in held if self._fresh_rows(name, piece)]
        if not held:
            return
        known = self._definition_for(name, [piece.segment for piece in held])
        zone = self.zone.of_table(known)
        fresh = partial(self._fresh_rows, name)
        runs = None if known.keys else runs_of(held, fresh)
        for piece in held:
            changes = self._changes(name, fresh(piece), known, zone)
            if runs is not None:
                changes = replace(changes, run=runs.of(changes))
            # Targets compute tables in several threads.
            with self._counting:
                self.stats.rows += len(changes)
            yield known, changes

    def ddl(self, messages: Sequence[DdlMessage]) -> list[str]:
        """Execute the DDLs of one FinishedTS in order. Returns a description of each step."""
        # All zones before the first step: a later DDL of the same ts may be the only one that names the
        # zone.
        events = in_order(messages)
        for _, message in events:
            self.zone.learn(message)
        done: list[str] = []
        for event, message in events:
            # The selection is asked about every DDL, also one that the target has executed, because it
            # follows tables through their renames.
            chosen = self.selection.ddl(event, message, self.target.definitions.keys())
            if chosen is None:
                continue
            # A DDL that the target has executed cannot be planned again: its tables already look that way.
            if self.target.has_done(chosen.message):
                # The floor is stored with the position, which has not passed this DDL, so a restart must
                # raise it again.
                self.ddl_floors.executed(chosen, self.target.definitions, self.target.definitions)
                continue
            by_sql = self.target.replays_sql
            chosen = self.set_aside.left(chosen, self.target.definitions.keys(), by_text=by_sql)
            if chosen is None:
                continue
            names = touched(chosen, by_text=by_sql)
            if may_name_others(chosen) or (chosen.refusal is not None and self.selection.is_routed):
                # Some of its tables, or their names at the target, are not known. A table that is not noted
                # would be wrong without a trace, so the consumer stops.
                names = ()
            # A copy: the steps change the target's own definitions.
            before = dict(self.target.definitions)
            with self.set_aside.blaming(names, chosen.message):
                chosen = self.ddl_planner.under_policy(chosen, message)
                # Before `intend`: a DDL that is refused must leave no trace at the target.
                steps = self.ddl_planner.steps(chosen, message)
                self._check_specs(steps, before, f"ts {message.ts}: {message.query[:200]}")
            # Files fail only as a whole here; a database may refuse a statement about one table.
            with self.set_aside.blaming(names if by_sql else (), chosen.message):
                self.target.intend(chosen.message, steps)
                for step in steps:
                    self.target.execute(step)
                    done.append(ddl_steps.in_words(step))
            self.ddl_floors.executed(chosen, before, self.target.definitions)
            self.stats.ddls += 1
        return done

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where the tables at the target come from, for the position."""
        return self.selection.sources

    def commit(self, position: Position) -> Position:
        """Name the snapshot at position.ts. Returns the position as the target has stored it."""
        position = self.target.commit(position)
        self.stats.snapshots += 1
        return position

    def _staged_changes(self, name: Name, pieces: Sequence[StagedPiece]) -> TableChanges | None:
        staged = self._fresh(name, staged_rows(pieces))
        if not staged:
            return None
        known = self._definition_for(name, [one.segment for one in staged])
        changes = self._changes(name, staged, known, self.zone.of_table(known))
        if len(changes) == 0:
            return None
        with self._counting:
            self.stats.rows += len(changes)
        if self.target.every_change:
            return TableChanges(known, logged(changes, known.keys, knows_old=self._trust))
        # An adopted table may already hold a row that the topic inserts, or one whose delete is still to
        # come, so an insert there need not be a new row.
        trust = self._trust and not known.uniques
        if not known.keys:
            return TableChanges(known, net_bag(changes))
        kept = bool(known.soft_delete)
        return TableChanges(known, net_effect(changes, known.keys, trust, self._by_kind, kept))

    def _changes(self, name: Name, staged: Sequence[Staged], known: Definition, zone: str) -> Changes:
        aside, whole = partial(self._quarantine, name), self.target.every_change
        # The zone is not in it, because a zone that is missing is missing for all tables.
        with self.set_aside.blaming([name]):
            return staged_changes(staged, known, zone, self.target.values, aside, whole_old=whole)

    def _fresh(self, name: Name, staged: list[Staged]) -> list[Staged]:
        return self.ddl_floors.fresh(name, self.target.definition(name), staged)

    def _fresh_rows(self, name: Name, piece: StagedPiece) -> list[Staged]:
        return self._fresh(name, staged_rows([piece]))

    def _quarantine(self, name: Name, rows: Sequence[BadRow]) -> None:
        fresh = self._bad.add(name, rows)
        with self._counting:
            self.stats.bad_rows += fresh

    def _definition_for(self, name: Name, segments: Sequence[StagedRun]) -> Definition:
        """The definition of the table for these rows; guessed, or extended, if no DDL header announced it."""
        # The definition is looked up for each segment, because the step for an earlier one may have changed
        # it.
        for segment in segments:
            known = self.target.definition(name)
            if known is None or (self.target.replays_sql and _other_key(known, segment)):
                guessed = definition.guess(*name, segment.columns, segment.min_ts)
                self._execute_for_rows(name, ddl_steps.Create(self._as_ruled(guessed)))
            elif known.info is not None or self.target.replays_sql:
                with self.set_aside.blaming([name]):
                    _check_columns(known, segment)
            elif (grown := self._grown(known, segment)) is not None:
                self._execute_for_rows(name, ddl_text_plan.regrown(known, grown))
        known = self.target.definition(name)
        assert known is not None
        return known

    def _as_ruled(self, guessed: Definition) -> Definition:
        """A guessed definition with what the rules say of its table."""
        name = guessed.schema, guessed.table
        spec = self.selection.partition_spec(name)
        spec = partition_spec.resolved(spec, guessed.arrow_schema.names)
        return replace(guessed, soft_delete=self.selection.soft_delete(name), partition_by=spec)

    def _execute_for_rows(self, name: Name, step: Step) -> None:
        """Execute a step that rows have shown to be needed."""
        with self.set_aside.blaming([name]):
            self._check_specs([step], {}, "rows of the topic, which no DDL describes")
        with self.set_aside.blaming([name] if self.target.replays_sql else []):
            self.target.execute(step)

    def _check_specs(self, steps: Sequence[Step], held: Mapping[Name, Definition], where: str) -> None:
        check_steps(steps, self.selection.partition_spec, held, where)

    def _grown(self, known: Definition, segment: StagedRun) -> Definition | None:
        # By offset, `min_ts` is an offset and no ts, so the version stays that of the table's last DDL.
        version = segment.min_ts if self._clock is None else known.version
        with self.set_aside.blaming([(known.schema, known.table)]):
            return definition.grown(known, segment.columns, version)


def _check_columns(known: Definition, segment: StagedRun) -> None:
    """Fatal when rows have a column that no DDL has announced, or lack one of the key."""
    definition.check_keys(known, {column.name for column in segment.columns})
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


def _other_key(known: Definition, segment: StagedRun) -> bool:
    """Whether the topic identifies rows by other columns than the key that was read from the target."""
    key = {column.name for column in segment.columns if column.key}
    return known.info is None and bool(key) and key != set(known.keys)

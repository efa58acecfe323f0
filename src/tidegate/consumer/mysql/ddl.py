"""Executes DDL at the target, each statement once.

A DDL statement is not part of a transaction: after a crash it is not known whether it took effect. So its
number and its evidence are stored before each statement. If a restart finds that a statement was begun, it
looks for the evidence at the target. Definitions change when a DDL's last statement has run, in one
transaction with the note that the DDL is over.

| statement | evidence that it has run |
|---|---|
| CREATE TABLE | the table exists; before, it was checked that it did not |
| ALTER TABLE | its columns and indexes are those of an empty copy of it after the same statement |
| filling a column with converted values (`recast`) | none needed: the old column is still there |
| EXCHANGE PARTITION where tables have partitions | InnoDB's ids of partition and table (`exchange`) |
| EXCHANGE PARTITION where tables have none | the note itself, in one transaction with the rows |
| RENAME TABLE | the new name exists and the old one does not |
| CREATE DATABASE IF NOT EXISTS, DROP TABLE IF EXISTS, TRUNCATE | none needed: a second run changes nothing |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from tidegate.codec.base import DdlMessage
from tidegate.consumer.applying.target import Name, TargetFailed
from tidegate.consumer.ddl import ddl_steps
from tidegate.consumer.ddl.ddl_plan import misplaced
from tidegate.consumer.ddl.sql_replay import CreateTable as MakesTable
from tidegate.consumer.ddl.sql_replay import Ignored, Unknown, read, tables
from tidegate.consumer.engine.ddl_queue import identity
from tidegate.consumer.mysql import exchange
from tidegate.consumer.mysql.ddl_note import progress_text
from tidegate.consumer.mysql.described import difference
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.found import check_columns
from tidegate.consumer.mysql.progress import Progress
from tidegate.consumer.mysql.prune import prune
from tidegate.consumer.mysql.recast import recast
from tidegate.consumer.mysql.rendered_steps import refused, statements
from tidegate.consumer.mysql.replay import COPY, Tables, after_skipped, missing, replayed, session
from tidegate.consumer.mysql.session import SCHEMA, USUAL
from tidegate.consumer.mysql.statements import (
    MAKES_SCHEMA,
    AlterTable,
    CreateTable,
    DeleteRows,
    ExchangePartition,
    Recast,
    RenameTable,
    Repeatable,
    Statement,
    SwapRows,
    text_of,
)
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal


@dataclass(frozen=True, slots=True)
class _Planned:
    """One step: its statements, the number of the first one, and all definitions after it."""

    first: int
    statements: list[Statement]
    known: dict[Name, Definition]
    read: dict[Name, bool] = field(default_factory=dict)
    """Tables whose definition must be read from the server afterwards: see `replay.Rendered`."""
    session: str = ""
    """The statement that sets up the session, if it must differ from the usual one."""


class DdlRun:
    """The DDLs between two positions: which are done, and how far the unfinished one is."""

    def __init__(
        self,
        progress: Progress,
        definitions: dict[Name, Definition],
        noted: str | None,
        *,
        adopting: bool = False,
        skipped: Set[int] = frozenset(),
    ) -> None:
        """`noted`: the note that `Progress` stored. `definitions` is updated after each step.

        `adopting`: existing tables become this consumer's. `skipped`: the ts of DDLs that a person has
        executed in another form.
        """
        self._progress, self._hold, self._definitions = progress, progress.hold, definitions
        self._tables, self._skipped = Tables(progress, adopting=adopting), skipped
        self._done: list[str] = []
        self._begun: dict[str, Any] | None = None
        self.resume(noted)
        self._now = self._query = ""
        self._version = 0
        self.attempted = ""
        """The identity of the DDL of which this process has begun a statement last. A statement that only an
        earlier process began may have taken effect."""
        self._before: dict[Name, Definition] = {}
        self._planned: list[_Planned] = []
        self._step = 0
        self._misplaced: set[Name] = set()
        """Tables to which the DDL brings rows that their values place in another partition."""

    def resume(self, noted: str | None) -> None:
        """Load what the target now stores about the DDLs since its position; a lost step is then repeated."""
        held: dict[str, Any] = orjson.loads(noted) if noted else {}
        self._done, self._begun = held.get("done", []), held.get("begun")

    def has_done(self, message: DdlMessage) -> bool:
        """Whether all its statements have run and only the position has not moved past it.

        This also holds for a DDL that cannot be run here, if the user declares it as done (`--skip-ddl`).
        """
        by_hand = message.ts in self._skipped and message.header is None
        if by_hand and isinstance(read(message.query, message.schema), Unknown):
            return True
        return identity(message) in self._done

    def intend(self, message: DdlMessage, steps: Sequence[ddl_steps.Step]) -> None:
        """See `Target.intend`. Renders all statements now, so that a refusal comes before any of them."""
        name = identity(message)
        if self._begun is not None and self._begun["name"] != name:
            raise Fatal(
                "the next DDL is not the one that was begun",
                where=f"{message.schema}.{message.table} at ts {message.ts}",
                why=f"begun: {self._begun['query'][:200]}",
                fix="start a new target, and report this",
            )
        # `known` is a copy: a refusal while statements are rendered leaves the definitions as they are.
        self._before, known, number = dict(self._definitions), dict(self._definitions), 0
        self._planned, self._step, self._misplaced = [], 0, set()
        with _naming(message.ts, message.query):
            for step in steps:
                planned = self._plan(step, known, number, message)
                self._planned.append(planned)
                number += len(planned.statements)
        if self._begun is not None and message.ts not in self._skipped:
            self._check_begun(self._begun, message)
        self._now, self._query, self._version = name, message.query, message.ts
        # Without steps `execute` is never called, so the DDL is noted as done here.
        if not steps and name not in self._done:
            self._over()

    def _check_begun(self, begun: Mapping[str, Any], message: DdlMessage) -> None:
        """Fatal when the statement that was begun is not one of the statements now planned.

        That happens if the DDL was planned under another `--schema-changes` before. Whether the begun
        statement took effect can only be seen by comparing the table with that statement's result.
        """
        coming = [one for planned in self._planned for one in planned.statements][begun["at"] :]
        first = coming[0] if coming else None
        other = isinstance(first, AlterTable) and begun.get("alters", first.text) != first.text
        if first is None or other:
            raise Fatal(
                "a DDL that was begun would run with other statements now",
                where=f"{message.schema}.{message.table} at ts {message.ts}: {message.query[:200]}",
                why="it began under another --schema-changes, and may have changed the table",
                fix="start with the earlier --schema-changes; change it after the DDL is done",
            )

    def _plan(
        self, step: ddl_steps.Step, known: dict[Name, Definition], number: int, message: DdlMessage
    ) -> _Planned:
        """Plan one step; `known` is changed to what it is after the step."""
        begun, skipped, was = self._begun is not None, message.ts in self._skipped, dict(known)
        if isinstance(step, ddl_steps.Replay):
            made = (
                after_skipped(step, known, self._tables)
                if skipped
                else replayed(step, known, self._tables, begun=begun)
            )
            return _Planned(number, made.statements, dict(known), made.read, session(step))
        if isinstance(step, ddl_steps.Create) and not begun:
            name = step.definition.schema, step.definition.table
            held = [one for one in _named(message, name) if one not in known and self._tables.there(one)]
            if name in held and not (skipped or self._tables.adopting):
                self._progress.definitions.check_owner(*name)
                raise _there_already(name)
            if held and self._tables.adopting and not (skipped or _only_makes(message)):
                raise _changed_before(held[0], message)
            if name in held:
                known[name] = self._tables.described(step.definition)
                return _Planned(number, [], dict(known))
        if isinstance(step, ddl_steps.Exchange):
            names = (step.schema, step.table), (step.other.schema, step.other.table)
            if not skipped:
                exchange.check_movable(*(known[name] for name in names))
            elif not step.validated:
                known[names[0]] = misplaced(known[names[0]])  # a person has moved the rows, unchecked
        # If a person has run the DDL, only `known` counts: what TiDB does not do must not refuse it again.
        rendered = statements(step, known, Dialect.MARIADB if skipped else self._hold.dialect)
        adopted = dict.fromkeys(_adopted(step, was), True)
        return _Planned(number, [] if skipped else rendered, dict(known), adopted)

    @property
    def intended(self) -> bool:
        """Whether a step of a DDL is expected; otherwise a step comes from rows without a DDL."""
        return self._step < len(self._planned)

    def asked(self, step: ddl_steps.Step) -> None:
        """Rows without a DDL need a table: an existing one is adopted for them.

        Fatal when there is none, or when it does not fit the rows.
        """
        if not isinstance(step, ddl_steps.Create):
            raise refused(ddl_steps.in_words(step), "no DDL on the topic made it")
        asked = step.definition
        name = asked.schema, asked.table
        if (held := self._definitions.get(name)) is not None:
            taken = self._tables.rekeyed(held, asked.keys)
        elif self._tables.there(name):
            taken = self._tables.adopt(name, asked.version, asked.keys)
        else:
            raise missing(name)
        check_columns(taken, asked)
        # While rows are applied no DDL is under way, so this note loses nothing.
        self._progress.record_ddl(progress_text(self._done, self._begun), {name: taken.to_json().decode()})
        self._definitions[name] = taken

    def execute(self) -> None:
        """Run the statements of the next step; after a lost connection and `resume`, of the same step."""
        step = self._planned[self._step]
        # A DDL that is done is still planned if the position has not moved past it. Its statements must not
        # run again.
        if self._now not in self._done:
            with _naming(self._version, self._query):
                for number, statement in enumerate(step.statements, step.first):
                    self._execute(number, statement, step.session)
        known = dict(step.known)
        for name, adopted in step.read.items():
            known[name] = self._read(name, known[name], adopted=adopted)
        known |= {name: misplaced(known[name]) for name in self._misplaced}
        self._definitions.clear()
        self._definitions.update(known)
        if step is self._planned[-1] and self._now not in self._done:
            self._over()
        # Last: an attempt that fails before it repeats the same step.
        self._step += 1

    def _read(self, name: Name, known: Definition, *, adopted: bool) -> Definition:
        seen = self._tables.read(name, self._version, adopted=adopted)
        return seen if known.info is None else replace(known, uniques=seen.uniques)

    def over(self, position: str) -> None:
        """Move the position past all executed DDLs."""
        self._progress.move(position, ddl_over=True)
        self._done, self._begun = [], None

    def _over(self) -> None:
        was, now = self._before, self._definitions
        made = {name: one.to_json().decode() for name, one in now.items() if was.get(name) is not one}
        done = [*self._done, self._now]
        self._progress.record_ddl(progress_text(done, None), made, [name for name in was if name not in now])
        self._done, self._begun = done, None

    def _execute(self, number: int, statement: Statement, session: str) -> None:
        begun, self._begun = self._begun, None
        if begun is not None and number > begun["at"]:
            begun = None  # of an earlier step, which is done
        # docs/guarantees.md#a-ddl-takes-effect-at-a-target-once:
        # A statement is noted before it runs. So those before the noted one have run.
        if begun is not None and number < begun["at"]:
            self._begun = begun
            return
        # The evidence from before the first attempt. If it were collected now, it might describe the table
        # after the ALTER.
        evidence = begun["evidence"] if begun is not None else self._evidence(statement, session)
        # Before the question whether it has run: a restart must store the same definition.
        if isinstance(statement, SwapRows) and exchange.MISPLACED in evidence:
            self._misplaced.add(statement.name)
        if begun is not None and self._has_run(statement, evidence):
            return
        note = {"name": self._now, "query": self._query[:2000], "at": number, "evidence": evidence}
        note |= {"alters": statement.text} if isinstance(statement, AlterTable) else {}
        note |= {"whole": True} if self._leaves_whole(number) else {}
        self._progress.record_ddl(progress_text(self._done, note))
        self.attempted = self._now
        # Directly before the statement: no transaction guards it, but the lock, or at TiDB the note above.
        # The lock is lost without an error if a proxy continues our session in another connection.
        self._hold.check_lock()
        if isinstance(statement, DeleteRows):
            prune(self._hold, statement.name, statement.members)
        elif isinstance(statement, Recast):
            recast(self._hold, statement.name, statement.old, statement.new, statement.change)
        elif isinstance(statement, SwapRows):
            # One transaction: the note says that the rows have moved if and only if they have.
            over = progress_text(self._done, note | {"evidence": [*evidence, exchange.MOVED]})
            with exchange.swapping(self._hold, statement) as moves:
                self._progress.record_ddl(over, moved=moves)
        else:
            self._run(text_of(statement), session)

    def _leaves_whole(self, number: int) -> bool:
        """Whether the DDL's tables are as before it if this statement, which is the next one, fails."""
        *earlier, next_one = [one for planned in self._planned for one in planned.statements][: number + 1]
        made = (isinstance(one, Repeatable) and one.text.startswith(MAKES_SCHEMA) for one in earlier)
        return all(made) and not isinstance(next_one, DeleteRows | Recast)

    def _run(self, text: str, session: str, shown_as: str = "") -> None:
        """Run one statement. `session` is given for SQL of the topic, which the server may not understand.

        `shown_as`: the statement that an error shows, if this one tries it with a copy of the table.
        """
        if session:
            self._hold.run_ddl(session)
        try:
            self._hold.run_ddl(text)
        except Fatal as error:
            raise (TargetFailed if isinstance(error, TargetFailed) else Fatal)(
                "the target refuses a DDL of the topic",
                where=f"ts {self._version}: {self._query[:1000]}; at the target: {(shown_as or text)[:1000]}",
                why=error.why,
                fix="run it at the target in words that it knows, and start again with --skip-ddl "
                f"{self._version}; or leave the table out with a [filter] rule of a new changefeed",
            ) from error
        # Not needed after an error: a Fatal ends the run, and a lost connection takes its settings with it.
        if session:
            self._hold.run_ddl(USUAL)

    def _evidence(self, statement: Statement, session: str) -> list[str]:
        match statement:
            case CreateTable(name, _) if self._look(name) is not None:
                raise _there_already(name)
            case AlterTable(name, text):
                return [self._look(name) or "", self._foreseen(name, text, session)]
            case ExchangePartition():
                return exchange.table_ids(self._hold, statement)
            case SwapRows():
                return exchange.found_before(self._hold, statement)
            case _:
                return []

    def _has_run(self, statement: Statement, evidence: Sequence[str]) -> bool:
        """Whether the begun statement took effect; Fatal when the table is neither as before nor as after."""
        match statement:
            case Repeatable(_) | DeleteRows() | Recast():
                return False
            case CreateTable(name, _):
                return self._look(name) is not None
            case RenameTable(old, new):
                return self._look(old) is None and self._look(new) is not None
            case ExchangePartition():
                return exchange.has_run(self._hold, statement, evidence, self._version)
            case SwapRows():
                exchange.clear(self._hold)
                return exchange.MOVED in evidence
            case AlterTable(name, text):
                found = self._look(name)
                if found not in evidence:
                    raise Fatal(
                        "a table is neither as it was nor as a DDL was to make it",
                        where=".".join(name),
                        why=f"ALTER TABLE ... {text[:300]} was begun, and {difference(found, evidence[1])}",
                        fix="make it as it was before, or as the DDL would, and start again",
                    )
                # If the ALTER changes nothing, both are the same and it runs again, which does no harm.
                return found != evidence[0]

    def _foreseen(self, name: Name, text: str, session: str) -> str:
        """The description of the table after the ALTER: alters and describes an empty copy of it."""
        scratch = (SCHEMA, self._hold.scratch)
        place = qualified(*scratch)
        # A process that died between these statements has left its copy.
        self._hold.run_ddl(f"DROP TABLE IF EXISTS {place}")
        self._hold.run_ddl(f"CREATE TABLE {place} LIKE {qualified(*name)}")
        self._run(f"ALTER TABLE {place} {text}", session, text_of(AlterTable(name, text)))
        found = self._look(scratch)
        self._hold.run_ddl(f"DROP TABLE IF EXISTS {place}")
        return found or ""

    def _look(self, name: Name) -> str | None:
        return self._hold.look(*name)


@contextmanager
def _naming(ts: int, query: str) -> Iterator[None]:
    """Add a DDL to errors that do not name it: their advice may be `--skip-ddl`, which takes its ts."""
    try:
        yield
    except Fatal as error:
        if type(error) is not Fatal or f"ts {ts}" in error.where:
            raise
        where = f"{error.where}; ts {ts}: {query[:1000]}"
        raise Fatal(error.what, where=where, why=error.why, fix=error.fix) from error


def _there_already(name: Name) -> Fatal:
    return Fatal(
        "a table that is to be made is there already",
        where=".".join(name),
        why="it is none of this consumer's: it existed before, or another program has made it since",
        fix=COPY,
    )


def _named(message: DdlMessage, name: Name) -> list[Name]:
    """The tables that a DDL names; for a rename, also the old name."""
    found = read(message.query, message.schema)
    others = [] if isinstance(found, Ignored | Unknown) else tables(found)
    return list(dict.fromkeys([name, *others]))


def _changed_before(name: Name, message: DdlMessage) -> Fatal:
    return Fatal(
        "a table cannot be adopted by a DDL that changes it",
        where=f"{'.'.join(name)} at ts {message.ts}: {message.query[:200]}",
        why="it is the topic's first message about the table, and how the table was before is not known",
        fix="run the DDL at the target, unless the copy has it already, and start again with "
        f"--skip-ddl {message.ts}",
    )


def _only_makes(message: DdlMessage) -> bool:
    """Whether a DDL creates a table that did not exist before in any form, or only describes a table."""
    return not message.query or isinstance(read(message.query, message.schema), MakesTable)


def _adopted(step: ddl_steps.Step, known: dict[Name, Definition]) -> list[Name]:
    """The names of adopted tables after a step with a TableInfo: their indexes must be read again."""
    match step:
        case ddl_steps.Rename(schema, table, made):
            old = known.get((schema, table))
        case ddl_steps.Rewrite(made, _, _) | ddl_steps.Redefine(made, _):
            old = known.get((made.schema, made.table))
        case _:
            return []
    return [(made.schema, made.table)] if old is not None and old.uniques else []

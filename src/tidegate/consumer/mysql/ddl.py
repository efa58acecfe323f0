"""DDL at the target, each statement once.

A statement of DDL has no transaction: after a crash nobody says whether it took effect. So before each one
its number and its evidence are stored; where a restart finds one begun, the target itself is asked.
Definitions change when a DDL's last statement has run, in one transaction with the note that it is over.

| statement | evidence that it has run |
|---|---|
| CREATE TABLE | the table is there; that it was not, was seen before |
| ALTER TABLE | its columns and indexes, as an empty copy of it looks after the same statement |
| filling a column with converted values (`recast`) | none: the old column is still there |
| RENAME TABLE | the new name is there and the old one is not |
| CREATE DATABASE IF NOT EXISTS, DROP TABLE IF EXISTS, TRUNCATE | none: run again, it changes nothing more |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tidegate.codec.base import DdlMessage
from tidegate.consumer import ddl_plan
from tidegate.consumer.ddl_plan import REPEAT
from tidegate.consumer.definition import Definition
from tidegate.consumer.flow import identity
from tidegate.consumer.modify import Change
from tidegate.consumer.mysql.described import difference
from tidegate.consumer.mysql.literals import quoted
from tidegate.consumer.mysql.progress import Progress
from tidegate.consumer.mysql.prune import prune
from tidegate.consumer.mysql.recast import recast
from tidegate.consumer.mysql.session import SCHEMA
from tidegate.consumer.mysql.tables import alterations, beside, create_table, qualified, recasts
from tidegate.consumer.partitioning import Members
from tidegate.consumer.target import Name
from tidegate.errors import Fatal


@dataclass(frozen=True, slots=True)
class Again:
    """A statement that may run twice."""

    text: str


@dataclass(frozen=True, slots=True)
class CreateTable:
    """A table that must not be there."""

    name: Name
    text: str


@dataclass(frozen=True, slots=True)
class AlterTable:
    """`text` follows ALTER TABLE and the table's name."""

    name: Name
    text: str


@dataclass(frozen=True, slots=True)
class RenameTable:
    """The same table under another name."""

    old: Name
    new: Name


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """The rows of partitions that are gone upstream; may run twice, as no row comes in between."""

    name: Name
    members: Members


@dataclass(frozen=True, slots=True)
class Recast:
    """Fill the column `new` with the values of `old` as TiDB converts them; may run twice."""

    name: Name
    old: str
    new: str
    change: Change


Statement = Again | CreateTable | AlterTable | RenameTable | DeleteRows | Recast


def statements(step: ddl_plan.Step, known: dict[Name, Definition]) -> list[Statement]:
    """What a step takes, and `known` as it is afterwards. Fatal when the target cannot do it."""
    match step:
        case ddl_plan.Create(made):
            held = known.get((made.schema, made.table))
            known[made.schema, made.table] = made
            return _created(made, held)
        case ddl_plan.Drop(schema, table):
            return (
                [Again(f"DROP TABLE IF EXISTS {qualified(schema, table)}")]
                if known.pop((schema, table), None)
                else []
            )
        case ddl_plan.Rename(schema, table, made):
            held, new = known.pop((schema, table)), (made.schema, made.table)
            moved = replace(held, schema=made.schema, table=made.table)
            known[new] = made if held.arrow_schema == made.arrow_schema else moved
            changes = alterations(moved, made, None) if known[new] is made else []
            first: list[Statement] = [_schema(made.schema), RenameTable((schema, table), new)]
            return [*first, *(AlterTable(new, text) for text in changes)]
        case ddl_plan.Rewrite(made, sources, _):
            name = made.schema, made.table
            filled = recasts(sources)
            texts = alterations(known[name], made, sources, filled)
            known[name] = made
            first = [AlterTable(name, beside(made, filled))] if filled else []
            return [*first, *_recasts(name, sources, filled), *(AlterTable(name, text) for text in texts)]
        case ddl_plan.Redefine(made, _):
            name = made.schema, made.table
            texts = alterations(known[name], made, None)
            known[name] = made
            return [AlterTable(name, text) for text in texts]
        case ddl_plan.Nothing(_):
            return []
        case ddl_plan.Prune(schema, table, members):
            return [DeleteRows((schema, table), members)]
        case ddl_plan.Exchange(schema, table, _, _, _):
            raise _refused(
                f"{schema}.{table}",
                "rows change places with another table, and tables have no partitions here",
            )
        case ddl_plan.Restore(made, _):
            raise _refused(made.name, "rows that a database has dropped do not come back")
        case ddl_plan.Refuse(why):
            raise AssertionError(f"refused before any step: {why}")


def _recasts(name: Name, sources: tuple[ddl_plan.Source, ...], filled: dict[str, str]) -> list[Recast]:
    return [
        Recast(name, one.taken.name, filled[one.column.name], one.change)
        for one in sources
        if one.taken is not None and one.change is not None and one.column.name in filled
    ]


def _created(made: Definition, held: Definition | None) -> list[Statement]:
    text = create_table(made)
    if held is not None and create_table(held) == text:
        return [Again(f"TRUNCATE TABLE {qualified(made.schema, made.table)}")]
    gone: list[Statement] = []
    if held is not None:
        gone = [Again(f"DROP TABLE IF EXISTS {qualified(held.schema, held.table)}")]
    return [_schema(made.schema), *gone, CreateTable((made.schema, made.table), text)]


def _schema(name: str) -> Again:
    return Again(
        f"CREATE DATABASE IF NOT EXISTS {quoted(name)} DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"
    )


def _refused(where: str, why: str) -> Fatal:
    return Fatal("a DDL cannot be replayed at the target", where=where, why=why, fix=REPEAT)


@dataclass(frozen=True, slots=True)
class _Planned:
    """One step: its statements, the number of the first of them, and all definitions after it."""

    first: int
    statements: list[Statement]
    known: dict[Name, Definition]


class DdlRun:
    """The DDLs between two positions: which are done, and how far the one is that is not."""

    def __init__(self, progress: Progress, definitions: dict[Name, Definition], noted: str | None) -> None:
        """`noted`: what `Progress` held. `definitions` are kept as they are after each step."""
        self._progress, self._definitions = progress, definitions
        self._done: list[str] = []
        self._begun: dict[str, Any] | None = None
        self.resume(noted)
        self._now = self._query = ""
        self._before: dict[Name, Definition] = {}
        self._planned: list[_Planned] = []
        self._step = 0

    def resume(self, noted: str | None) -> None:
        """What the target says now of the DDLs since its position; the step that was lost comes again."""
        held: dict[str, Any] = orjson.loads(noted) if noted else {}
        self._done, self._begun = held.get("done", []), held.get("begun")

    def has_done(self, message: DdlMessage) -> bool:
        """Whether all its statements have run and only the position has not moved past it."""
        return identity(message) in self._done

    def intend(self, message: DdlMessage, steps: Sequence[ddl_plan.Step]) -> None:
        """See `Target.intend`. All is rendered now: what is refused is refused before anything is done."""
        name = identity(message)
        if self._begun is not None and self._begun["name"] != name:
            raise Fatal(
                "another DDL was begun than the one that comes",
                where=f"{message.schema}.{message.table} at ts {message.ts}",
                why=f"begun: {self._begun['query'][:200]}",
                fix="start a new target, and report this",
            )
        self._before, known, number = dict(self._definitions), dict(self._definitions), 0
        self._planned, self._step = [], 0
        for step in steps:
            made = statements(step, known)
            self._planned.append(_Planned(number, made, dict(known)))
            number += len(made)
        self._now, self._query = name, message.query
        if not steps:
            self._over()

    def expect(self, step: ddl_plan.Step) -> None:
        """Fatal for a step that was not intended: rows without a DDL ask for one."""
        if self._step >= len(self._planned):
            statements(step, dict(self._definitions))
            raise _refused(ddl_plan.in_words(step), "no DDL on the topic tells of it")

    def execute(self) -> None:
        """The statements of the next step; after a connection was lost and `resume`, of the same one."""
        step = self._planned[self._step]
        if self._now not in self._done:
            for number, statement in enumerate(step.statements, step.first):
                self._execute(number, statement)
        self._definitions.clear()
        self._definitions.update(step.known)
        if step is self._planned[-1] and self._now not in self._done:
            self._over()
        self._step += 1

    def over(self, position: str) -> None:
        """The position moves past all DDLs that were done."""
        self._progress.move(position, ddl_over=True)
        self._done, self._begun = [], None

    def _over(self) -> None:
        was, now = self._before, self._definitions
        made = {name: one.to_json().decode() for name, one in now.items() if was.get(name) is not one}
        done = [*self._done, self._now]
        self._progress.note_ddl(_note(done, None), made, [name for name in was if name not in now])
        self._done, self._begun = done, None

    def _execute(self, number: int, statement: Statement) -> None:
        begun, self._begun = self._begun, None
        if begun is not None and number > begun["at"]:
            begun = None  # of an earlier step, which is done
        if begun is not None and number < begun["at"]:
            self._begun = begun
            return
        evidence = begun["evidence"] if begun is not None else self._evidence(statement)
        if begun is not None and self._has_run(statement, evidence):
            return
        note = {"name": self._now, "query": self._query[:2000], "at": number, "evidence": evidence}
        self._progress.note_ddl(_note(self._done, note))
        self._progress.check_lock()
        if isinstance(statement, DeleteRows):
            prune(self._progress, statement.name, statement.members)
        elif isinstance(statement, Recast):
            recast(self._progress, statement.name, statement.old, statement.new, statement.change)
        else:
            self._progress.run_ddl(_text(statement))

    def _evidence(self, statement: Statement) -> list[str]:
        match statement:
            case CreateTable(name, _) if self._look(name) is not None:
                raise Fatal(
                    "a table that is to be made is there already",
                    where=".".join(name),
                    why="it is none of this consumer's: it was there before, or somebody has made it since",
                    fix="move it out of the way, or leave the table out with a [filter] rule",
                )
            case AlterTable(name, text):
                return [self._look(name) or "", self._foreseen(name, text)]
            case _:
                return []

    def _has_run(self, statement: Statement, evidence: Sequence[str]) -> bool:
        """Whether the statement that was begun took effect; Fatal when the target looks like neither."""
        match statement:
            case Again(_) | DeleteRows() | Recast():
                return False
            case CreateTable(name, _):
                return self._look(name) is not None
            case RenameTable(old, new):
                return self._look(old) is None and self._look(new) is not None
            case AlterTable(name, text):
                found = self._look(name)
                if found not in evidence:
                    raise Fatal(
                        "a table is neither as it was nor as a DDL was to make it",
                        where=".".join(name),
                        why=f"ALTER TABLE ... {text[:300]} was begun, and {difference(found, evidence[1])}",
                        fix="make it as it was before, or as the DDL would, and start again",
                    )
                return found != evidence[0]

    def _foreseen(self, name: Name, text: str) -> str:
        """What the table will look like: an empty copy of it is altered."""
        scratch = (SCHEMA, self._progress.scratch)
        place = qualified(*scratch)
        self._progress.run_ddl(f"DROP TABLE IF EXISTS {place}")
        self._progress.run_ddl(f"CREATE TABLE {place} LIKE {qualified(*name)}")
        self._progress.run_ddl(f"ALTER TABLE {place} {text}")
        found = self._look(scratch)
        self._progress.run_ddl(f"DROP TABLE IF EXISTS {place}")
        return found or ""

    def _look(self, name: Name) -> str | None:
        return self._progress.look(*name)


def _note(done: Sequence[str], begun: dict[str, Any] | None) -> str:
    return orjson.dumps({"done": done, "begun": begun}).decode()


def _text(statement: Again | CreateTable | AlterTable | RenameTable) -> str:
    match statement:
        case Again(text) | CreateTable(_, text):
            return text
        case AlterTable(name, text):
            return f"ALTER TABLE {qualified(*name)} {text}"
        case RenameTable(old, new):
            return f"RENAME TABLE {qualified(*old)} TO {qualified(*new)}"

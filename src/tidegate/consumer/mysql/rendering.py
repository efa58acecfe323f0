"""The statements that write rows: those of several tables, all deletes before all inserts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.consumer.applying.net_effect import Effect
from tidegate.consumer.applying.target import Name, TableChanges
from tidegate.consumer.mysql.dialect import EXACT_ELEMENTS, Dialect
from tidegate.consumer.mysql.digest import Digest
from tidegate.consumer.mysql.literals import bag_deletes, check_lengths, deletes, inserts
from tidegate.consumer.mysql.tables import qualified
from tidegate.consumer.table.convert import SET, TargetColumn
from tidegate.consumer.table.definition import Definition
from tidegate.errors import Fatal


@dataclass(slots=True)
class Statements:
    """Rendered statements: from here on only the target can fail."""

    digest: Digest
    deletes: list[tuple[bytes, int | None]] = field(default_factory=list)
    """Each with the number of rows that it must find, if that is known."""
    inserts: list[bytes] = field(default_factory=list)
    tables: list[tuple[Name, int, int]] = field(default_factory=list)
    """Each table with the number of its deletes and inserts, in their order; empty: it is not known."""

    def table_of(self, at: int, *, inserting: bool) -> Name | None:
        """The table of a delete or an insert, by its place in the list; None: it is not known."""
        for name, deleting, writing in self.tables:
            at -= writing if inserting else deleting
            if at < 0:
                return name
        return None

    def add(self, other: Statements) -> None:
        """Append the statements of another table."""
        self.tables += other.tables
        self.digest.join(other.digest)
        self.deletes += other.deletes
        self.inserts += other.inserts


def has_native_json(table: Definition, dialect: Dialect) -> bool:
    """Whether JSON columns of a table may have the server's own type, which MariaDB does not have.

    From a TableInfo the consumer makes a LONGTEXT. A table of the topic's SQL, or of somebody else, may have
    the server's own.
    """
    return dialect is not Dialect.MARIADB and (table.info is None or bool(table.uniques))


def whole(changes: TableChanges, packet: int, digest: Digest, dialect: Dialect) -> Statements:
    """All statements of a table's changes, with a digest of their rows. `packet`: as in `add_deletes`."""
    made, table = Statements(digest), changes.definition
    add_deletes(made, changes, packet, dialect)
    add_inserts(made, changes, packet)
    made.tables.append(((table.schema, table.table), len(made.deletes), len(made.inserts)))
    return made


def add_deletes(made: Statements, changes: TableChanges, packet: int, dialect: Dialect) -> None:
    """Add the deletes of a table's changes; of rows to insert, too, if a row with their values may exist.

    `packet`: the most bytes of a statement. Raises Fatal for a longer one.
    """
    table, effect = changes.definition, changes.effect
    name = qualified(table.schema, table.table)
    columns = {column.name: column for column in table.columns}
    if isinstance(effect, Effect):
        keys = [columns[key] for key in table.keys]
        known = effect.upserts.select(table.keys).filter(~effect.fresh)
        # Updated rows are deleted, too, so that all unique values are free before any row is inserted.
        for gone in (effect.deletes, known):
            check_sets(keys, gone, table.name, dialect)
            made.deletes += [(text, None) for text in deletes(keys, gone, name, made.digest)]
        # An adopted table may be newer than these rows: another row there may have one of their values.
        # It got that value later, so its own change is still to come on the topic, with all its values.
        for unique in table.uniques:
            if set(unique) != set(table.keys):
                taken, rows = [columns[one] for one in unique], effect.upserts.select(list(unique))
                check_sets(taken, rows, table.name, dialect)
                made.deletes += [(text, None) for text in deletes(taken, rows, name, made.digest)]
    else:
        own = [column for column in table.columns if column.name not in table.generated]
        check_sets(own, effect.deletes, table.name, dialect)
        native = has_native_json(table, dialect)
        made.deletes += bag_deletes(own, effect.deletes, name, made.digest, native_json=native)
    check_lengths((text for text, _ in made.deletes), table.name, packet)


def add_inserts(made: Statements, changes: TableChanges, packet: int) -> None:
    """Add the inserts of a table's changes. `packet`: as in `add_deletes`."""
    table, effect = changes.definition, changes.effect
    fresh = effect.upserts if isinstance(effect, Effect) else effect.inserts
    own = [column for column in table.columns if column.name not in table.generated]
    made.inserts += inserts(own, fresh, qualified(table.schema, table.table), made.digest)
    check_lengths(made.inserts, table.name, packet)


def check_sets(columns: Sequence[TargetColumn], rows: pa.Table, table: str, dialect: Dialect) -> None:
    """Fatal when a SET by which these rows would be found has a number that TiDB takes for another one, too.

    `columns`: those that a DELETE compares.
    """
    for column in columns:
        if dialect is not Dialect.TIDB or column.mysql_type != SET:
            continue
        if (pc.max(rows[column.name]).as_py() or 0) >> EXACT_ELEMENTS:
            raise Fatal(
                "a row cannot be found safely at the target",
                where=f"table {table}, column {column.name}",
                why="a SET with an element after the 53rd identifies rows, and TiDB compares its number as a "
                "double: a DELETE could find another row",
                fix="leave the table out with --exclude, or write to MySQL or MariaDB",
            )

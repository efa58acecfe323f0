"""ALTER TABLE and its changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidegate.tidb.sql.alter_partitions import ON_PARTITIONS, AlterChange, PartitionChanges
from tidegate.tidb.sql.columns import Columns
from tidegate.tidb.sql.constraints import Constraints
from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.literals import Literals
from tidegate.tidb.sql.options import Option, Options

_ALGORITHMS: Final = ("DEFAULT", "COPY", "INPLACE", "INSTANT")
_LOCKS: Final = ("DEFAULT", "NONE", "SHARED", "EXCLUSIVE")
_PLAIN: Final = ("CACHE", "NOCACHE", "SECONDARY_LOAD", "SECONDARY_UNLOAD")


class AlterTable:
    """Reads ALTER TABLE."""

    def __init__(
        self,
        cursor: Cursor,
        literals: Literals,
        expressions: Expressions,
        columns: Columns,
        constraints: Constraints,
        options: Options,
        partitions: PartitionChanges,
    ) -> None:
        self._cursor, self._literals, self._expressions = cursor, literals, expressions
        self._columns, self._constraints = columns, constraints
        self._options, self._partitions = options, partitions

    def alter_table(self) -> str:
        """The whole statement, from the table on; empty if no part of it concerns a target."""
        cursor = self._cursor
        table = cursor.table_name()
        changes: list[AlterChange] = []
        while True:
            change = self._partitions.single() or self._change()
            if change is None:
                break
            changes.append(change)
            if cursor.take(","):
                continue
            if (last := self._partitions.single()) is not None:
                changes.append(last)
            break
        if all(change.only_placement for change in changes):
            return ""
        stated = [change for change in changes if change.stated]
        parts = [f"ALTER TABLE {table}"]
        for index, change in enumerate(stated):
            parts += [" " if index == 0 else change.apart, change.text]
        return "".join(parts)

    def _change(self) -> AlterChange | None:
        cursor = self._cursor
        start = cursor.place
        options = self._options.table_options(commas=False)
        # The place and not the list: an option that targets do not get is read and leaves the list empty.
        if cursor.place != start:
            return _options_change(options)
        readers: dict[str, Callable[[], str | None]] = {
            "ADD": self._add,
            "ALTER": self._alter,
            "CHANGE": self._changed,
            "CONVERT": self._convert_to,
            "DROP": self._drop,
            "MODIFY": self._modify,
            "RENAME": self._rename,
            "ORDER": self._order,
            "SET": self._options.tiflash_replica,
            "COALESCE": self._partitions.coalesce,
            "EXCHANGE": self._partitions.exchange,
        }
        if (read := readers.get(cursor.token.key)) is not None:
            text = read()
            return AlterChange(text) if text is not None else cursor.fail("a change of a table")
        if cursor.at("ATTRIBUTES"):
            return AlterChange(self._options.attributes(), stated=False)
        if cursor.at_any(*ON_PARTITIONS):
            return self._partitions.on_partitions()
        return self._rare_change()

    def _rare_change(self) -> AlterChange | None:
        cursor = self._cursor
        if (edge := self._partitions.edge()) is not None:
            return edge
        if word := cursor.take_any(*_PLAIN):
            return AlterChange(word)
        if word := cursor.take_any("ENABLE", "DISABLE"):
            cursor.need("KEYS")
            return AlterChange(f"{word} KEYS")
        if word := cursor.take_any("WITH", "WITHOUT"):
            cursor.need("VALIDATION")
            return AlterChange(f"{word} VALIDATION")
        if cursor.take("READ"):
            return AlterChange(f"READ {cursor.need_any('WRITE', 'ONLY')}")
        if cursor.take("FORCE"):
            return AlterChange("FORCE /* AlterTableForce is not supported */ ")
        if cursor.take("LOCK"):
            return AlterChange(f"LOCK = {self._value_of(_LOCKS)}")
        if cursor.take("ALGORITHM"):
            return AlterChange(f"ALGORITHM = {self._value_of(_ALGORITHMS)}")
        if cursor.take("STATS_OPTIONS"):
            cursor.take_equals()
            return AlterChange(f"STATS_OPTIONS={cursor.take_any('DEFAULT') or cursor.plain_string()}")
        return None

    def _value_of(self, words: tuple[str, ...]) -> str:
        cursor = self._cursor
        cursor.take_equals()
        return cursor.need_any(*words)

    def lock_and_algorithm(self) -> str:
        """LOCK and ALGORITHM after a statement about an index; empty if both are the default."""
        found = {"LOCK": "DEFAULT", "ALGORITHM": "DEFAULT"}
        while word := self._cursor.take_any("LOCK", "ALGORITHM"):
            found[word] = self._value_of(_LOCKS if word == "LOCK" else _ALGORITHMS)
        stated = [f"{word} = {found[word]}" for word in ("ALGORITHM", "LOCK") if found[word] != "DEFAULT"]
        return f" {' '.join(stated)}" if stated else ""

    # --- columns ----------------------------------------------------------------------------------------

    def _add(self) -> str:
        cursor = self._cursor
        cursor.need("ADD")
        if cursor.take("PARTITION"):
            return self._partitions.add()
        if cursor.take("STATS_EXTENDED"):
            return self._add_statistics()
        if self._constraints.at_constraint():
            return f"ADD {self._constraints.constraint()}"
        cursor.take("COLUMN")
        exists = cursor.if_not_exists()
        if cursor.at("("):
            columns, constraints = self._columns.elements()
            return f"ADD COLUMN {exists}({', '.join([*columns, *constraints])})"
        return f"ADD COLUMN {exists}{self._columns.column()}{self._column_position()}"

    def _column_position(self) -> str:
        cursor = self._cursor
        if cursor.take("FIRST"):
            return " FIRST"
        return f" AFTER {cursor.column_name()}" if cursor.take("AFTER") else ""

    def _modify(self) -> str:
        cursor = self._cursor
        cursor.need("MODIFY")
        cursor.take("COLUMN")
        return f"MODIFY COLUMN {cursor.if_exists()}{self._columns.column()}{self._column_position()}"

    def _changed(self) -> str:
        cursor = self._cursor
        cursor.need("CHANGE")
        cursor.take("COLUMN")
        exists = cursor.if_exists()
        old = cursor.column_name()
        return f"CHANGE COLUMN {exists}{old} {self._columns.column()}{self._column_position()}"

    def _alter(self) -> str:
        cursor = self._cursor
        cursor.need("ALTER")
        if cursor.take("INDEX"):
            return f"ALTER INDEX {cursor.name()} {cursor.need_any('VISIBLE', 'INVISIBLE')}"
        if cursor.take_any("CHECK", "CONSTRAINT"):
            name = cursor.name()
            negated = " NOT" if cursor.take("NOT") else ""
            cursor.need("ENFORCED")
            return f"ALTER CHECK {name}{negated} ENFORCED"
        cursor.take("COLUMN")
        column = cursor.column_name()
        if cursor.take("DROP", "DEFAULT"):
            return f"ALTER COLUMN {column} DROP DEFAULT"
        cursor.need("SET", "DEFAULT")
        return f"ALTER COLUMN {column} SET DEFAULT {self._new_default()}"

    def _new_default(self) -> str:
        cursor = self._cursor
        if cursor.take("("):
            value = self._expressions.expr()
            cursor.need(")")
            return value.text if value.kind == "value" else f"({value.text})"
        signed = cursor.at_any("+", "-")
        text = self._literals.signed_literal()
        return f"({text})" if signed else text

    def _drop(self) -> str:
        cursor = self._cursor
        cursor.need("DROP")
        if cursor.take("PRIMARY", "KEY"):
            return "DROP PRIMARY KEY"
        if cursor.take("PARTITION"):
            return f"DROP PARTITION {cursor.if_exists()}{','.join(cursor.listed(cursor.name))}"
        if cursor.take("STATS_EXTENDED"):
            return f"DROP STATS_EXTENDED {cursor.if_exists()}{cursor.name()}"
        if cursor.take("FOREIGN", "KEY"):
            return f"DROP FOREIGN KEY {cursor.if_exists()}{cursor.name()}"
        if cursor.take_any("CHECK", "CONSTRAINT"):
            return f"DROP CHECK {cursor.name()}"
        if cursor.take_any("KEY", "INDEX"):
            return f"DROP INDEX {cursor.if_exists()}{cursor.name()}"
        cursor.take("COLUMN")
        text = f"DROP COLUMN {cursor.if_exists()}{cursor.column_name()}"
        cursor.take_any("RESTRICT", "CASCADE")
        return text

    def _rename(self) -> str:
        cursor = self._cursor
        cursor.need("RENAME")
        if cursor.take("COLUMN"):
            old = cursor.name()
            cursor.need("TO")
            return f"RENAME COLUMN {old} TO {cursor.name()}"
        if cursor.take_any("KEY", "INDEX"):
            old = cursor.name()
            cursor.need("TO")
            return f"RENAME INDEX {old} TO {cursor.name()}"
        cursor.take_any("TO", "AS", "=")
        return f"RENAME AS {cursor.table_name()}"

    def _convert_to(self) -> str:
        cursor = self._cursor
        cursor.need("CONVERT", "TO")
        if not cursor.take_charset_word():
            cursor.fail("CHARACTER SET")
        name = "DEFAULT" if cursor.take("DEFAULT") else cursor.charset().upper()
        text = f"CONVERT TO CHARACTER SET {name}"
        return f"{text} COLLATE {cursor.collation().upper()}" if cursor.take("COLLATE") else text

    def _order(self) -> str:
        cursor = self._cursor
        cursor.need("ORDER", "BY")
        return f"ORDER BY {','.join(cursor.listed(self._order_item))}"

    def _order_item(self) -> str:
        cursor = self._cursor
        column = cursor.column_name()
        if cursor.take("DESC"):
            return f"{column} DESC"
        cursor.take("ASC")
        return column

    def _add_statistics(self) -> str:
        cursor = self._cursor
        text = f"ADD STATS_EXTENDED {cursor.if_not_exists()}{cursor.name()} "
        kind = cursor.need_any("CARDINALITY", "DEPENDENCY", "CORRELATION")
        return f"{text}{kind}({', '.join(cursor.parenthesised(cursor.column_name))})"


def _options_change(options: list[Option]) -> AlterChange:
    """Options without a comma between them are one change."""
    if all(option.kind == "placement" for option in options):
        return AlterChange("", stated=False)
    kinds = [option.kind.partition(" ") for option in options]
    if [kind for kind, _, _ in kinds] == ["charset", "collate"]:
        return AlterChange(f"CHARACTER SET {kinds[0][2]} COLLATE {kinds[1][2]}")
    return AlterChange(" ".join(option.text for option in options))

"""The partitioning of a table."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.operands import Operands
from tidegate.tidb.sql.options import Options

_KEY_ALGORITHMS: Final = ("1", "2")


class _Definition(NamedTuple):
    text: str
    subpartitions: int


class Partitions:
    """Reads partitions."""

    def __init__(
        self, cursor: Cursor, operands: Operands, expressions: Expressions, options: Options
    ) -> None:
        self._cursor, self._operands, self._expressions = cursor, operands, expressions
        self._options = options

    def partition_by(self) -> str:
        """PARTITION BY and everything that belongs to it."""
        cursor = self._cursor
        cursor.need("PARTITION", "BY")
        method, kind = self._method()
        number = self._count("PARTITIONS")
        sub, sub_number = self._subpartition_by()
        definitions = self._definitions() if cursor.at("(") else []
        if definitions and number not in ("", str(len(definitions))):
            cursor.fail("as many partitions as PARTITIONS says")
        if kind in ("HASH", "KEY"):
            # Without a number TiDB makes one partition.
            number = number or "1"
        elif kind != "SYSTEM_TIME" and not definitions and " INTERVAL (" not in method:
            cursor.fail("the definitions of partitions")
        parts = ["PARTITION BY ", method]
        if number and not definitions:
            parts.append(f" PARTITIONS {number}")
        if sub:
            subs = definitions[0].subpartitions if definitions else 0
            sub_number = str(subs) if subs else sub_number
            parts.append(f" SUBPARTITION BY {sub}" + (f" SUBPARTITIONS {sub_number}" if sub_number else ""))
        if definitions:
            parts.append(f" ({','.join(each.text for each in definitions)})")
        parts.append(self._update_indexes())
        return "".join(parts)

    def _count(self, word: str) -> str:
        cursor = self._cursor
        if not cursor.take(word):
            return ""
        number = cursor.uint()
        return number if number != "0" else cursor.fail("at least one")

    def _method(self) -> tuple[str, str]:
        cursor = self._cursor
        if cursor.at_any("LINEAR", "KEY", "HASH"):
            return self._hash_or_key()
        if cursor.take("SYSTEM_TIME"):
            return self._system_time(), "SYSTEM_TIME"
        kind = cursor.need_any("RANGE", "LIST")
        if cursor.take_any("COLUMNS", "FIELDS"):
            text = f"{kind} COLUMNS ({','.join(cursor.parenthesised(cursor.column_name))})"
        else:
            cursor.need("(")
            text = f"{kind} ({self._operands.bit_expression()})"
            cursor.need(")")
        if kind == "RANGE" and cursor.take("INTERVAL"):
            text += self._interval_partitions()
        return text, kind

    def _hash_or_key(self) -> tuple[str, str]:
        cursor = self._cursor
        linear = "LINEAR " if cursor.take("LINEAR") else ""
        if cursor.take("HASH"):
            cursor.need("(")
            text = f"{linear}HASH ({self._operands.bit_expression()})"
            cursor.need(")")
            return text, "HASH"
        cursor.need("KEY")
        algorithm = ""
        if cursor.take("ALGORITHM"):
            cursor.need("=")
            number = cursor.uint()
            if number not in _KEY_ALGORITHMS:
                cursor.fail("1 or 2")
            algorithm = f" ALGORITHM = {number}"
        cursor.need("(")
        columns = [] if cursor.at(")") else cursor.listed(cursor.column_name)
        cursor.need(")")
        return f"{linear}KEY{algorithm} ({','.join(columns)})", "KEY"

    def _system_time(self) -> str:
        cursor = self._cursor
        if cursor.take("INTERVAL"):
            return f"SYSTEM_TIME INTERVAL {self._expressions.expression()} {cursor.unit()}"
        return f"SYSTEM_TIME LIMIT {cursor.uint()}" if cursor.take("LIMIT") else "SYSTEM_TIME"

    def _interval_partitions(self) -> str:
        cursor = self._cursor
        cursor.need("(")
        text = f" INTERVAL ({self._operands.bit_expression()}"
        text += ")" if cursor.at(")") else f" {cursor.unit()})"
        cursor.need(")")
        if cursor.at("FIRST", "PARTITION"):
            text += f" {self.edge('FIRST')} {self.edge('LAST')}"
        text += " NULL PARTITION" if cursor.take("NULL", "PARTITION") else ""
        return text + (" MAXVALUE PARTITION" if cursor.take("MAXVALUE", "PARTITION") else "")

    def edge(self, *words: str) -> str:
        """Some words and PARTITION LESS THAN (...)."""
        cursor = self._cursor
        cursor.need(*words, "PARTITION", "LESS", "THAN", "(")
        text = f"{' '.join(words)} PARTITION LESS THAN ({self._operands.bit_expression()})"
        cursor.need(")")
        return text

    def _subpartition_by(self) -> tuple[str, str]:
        if not self._cursor.take("SUBPARTITION", "BY"):
            return "", ""
        method, _ = self._hash_or_key()
        return method, self._count("SUBPARTITIONS")

    def _update_indexes(self) -> str:
        cursor = self._cursor
        if not cursor.take("UPDATE", "INDEXES"):
            return ""
        return f" UPDATE INDEXES ({','.join(cursor.parenthesised(self._updated_index))})"

    def _updated_index(self) -> str:
        cursor = self._cursor
        return f"{cursor.name()} {cursor.need_any('GLOBAL', 'LOCAL')}"

    def partition_definitions(self) -> list[str]:
        """The definitions of partitions in parentheses."""
        return [each.text for each in self._definitions()]

    def _definitions(self) -> list[_Definition]:
        cursor = self._cursor
        cursor.need("(")
        found = [self._definition()]
        while cursor.take(","):
            found.append(self._definition())
        cursor.need(")")
        return found

    def _definition(self) -> _Definition:
        cursor = self._cursor
        cursor.need("PARTITION")
        parts = [f"PARTITION {cursor.name()}", self._values_clause()]
        while (option := self._options.partition_option()) is not None:
            parts.append(f" {option.text}")
        subs: list[str] = []
        if cursor.at("("):
            subs = cursor.parenthesised(self._subpartition)
            parts.append(f" ({','.join(subs)})")
        return _Definition("".join(parts), len(subs))

    def _subpartition(self) -> str:
        cursor = self._cursor
        cursor.need("SUBPARTITION")
        parts = [f"SUBPARTITION {cursor.name()}"]
        while (option := self._options.partition_option()) is not None:
            parts.append(f" {option.text}")
        return "".join(parts)

    def _values_clause(self) -> str:
        cursor = self._cursor
        if cursor.take("VALUES", "LESS", "THAN"):
            if cursor.take("MAXVALUE"):
                return " VALUES LESS THAN (MAXVALUE)"
            return f" VALUES LESS THAN ({', '.join(cursor.parenthesised(self._bound_value))})"
        if cursor.take("VALUES", "IN"):
            values = cursor.parenthesised(self._list_value)
            return " DEFAULT" if values == ["DEFAULT"] else f" VALUES IN ({', '.join(values)})"
        if word := cursor.take_any("DEFAULT", "HISTORY", "CURRENT"):
            return f" {word}"
        return ""

    def _bound_value(self) -> str:
        return "MAXVALUE" if self._cursor.take("MAXVALUE") else self._operands.bit_expression()

    def _list_value(self) -> str:
        cursor = self._cursor
        if cursor.at("DEFAULT") and cursor.ahead().key in (",", ")"):
            return cursor.next().key
        value = self._operands.bit_expr()
        return f"({', '.join(value.parts)})" if value.kind == "row" else value.text

"""Queries: the content of a view, a subquery, or the source of a table."""

from __future__ import annotations

from typing import Final

from tidegate.tidb.sql.cursor import Cursor, quoted
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.hints import written_hints
from tidegate.tidb.sql.joins import written
from tidegate.tidb.sql.lexer import TokenKind
from tidegate.tidb.sql.operands import Subqueries
from tidegate.tidb.sql.tables import TableReferences
from tidegate.tidb.sql.windows import Windows
from tidegate.tidb.sql.words import SET_OPERATORS

_PRIORITIES: Final = ("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED")
_SWITCHES: Final = (
    "SQL_SMALL_RESULT",
    "SQL_BIG_RESULT",
    "SQL_BUFFER_RESULT",
    "SQL_NO_CACHE",
    "SQL_CALC_FOUND_ROWS",
)
"""Options of a SELECT, in the order in which TiDB writes them."""


class Queries:
    """Reads queries."""

    def __init__(
        self,
        cursor: Cursor,
        subqueries: Subqueries,
        expressions: Expressions,
        windows: Windows,
        tables: TableReferences,
    ) -> None:
        self._cursor, self._subqueries, self._expressions = cursor, subqueries, expressions
        self._windows, self._tables = windows, tables

    def query(self, first: str = "") -> str:
        """A query; with `first`, one whose first part in parentheses was already read."""
        cursor = self._cursor
        with cursor.deeper():
            parts = [] if first or not cursor.at("WITH") else [self._with()]
            in_parentheses = bool(first) or cursor.at("(")
            parts.append(first or self._part())
            while operator := cursor.take_any(*SET_OPERATORS):
                every = cursor.take("ALL")
                if not every:
                    cursor.take_any("DISTINCT", "DISTINCTROW")
                in_parentheses = cursor.at("(")
                parts += [f" {operator} ALL " if every else f" {operator} ", self._part()]
            if in_parentheses:
                parts += self._order_and_limit()
            return "".join(parts)

    def _part(self) -> str:
        cursor = self._cursor
        if cursor.at("("):
            return self._subqueries.subquery()
        if cursor.at("TABLE"):
            cursor.need("TABLE")
            return "".join([f"TABLE {cursor.table_name()}", *self._order_and_limit(), self._lock()])
        if cursor.at("VALUES"):
            cursor.need("VALUES")
            rows = ", ".join(cursor.listed(self._values_row))
            return "".join([f"VALUES {rows}", *self._order_and_limit(), self._lock()])
        return self._select()

    def _values_row(self) -> str:
        cursor = self._cursor
        cursor.need("ROW")
        return f"ROW({','.join(cursor.parenthesised(self._expressions.expression))})"

    def _with(self) -> str:
        cursor = self._cursor
        cursor.need("WITH")
        recursive = "RECURSIVE " if cursor.take("RECURSIVE") else ""
        return f"WITH {recursive}{', '.join(cursor.listed(self._common_table))} "

    def _common_table(self) -> str:
        cursor = self._cursor
        name = cursor.name()
        columns = f" ({', '.join(cursor.parenthesised(cursor.name))})" if cursor.at("(") else ""
        cursor.need("AS")
        return f"{name}{columns} AS {self._subqueries.subquery()}"

    # --- select -----------------------------------------------------------------------------------------

    def _select(self) -> str:
        cursor = self._cursor
        cursor.need("SELECT")
        parts = ["SELECT ", self._select_options(), ",".join(cursor.listed(self._field))]
        having = self._having()
        is_from = self._from(parts)
        if cursor.take("WHERE"):
            where = self._expressions.expression()
            parts.append(f" WHERE {where}" if is_from else f" FROM DUAL WHERE {where}")
        if cursor.take("GROUP", "BY"):
            parts.append(f" GROUP BY {','.join(cursor.listed(self._windows.by_item))}")
            parts.append(" WITH ROLLUP" if cursor.take("WITH", "ROLLUP") else "")
        parts.append(self._having() or having)
        if cursor.take("WINDOW"):
            parts.append(f" WINDOW {','.join(cursor.listed(self._windows.definition))}")
        parts += [*self._order_and_limit(), self._lock()]
        return "".join(parts)

    def _from(self, parts: list[str]) -> bool:
        cursor = self._cursor
        if not cursor.take("FROM"):
            return False
        if cursor.take("DUAL"):
            return False
        parts.append(f" FROM {written(self._tables.tables())}")
        return True

    def _having(self) -> str:
        return f" HAVING {self._expressions.expression()}" if self._cursor.take("HAVING") else ""

    def _select_options(self) -> str:
        cursor = self._cursor
        found: set[str] = set()
        priority, hints = "", ""
        while True:
            if cursor.token.kind is TokenKind.HINT:
                text = cursor.next().text
                hints = hints or written_hints(text)
            elif word := cursor.take_any(*_PRIORITIES):
                priority = f"{word} "
            elif word := cursor.take_any(
                *_SWITCHES, "SQL_CACHE", "DISTINCT", "DISTINCTROW", "ALL", "STRAIGHT_JOIN"
            ):
                found.add("DISTINCT" if word == "DISTINCTROW" else word)
            else:
                break
        if {"ALL", "DISTINCT"} <= found:
            cursor.fail("ALL or DISTINCT, not both")
        text = priority + "".join(f"{switch} " for switch in _SWITCHES if switch in found)
        text += f"/*+ {hints}*/ " if hints else ""
        return text + "".join(f"{word} " for word in ("DISTINCT", "ALL", "STRAIGHT_JOIN") if word in found)

    def _field(self) -> str:
        cursor = self._cursor
        if (star := self._star()) is not None:
            return star
        text = self._expressions.expression()
        named = cursor.take("AS") or cursor.token.kind is TokenKind.STRING or cursor.at_name()
        alias = cursor.string_or_name() if named else ""
        return f"{text} AS {quoted(alias)}" if alias else text

    def _star(self) -> str | None:
        cursor = self._cursor
        if cursor.take("*"):
            return "*"
        if cursor.ahead().key == "." and cursor.ahead(2).key == "*":
            table = cursor.name()
        elif cursor.ahead().key == "." and cursor.ahead(3).key == "." and cursor.ahead(4).key == "*":
            schema = cursor.name()
            cursor.need(".")
            table = f"{schema}.{cursor.name()}"
        else:
            return None
        cursor.need(".", "*")
        return f"{table}.*"

    def _order_and_limit(self) -> list[str]:
        cursor = self._cursor
        parts = [f" {self._windows.order_by()}"] if cursor.at("ORDER") else []
        if cursor.take("LIMIT"):
            first = self._limit()
            if cursor.take(","):
                parts.append(f" LIMIT {first},{self._limit()}")
            elif cursor.take("OFFSET"):
                parts.append(f" LIMIT {self._limit()},{first}")
            else:
                parts.append(f" LIMIT {first}")
        elif cursor.take("FETCH"):
            cursor.need_any("FIRST", "NEXT")
            parts.append(f" LIMIT {'1' if cursor.at_any('ROW', 'ROWS') else self._limit()}")
            cursor.need_any("ROW", "ROWS")
            cursor.need("ONLY")
        return parts

    def _limit(self) -> str:
        cursor = self._cursor
        return "?" if cursor.take("?") else cursor.uint()

    def _lock(self) -> str:
        cursor = self._cursor
        if cursor.take("LOCK", "IN", "SHARE", "MODE"):
            return " FOR SHARE"
        if not cursor.take("FOR"):
            return ""
        text = f" FOR {cursor.need_any('UPDATE', 'SHARE')}"
        if cursor.take("OF"):
            text += f" OF {', '.join(cursor.listed(cursor.table_name))}"
        if cursor.take("NOWAIT"):
            return f"{text} NOWAIT"
        if cursor.take("SKIP", "LOCKED"):
            return f"{text} SKIP LOCKED"
        return f"{text} WAIT {cursor.uint()}" if cursor.take("WAIT") else text

"""The tables of a query: their names, joins, subqueries in their place, and index hints."""

from __future__ import annotations

from typing import Final

from tidegate.tidb.sql.cursor import Cursor, quoted
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.joins import Join, Node, Source, cross, written
from tidegate.tidb.sql.operands import Subqueries
from tidegate.tidb.sql.words import SET_OPERATORS

_JOINS: Final = ("JOIN", "CROSS", "INNER", "LEFT", "RIGHT", "NATURAL", "STRAIGHT_JOIN")


class TableReferences:
    """Reads what is after FROM."""

    def __init__(self, cursor: Cursor, subqueries: Subqueries, expressions: Expressions) -> None:
        self._cursor, self._subqueries, self._expressions = cursor, subqueries, expressions

    def tables(self) -> Join:
        """The tables, as a tree of joins."""
        first = self._table_reference()
        found = first if isinstance(first, Join) else Join(first)
        while self._cursor.take(","):
            found = Join(found, self._table_reference())
        return found

    def _table_reference(self) -> Node:
        cursor = self._cursor
        with cursor.deeper():
            if cursor.take("{"):
                cursor.identifier()
                inner = self._table_reference()
                cursor.need("}")
                return inner
            return self._joined(self._table_factor())

    def _joined(self, left: Node) -> Node:
        cursor = self._cursor
        while word := cursor.take_any(*_JOINS):
            if word == "NATURAL":
                left = self._natural(left)
            elif word == "STRAIGHT_JOIN":
                right = self._table_factor()
                left = Join(left, right, straight=True, condition=self._condition())
            elif word in ("LEFT", "RIGHT"):
                cursor.take("OUTER")
                cursor.need("JOIN")
                right = self._right_of_join()
                condition = self._condition() or cursor.fail("ON or USING")
                left = Join(left, right, word, condition=condition)
            else:
                if word != "JOIN":
                    cursor.need("JOIN")
                right = self._right_of_join()
                condition = self._condition()
                left = Join(left, right, condition=condition) if condition else cross(left, right)
        return left

    def _right_of_join(self) -> Node:
        cursor = self._cursor
        right = self._table_factor()
        if not cursor.at_any(*_JOINS):
            return right
        with cursor.deeper():
            return self._joined(right)

    def _natural(self, left: Node) -> Join:
        cursor = self._cursor
        side = cursor.take_any("LEFT", "RIGHT")
        if side:
            cursor.take("OUTER")
        else:
            cursor.take("INNER")
        cursor.need("JOIN")
        return Join(left, self._table_factor(), side, natural=True)

    def _condition(self) -> str:
        cursor = self._cursor
        if cursor.take("ON"):
            return f" ON {self._expressions.expression()}"
        if cursor.take("USING"):
            return f" USING ({','.join(cursor.parenthesised(cursor.column_name))})"
        return ""

    # --- one table --------------------------------------------------------------------------------------

    def _table_factor(self) -> Node:
        cursor = self._cursor
        if self._subqueries.at_query_in_parentheses():
            return self._derived(self._subqueries.subquery())
        if not cursor.at("("):
            return self._table()
        with cursor.deeper():
            cursor.need("(")
            inner = self.tables()
            if cursor.at_any(*SET_OPERATORS, "ORDER", "LIMIT") and _is_only_query(inner):
                text = f"({self._subqueries.query(written(inner))})"
                cursor.need(")")
                return self._derived(text)
            cursor.need(")")
            if _is_only_query(inner) and self._names_a_query():
                return self._derived(written(inner))
            inner.in_parentheses = True
            return inner

    def _names_a_query(self) -> bool:
        cursor = self._cursor
        return cursor.at("AS") or cursor.at_name()

    def _derived(self, text: str) -> Source:
        return Source(text + self._alias(), is_query=True)

    def _alias(self) -> str:
        cursor = self._cursor
        if cursor.take("AS"):
            return f" AS {cursor.name()}"
        return f" AS {cursor.name()}" if cursor.at_name() else ""

    def _table(self) -> Source:
        cursor = self._cursor
        text = cursor.table_name()
        if cursor.take("PARTITION"):
            text += f" PARTITION({', '.join(cursor.parenthesised(cursor.name))})"
        text += "" if cursor.at("AS", "OF") else self._alias()
        if cursor.take("AS", "OF"):
            cursor.need("TIMESTAMP")
            text += f" AS OF TIMESTAMP {self._expressions.expression()}"
        while word := cursor.take_any("USE", "IGNORE", "FORCE"):
            text += f" {self._index_hint(word)}"
        return Source(text)

    def _index_hint(self, word: str) -> str:
        cursor = self._cursor
        cursor.need_any("KEY", "INDEX")
        scope = ""
        if cursor.take("FOR"):
            scope = " FOR JOIN" if cursor.take("JOIN") else f" FOR {cursor.need_any('ORDER', 'GROUP')} BY"
            if not scope.endswith("JOIN"):
                cursor.need("BY")
        cursor.need("(")
        names = [] if cursor.at(")") else cursor.listed(self._index_name)
        cursor.need(")")
        return f"{word} INDEX{scope} ({', '.join(names)})"

    def _index_name(self) -> str:
        cursor = self._cursor
        return quoted(cursor.next().text) if cursor.at("PRIMARY") else cursor.name()


def _is_only_query(join: Join) -> bool:
    source = join.left
    return join.right is None and isinstance(source, Source) and source.is_query and source.text.endswith(")")

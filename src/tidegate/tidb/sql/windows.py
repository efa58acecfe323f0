"""The order of rows, and the windows over them."""

from __future__ import annotations

from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.literals import Literals


class Windows:
    """Reads ORDER BY and the definitions of windows."""

    def __init__(self, cursor: Cursor, literals: Literals, expressions: Expressions) -> None:
        self._cursor, self._literals, self._expressions = cursor, literals, expressions

    def by_item(self) -> str:
        cursor = self._cursor
        text = self._expressions.expression()
        if cursor.take("DESC"):
            return f"{text} DESC"
        cursor.take("ASC")
        return text

    def order_by(self) -> str:
        """ORDER BY and its items."""
        cursor = self._cursor
        cursor.need("ORDER", "BY")
        return f"ORDER BY {','.join(cursor.listed(self.by_item))}"

    def window(self) -> str:
        """The definition of a window, after OVER."""
        cursor = self._cursor
        return cursor.name() if cursor.at_name() else self._spec()

    def definition(self) -> str:
        cursor = self._cursor
        name = cursor.name()
        cursor.need("AS")
        return f"{name} AS {self._spec()}"

    def _spec(self) -> str:
        cursor = self._cursor
        cursor.need("(")
        parts = [cursor.name()] if cursor.at_name() else []
        if cursor.take("PARTITION", "BY"):
            parts.append(f"PARTITION BY {', '.join(cursor.listed(self.by_item))}")
        if cursor.at("ORDER"):
            parts.append(self.order_by())
        if unit := cursor.take_any("ROWS", "RANGE", "GROUPS"):
            parts.append(f"{unit} BETWEEN {self._frame()}")
        cursor.need(")")
        return f"({' '.join(parts)})"

    def _frame(self) -> str:
        cursor = self._cursor
        if not cursor.take("BETWEEN"):
            return f"{self._bound()} AND CURRENT ROW"
        start = self._bound()
        cursor.need("AND")
        return f"{start} AND {self._bound()}"

    def _bound(self) -> str:
        cursor = self._cursor
        if cursor.take("CURRENT", "ROW"):
            return "CURRENT ROW"
        if cursor.take("UNBOUNDED"):
            amount = "UNBOUNDED"
        elif cursor.take("INTERVAL"):
            amount = f"INTERVAL {self._expressions.expression()} {cursor.unit()}"
        else:
            amount = "?" if cursor.take("?") else self._literals.number()
        return f"{amount} {cursor.need_any('PRECEDING', 'FOLLOWING')}"

"""Queries: the content of a view, a subquery, or the source of a table."""

from __future__ import annotations

from typing import Final

from tidegate.tidb.sql.cursor import quoted
from tidegate.tidb.sql.functions import Functions
from tidegate.tidb.sql.hints import written_hints
from tidegate.tidb.sql.joins import Join, Node, Source, cross, written
from tidegate.tidb.sql.lexer import TokenKind

_PRIORITIES: Final = ("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED")
_SWITCHES: Final = (
    "SQL_SMALL_RESULT",
    "SQL_BIG_RESULT",
    "SQL_BUFFER_RESULT",
    "SQL_NO_CACHE",
    "SQL_CALC_FOUND_ROWS",
)
"""Options of a SELECT, in the order in which TiDB writes them."""

_SET_OPERATORS: Final = ("UNION", "EXCEPT", "INTERSECT")
_JOINS: Final = ("JOIN", "CROSS", "INNER", "LEFT", "RIGHT", "NATURAL", "STRAIGHT_JOIN")


class Queries(Functions):
    """Reads queries.

    A long class, because the clauses of SELECT, its tables and its windows contain one another.
    """

    def at_query(self) -> bool:
        """Whether a query without parentheses comes next."""
        return self.at_any("SELECT", "WITH", "TABLE") or self.at("VALUES", "ROW")

    def query(self, first: str = "") -> str:
        """A query; with `first`, one whose first part in parentheses was already read."""
        with self.deeper():
            parts = [] if first or not self.at("WITH") else [self._with()]
            in_parentheses = bool(first) or self.at("(")
            parts.append(first or self._part())
            while operator := self.take_any(*_SET_OPERATORS):
                every = self.take("ALL")
                if not every:
                    self.take_any("DISTINCT", "DISTINCTROW")
                in_parentheses = self.at("(")
                parts += [f" {operator} ALL " if every else f" {operator} ", self._part()]
            if in_parentheses:
                parts += self._order_and_limit()
            return "".join(parts)

    def _part(self) -> str:
        if self.at("("):
            return self.subquery()
        if self.at("TABLE"):
            self.need("TABLE")
            return "".join([f"TABLE {self.table_name()}", *self._order_and_limit(), self._lock()])
        if self.at("VALUES"):
            self.need("VALUES")
            rows = ", ".join(self.listed(self._values_row))
            return "".join([f"VALUES {rows}", *self._order_and_limit(), self._lock()])
        return self._select()

    def _values_row(self) -> str:
        self.need("ROW")
        return f"ROW({','.join(self.parenthesised(self.expression))})"

    def _with(self) -> str:
        self.need("WITH")
        recursive = "RECURSIVE " if self.take("RECURSIVE") else ""
        return f"WITH {recursive}{', '.join(self.listed(self._common_table))} "

    def _common_table(self) -> str:
        name = self.name()
        columns = f" ({', '.join(self.parenthesised(self.name))})" if self.at("(") else ""
        self.need("AS")
        return f"{name}{columns} AS {self.subquery()}"

    # --- select -----------------------------------------------------------------------------------------

    def _select(self) -> str:
        self.need("SELECT")
        parts = ["SELECT ", self._select_options(), ",".join(self.listed(self._field))]
        having = self._having()
        is_from = self._from(parts)
        if self.take("WHERE"):
            where = self.expression()
            parts.append(f" WHERE {where}" if is_from else f" FROM DUAL WHERE {where}")
        if self.take("GROUP", "BY"):
            parts.append(f" GROUP BY {','.join(self.listed(self._by_item))}")
            parts.append(" WITH ROLLUP" if self.take("WITH", "ROLLUP") else "")
        parts.append(self._having() or having)
        if self.take("WINDOW"):
            parts.append(f" WINDOW {','.join(self.listed(self._window_definition))}")
        parts += [*self._order_and_limit(), self._lock()]
        return "".join(parts)

    def _from(self, parts: list[str]) -> bool:
        if not self.take("FROM"):
            return False
        if self.take("DUAL"):
            return False
        parts.append(f" FROM {written(self._tables())}")
        return True

    def _having(self) -> str:
        return f" HAVING {self.expression()}" if self.take("HAVING") else ""

    def _select_options(self) -> str:
        found: set[str] = set()
        priority, hints = "", ""
        while True:
            if self.token.kind is TokenKind.HINT:
                text = self.next().text
                hints = hints or written_hints(text)
            elif word := self.take_any(*_PRIORITIES):
                priority = f"{word} "
            elif word := self.take_any(
                *_SWITCHES, "SQL_CACHE", "DISTINCT", "DISTINCTROW", "ALL", "STRAIGHT_JOIN"
            ):
                found.add("DISTINCT" if word == "DISTINCTROW" else word)
            else:
                break
        if {"ALL", "DISTINCT"} <= found:
            self.fail("ALL or DISTINCT, not both")
        text = priority + "".join(f"{switch} " for switch in _SWITCHES if switch in found)
        text += f"/*+ {hints}*/ " if hints else ""
        return text + "".join(f"{word} " for word in ("DISTINCT", "ALL", "STRAIGHT_JOIN") if word in found)

    def _field(self) -> str:
        if (star := self._star()) is not None:
            return star
        text = self.expression()
        named = self.take("AS") or self.token.kind is TokenKind.STRING or self.at_name()
        alias = self.string_or_name() if named else ""
        return f"{text} AS {quoted(alias)}" if alias else text

    def _star(self) -> str | None:
        if self.take("*"):
            return "*"
        if self.ahead().key == "." and self.ahead(2).key == "*":
            table = self.name()
        elif self.ahead().key == "." and self.ahead(3).key == "." and self.ahead(4).key == "*":
            schema = self.name()
            self.need(".")
            table = f"{schema}.{self.name()}"
        else:
            return None
        self.need(".", "*")
        return f"{table}.*"

    def _by_item(self) -> str:
        text = self.expression()
        if self.take("DESC"):
            return f"{text} DESC"
        self.take("ASC")
        return text

    def order_by(self) -> str:
        """ORDER BY and its items."""
        self.need("ORDER", "BY")
        return f"ORDER BY {','.join(self.listed(self._by_item))}"

    def _order_and_limit(self) -> list[str]:
        parts = [f" {self.order_by()}"] if self.at("ORDER") else []
        if self.take("LIMIT"):
            first = self._limit()
            if self.take(","):
                parts.append(f" LIMIT {first},{self._limit()}")
            elif self.take("OFFSET"):
                parts.append(f" LIMIT {self._limit()},{first}")
            else:
                parts.append(f" LIMIT {first}")
        elif self.take("FETCH"):
            self.need_any("FIRST", "NEXT")
            parts.append(f" LIMIT {'1' if self.at_any('ROW', 'ROWS') else self._limit()}")
            self.need_any("ROW", "ROWS")
            self.need("ONLY")
        return parts

    def _limit(self) -> str:
        return "?" if self.take("?") else self.uint()

    def _lock(self) -> str:
        if self.take("LOCK", "IN", "SHARE", "MODE"):
            return " FOR SHARE"
        if not self.take("FOR"):
            return ""
        text = f" FOR {self.need_any('UPDATE', 'SHARE')}"
        if self.take("OF"):
            text += f" OF {', '.join(self.listed(self.table_name))}"
        if self.take("NOWAIT"):
            return f"{text} NOWAIT"
        if self.take("SKIP", "LOCKED"):
            return f"{text} SKIP LOCKED"
        return f"{text} WAIT {self.uint()}" if self.take("WAIT") else text

    # --- tables -----------------------------------------------------------------------------------------

    def _tables(self) -> Join:
        first = self._table_reference()
        found = first if isinstance(first, Join) else Join(first)
        while self.take(","):
            found = Join(found, self._table_reference())
        return found

    def _table_reference(self) -> Node:
        with self.deeper():
            if self.take("{"):
                self.identifier()
                inner = self._table_reference()
                self.need("}")
                return inner
            return self._joined(self._table_factor())

    def _joined(self, left: Node) -> Node:
        while word := self.take_any(*_JOINS):
            if word == "NATURAL":
                left = self._natural(left)
            elif word == "STRAIGHT_JOIN":
                right = self._table_factor()
                left = Join(left, right, straight=True, condition=self._condition())
            elif word in ("LEFT", "RIGHT"):
                self.take("OUTER")
                self.need("JOIN")
                right = self._right_of_join()
                condition = self._condition() or self.fail("ON or USING")
                left = Join(left, right, word, condition=condition)
            else:
                if word != "JOIN":
                    self.need("JOIN")
                right = self._right_of_join()
                condition = self._condition()
                left = Join(left, right, condition=condition) if condition else cross(left, right)
        return left

    def _right_of_join(self) -> Node:
        right = self._table_factor()
        if not self.at_any(*_JOINS):
            return right
        with self.deeper():
            return self._joined(right)

    def _natural(self, left: Node) -> Join:
        side = self.take_any("LEFT", "RIGHT")
        if side:
            self.take("OUTER")
        else:
            self.take("INNER")
        self.need("JOIN")
        return Join(left, self._table_factor(), side, natural=True)

    def _condition(self) -> str:
        if self.take("ON"):
            return f" ON {self.expression()}"
        if self.take("USING"):
            return f" USING ({','.join(self.parenthesised(self.column_name))})"
        return ""

    def _table_factor(self) -> Node:
        if self.at_query_in_parentheses():
            return self._derived(self.subquery())
        if not self.at("("):
            return self._table()
        with self.deeper():
            self.need("(")
            inner = self._tables()
            if self.at_any(*_SET_OPERATORS, "ORDER", "LIMIT") and _is_only_query(inner):
                text = f"({self.query(written(inner))})"
                self.need(")")
                return self._derived(text)
            self.need(")")
            if _is_only_query(inner) and self._names_a_query():
                return self._derived(written(inner))
            inner.in_parentheses = True
            return inner

    def _names_a_query(self) -> bool:
        return self.at("AS") or self.at_name()

    def _derived(self, text: str) -> Source:
        return Source(text + self._alias(), is_query=True)

    def _alias(self) -> str:
        if self.take("AS"):
            return f" AS {self.name()}"
        return f" AS {self.name()}" if self.at_name() else ""

    def _table(self) -> Source:
        text = self.table_name()
        if self.take("PARTITION"):
            text += f" PARTITION({', '.join(self.parenthesised(self.name))})"
        text += "" if self.at("AS", "OF") else self._alias()
        if self.take("AS", "OF"):
            self.need("TIMESTAMP")
            text += f" AS OF TIMESTAMP {self.expression()}"
        while word := self.take_any("USE", "IGNORE", "FORCE"):
            text += f" {self._index_hint(word)}"
        return Source(text)

    def _index_hint(self, word: str) -> str:
        self.need_any("KEY", "INDEX")
        scope = ""
        if self.take("FOR"):
            scope = " FOR JOIN" if self.take("JOIN") else f" FOR {self.need_any('ORDER', 'GROUP')} BY"
            if not scope.endswith("JOIN"):
                self.need("BY")
        self.need("(")
        names = [] if self.at(")") else self.listed(self._index_name)
        self.need(")")
        return f"{word} INDEX{scope} ({', '.join(names)})"

    def _index_name(self) -> str:
        return quoted(self.next().text) if self.at("PRIMARY") else self.name()

    # --- windows ----------------------------------------------------------------------------------------

    def window(self) -> str:
        """The definition of a window, after OVER."""
        return self.name() if self.at_name() else self._window_spec()

    def _window_definition(self) -> str:
        name = self.name()
        self.need("AS")
        return f"{name} AS {self._window_spec()}"

    def _window_spec(self) -> str:
        self.need("(")
        parts = [self.name()] if self.at_name() else []
        if self.take("PARTITION", "BY"):
            parts.append(f"PARTITION BY {', '.join(self.listed(self._by_item))}")
        if self.at("ORDER"):
            parts.append(self.order_by())
        if unit := self.take_any("ROWS", "RANGE", "GROUPS"):
            parts.append(f"{unit} BETWEEN {self._frame()}")
        self.need(")")
        return f"({' '.join(parts)})"

    def _frame(self) -> str:
        if not self.take("BETWEEN"):
            return f"{self._bound()} AND CURRENT ROW"
        start = self._bound()
        self.need("AND")
        return f"{start} AND {self._bound()}"

    def _bound(self) -> str:
        if self.take("CURRENT", "ROW"):
            return "CURRENT ROW"
        if self.take("UNBOUNDED"):
            amount = "UNBOUNDED"
        elif self.take("INTERVAL"):
            amount = f"INTERVAL {self.expression()} {self.unit()}"
        else:
            amount = "?" if self.take("?") else self.number()
        return f"{amount} {self.need_any('PRECEDING', 'FOLLOWING')}"


def _is_only_query(join: Join) -> bool:
    source = join.left
    return join.right is None and isinstance(source, Source) and source.is_query and source.text.endswith(")")

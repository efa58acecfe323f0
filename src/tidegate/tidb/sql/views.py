"""CREATE VIEW, with its definer, columns and query."""

from __future__ import annotations

from tidegate.tidb.sql.cursor import Cursor, quoted
from tidegate.tidb.sql.lexer import TokenKind
from tidegate.tidb.sql.queries import Queries


class Views:
    """Reads CREATE VIEW."""

    def __init__(self, cursor: Cursor, queries: Queries) -> None:
        self._cursor, self._queries = cursor, queries

    def create_view(self, replace: str) -> str:
        """The statement, from its options on. `replace`: OR REPLACE, if it was read."""
        cursor = self._cursor
        algorithm = "UNDEFINED"
        if cursor.take("ALGORITHM"):
            cursor.need("=")
            algorithm = cursor.need_any("UNDEFINED", "MERGE", "TEMPTABLE")
        definer = "CURRENT_USER"
        if cursor.take("DEFINER"):
            cursor.need("=")
            definer = self._user()
        security = cursor.need_any("DEFINER", "INVOKER") if cursor.take("SQL", "SECURITY") else "DEFINER"
        cursor.need("VIEW")
        view = cursor.table_name()
        columns = f" ({','.join(cursor.parenthesised(cursor.name))})" if cursor.at("(") else ""
        cursor.need("AS")
        query = self._queries.query()
        check = ""
        if cursor.take("WITH"):
            check = " WITH LOCAL CHECK OPTION" if cursor.need_any("CASCADED", "LOCAL") == "LOCAL" else ""
            cursor.need("CHECK", "OPTION")
        return (
            f"CREATE {replace}ALGORITHM = {algorithm} DEFINER = {definer} SQL SECURITY {security} "
            f"VIEW {view}{columns} AS {query}{check}"
        )

    def _user(self) -> str:
        cursor = self._cursor
        if cursor.take("CURRENT_USER"):
            cursor.take("(", ")")
            return "CURRENT_USER"
        user = cursor.string_or_name()
        host = "%"
        if cursor.token.kind is TokenKind.USER_VARIABLE:
            host = cursor.next().text.lower()
        elif cursor.take("@"):
            host = cursor.string_or_name().lower()
        return f"{quoted(user)}@{quoted(host)}" if host else quoted(user)

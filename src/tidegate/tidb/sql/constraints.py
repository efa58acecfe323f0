"""Constraints and indexes, inside the parentheses of CREATE TABLE and in other statements."""

from __future__ import annotations

from typing import Final

from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.expressions import Expressions
from tidegate.tidb.sql.lexer import TokenKind
from tidegate.tidb.sql.words import NOW

_INDEX_TYPES: Final = ("BTREE", "HASH", "RTREE", "HYPO", "HNSW", "INVERTED")
_OPTION_ORDER: Final = (
    "primary",
    "block",
    "type",
    "parser",
    "comment",
    "global",
    "split",
    "visible",
    "engine",
    "where",
)
"""The order in which TiDB writes the options of an index."""


class Constraints:
    """Reads constraints and indexes."""

    def __init__(self, cursor: Cursor, expressions: Expressions) -> None:
        self._cursor, self._expressions = cursor, expressions

    def at_constraint(self) -> bool:
        """Whether a constraint comes next and not a column."""
        cursor = self._cursor
        if cursor.at_any("CONSTRAINT", "PRIMARY", "FULLTEXT", "KEY", "INDEX", "UNIQUE", "FOREIGN", "CHECK"):
            return True
        return cursor.at_any("VECTOR", "COLUMNAR") and cursor.ahead().key == "INDEX"

    def constraint(self) -> str:
        """A constraint or an index."""
        cursor = self._cursor
        name = ""
        if cursor.take("CONSTRAINT") and cursor.at_name():
            name = cursor.name()
        if cursor.at("CHECK"):
            lead = f"CONSTRAINT {name} " if name else ""
            return f"{lead}{self.check()} {self.enforced()}"
        if cursor.take("FOREIGN", "KEY"):
            return self._foreign_key(name)
        return self._index(name)

    def check(self) -> str:
        """CHECK and its condition."""
        cursor = self._cursor
        cursor.need("CHECK", "(")
        text = self._expressions.expression()
        cursor.need(")")
        return f"CHECK({text})"

    def enforced(self) -> str:
        """ENFORCED or NOT ENFORCED, as what follows says."""
        cursor = self._cursor
        if cursor.take("NOT", "ENFORCED"):
            return "NOT ENFORCED"
        cursor.take("ENFORCED")
        return "ENFORCED"

    # --- indexes ----------------------------------------------------------------------------------------

    def _index(self, name: str) -> str:
        cursor = self._cursor
        if cursor.take("PRIMARY"):
            cursor.need("KEY")
            words = "PRIMARY KEY"
        elif word := cursor.take_any("UNIQUE", "FULLTEXT"):
            cursor.take_any("KEY", "INDEX")
            words = word
        elif word := cursor.take_any("VECTOR", "COLUMNAR"):
            cursor.need("INDEX")
            words = f"{word} INDEX"
        else:
            cursor.need_any("KEY", "INDEX")
            words = "INDEX"
        if words.endswith("INDEX") and cursor.if_not_exists():
            words += " IF NOT EXISTS"
        own, kind = self._index_name_and_type()
        name = name or own
        text = f"{words} {name}" if name else words
        text += f"({', '.join(self.key_parts())})"
        options = self.index_options(kind)
        return f"{text} {options}" if options else text

    def _index_name_and_type(self) -> tuple[str, str]:
        cursor = self._cursor
        name = cursor.name() if cursor.at_name() else ""
        # Without a name before it, TYPE is the name of the index.
        if cursor.take("USING") or (name and cursor.take("TYPE")):
            return name, cursor.need_any(*_INDEX_TYPES)
        return name, ""

    def key_parts(self) -> list[str]:
        """The columns and expressions of a key."""
        return self._cursor.parenthesised(self._key_part)

    def _key_part(self) -> str:
        cursor = self._cursor
        if cursor.take("("):
            text = f"({self._expressions.expression()})"
            cursor.need(")")
        else:
            text = cursor.column_name()
            if cursor.take("("):
                length = cursor.uint()
                cursor.need(")")
                text += f"({length})" if length != "0" else ""
        if cursor.take("DESC"):
            return f"{text} DESC"
        cursor.take("ASC")
        return text

    def index_type(self) -> str:
        """USING or TYPE and the type of an index, if they come next."""
        cursor = self._cursor
        return cursor.need_any(*_INDEX_TYPES) if cursor.take_any("USING", "TYPE") else ""

    def index_options(self, kind: str = "") -> str:
        """The options of an index. `kind`: the type before its columns; it wins over one in the options."""
        found: dict[str, str] = {}
        while self._index_option(found):
            pass
        if kind:
            found["type"] = f"USING {kind}"
        return " ".join(found[key] for key in _OPTION_ORDER if found.get(key))

    def _index_option(self, found: dict[str, str]) -> bool:
        cursor = self._cursor
        if word := cursor.take_any("CLUSTERED", "NONCLUSTERED"):
            found["primary"] = f"/*T![clustered_index] {word} */"
        elif cursor.take("KEY_BLOCK_SIZE"):
            cursor.take_equals()
            size = cursor.uint()
            found["block"] = f"KEY_BLOCK_SIZE={size}" if size != "0" else found.get("block", "")
        elif kind := self.index_type():
            found["type"] = f"USING {kind}"
        elif cursor.take("WITH", "PARSER"):
            found["parser"] = f"WITH PARSER {cursor.name()}"
        elif cursor.take("COMMENT"):
            text = cursor.string()
            found["comment"] = f"COMMENT {cursor.plain(text)}" if text else found.get("comment", "")
        elif word := cursor.take_any("VISIBLE", "INVISIBLE"):
            found["visible"] = word
        elif word := cursor.take_any("GLOBAL", "LOCAL"):
            if word == "GLOBAL":
                found["global"] = "/*T![global_index] GLOBAL */"
        else:
            return self._newer_index_option(found)
        return True

    def _newer_index_option(self, found: dict[str, str]) -> bool:
        cursor = self._cursor
        if cursor.take("PRE_SPLIT_REGIONS"):
            cursor.take_equals()
            found["split"] = f"/*T![pre_split] PRE_SPLIT_REGIONS = {self._split_option()} */"
        elif cursor.take("SECONDARY_ENGINE_ATTRIBUTE"):
            cursor.take_equals()
            found["engine"] = f"SECONDARY_ENGINE_ATTRIBUTE = {cursor.plain_string()}"
        elif cursor.take("WHERE"):
            found["where"] = f"WHERE {self._expressions.expression()}"
        else:
            return False
        return True

    def _split_option(self) -> str:
        cursor = self._cursor
        if cursor.token.kind is TokenKind.INT:
            return cursor.uint()
        cursor.need("(")
        if cursor.take("BY"):
            rows = cursor.listed(lambda: f"({','.join(cursor.parenthesised(self._expressions.expression))})")
            text = f"BY {','.join(rows)}"
        else:
            cursor.need("BETWEEN")
            least = ",".join(cursor.parenthesised(self._expressions.expression))
            cursor.need("AND")
            most = ",".join(cursor.parenthesised(self._expressions.expression))
            cursor.need("REGIONS")
            text = f"BETWEEN ({least}) AND ({most}) REGIONS {cursor.uint()}"
        cursor.need(")")
        return f"({text})"

    # --- foreign keys -----------------------------------------------------------------------------------

    def _foreign_key(self, name: str) -> str:
        cursor = self._cursor
        exists = cursor.if_not_exists()
        own = cursor.name() if cursor.at_name() else ""
        name = name or own
        lead = f"CONSTRAINT {name} " if name else "CONSTRAINT "
        return f"{lead}FOREIGN KEY {exists}({', '.join(self.key_parts())}) {self.references()}"

    def references(self) -> str:
        """REFERENCES and what belongs to it."""
        cursor = self._cursor
        cursor.need("REFERENCES")
        text = f"REFERENCES {cursor.table_name()}"
        text += f"({', '.join(self.key_parts())})" if cursor.at("(") else ""
        if cursor.take("MATCH"):
            text += f" MATCH {cursor.need_any('FULL', 'PARTIAL', 'SIMPLE')}"
        found: dict[str, str] = {}
        # `ON UPDATE CURRENT_TIMESTAMP` is an option of the column, and not part of the reference.
        while cursor.at("ON", "DELETE") or (cursor.at("ON", "UPDATE") and not self._at_on_update_now()):
            cursor.need("ON")
            event = cursor.next().key
            if event in found:
                cursor.fail("ON DELETE and ON UPDATE once each")
            found[event] = f" ON {event} {self._reference_option()}"
        return text + found.get("DELETE", "") + found.get("UPDATE", "")

    def _at_on_update_now(self) -> bool:
        return self._cursor.ahead(2).key in NOW

    def _reference_option(self) -> str:
        cursor = self._cursor
        if word := cursor.take_any("RESTRICT", "CASCADE"):
            return word
        if cursor.take("SET"):
            return f"SET {cursor.need_any('NULL', 'DEFAULT')}"
        cursor.need("NO", "ACTION")
        return "NO ACTION"

"""The partitioning of a table."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.tidb.sql.options import Options

_KEY_ALGORITHMS: Final = ("1", "2")


class _Definition(NamedTuple):
    text: str
    subpartitions: int


class Partitions(Options):
    """Reads PARTITION BY and the definitions of partitions."""

    def partition_by(self) -> str:
        """PARTITION BY and everything that belongs to it."""
        self.need("PARTITION", "BY")
        method, kind = self._method()
        number = self._count("PARTITIONS")
        sub, sub_number = self._subpartition_by()
        definitions = self._definitions() if self.at("(") else []
        if definitions and number not in ("", str(len(definitions))):
            self.fail("as many partitions as PARTITIONS says")
        if kind in ("HASH", "KEY"):
            number = number or "1"
        elif kind != "SYSTEM_TIME" and not definitions and " INTERVAL (" not in method:
            self.fail("the definitions of partitions")
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
        if not self.take(word):
            return ""
        number = self.uint()
        return number if number != "0" else self.fail("at least one")

    def _method(self) -> tuple[str, str]:
        if self.at_any("LINEAR", "KEY", "HASH"):
            return self._hash_or_key()
        if self.take("SYSTEM_TIME"):
            return self._system_time(), "SYSTEM_TIME"
        kind = self.need_any("RANGE", "LIST")
        if self.take_any("COLUMNS", "FIELDS"):
            text = f"{kind} COLUMNS ({','.join(self.parenthesised(self.column_name))})"
        else:
            self.need("(")
            text = f"{kind} ({self.bit_expression()})"
            self.need(")")
        if kind == "RANGE" and self.take("INTERVAL"):
            text += self._interval_partitions()
        return text, kind

    def _hash_or_key(self) -> tuple[str, str]:
        linear = "LINEAR " if self.take("LINEAR") else ""
        if self.take("HASH"):
            self.need("(")
            text = f"{linear}HASH ({self.bit_expression()})"
            self.need(")")
            return text, "HASH"
        self.need("KEY")
        algorithm = ""
        if self.take("ALGORITHM"):
            self.need("=")
            number = self.uint()
            if number not in _KEY_ALGORITHMS:
                self.fail("1 or 2")
            algorithm = f" ALGORITHM = {number}"
        self.need("(")
        columns = [] if self.at(")") else self.listed(self.column_name)
        self.need(")")
        return f"{linear}KEY{algorithm} ({','.join(columns)})", "KEY"

    def _system_time(self) -> str:
        if self.take("INTERVAL"):
            return f"SYSTEM_TIME INTERVAL {self.expression()} {self.unit()}"
        return f"SYSTEM_TIME LIMIT {self.uint()}" if self.take("LIMIT") else "SYSTEM_TIME"

    def _interval_partitions(self) -> str:
        self.need("(")
        text = f" INTERVAL ({self.bit_expression()}"
        text += ")" if self.at(")") else f" {self.unit()})"
        self.need(")")
        if self.at("FIRST", "PARTITION"):
            text += f" {self.edge('FIRST')} {self.edge('LAST')}"
        text += " NULL PARTITION" if self.take("NULL", "PARTITION") else ""
        return text + (" MAXVALUE PARTITION" if self.take("MAXVALUE", "PARTITION") else "")

    def edge(self, *words: str) -> str:
        """Some words and PARTITION LESS THAN (...)."""
        self.need(*words, "PARTITION", "LESS", "THAN", "(")
        text = f"{' '.join(words)} PARTITION LESS THAN ({self.bit_expression()})"
        self.need(")")
        return text

    def _subpartition_by(self) -> tuple[str, str]:
        if not self.take("SUBPARTITION", "BY"):
            return "", ""
        method, _ = self._hash_or_key()
        return method, self._count("SUBPARTITIONS")

    def _update_indexes(self) -> str:
        if not self.take("UPDATE", "INDEXES"):
            return ""
        return f" UPDATE INDEXES ({','.join(self.parenthesised(self._updated_index))})"

    def _updated_index(self) -> str:
        return f"{self.name()} {self.need_any('GLOBAL', 'LOCAL')}"

    # --- definitions ------------------------------------------------------------------------------------

    def partition_definitions(self) -> list[str]:
        """The definitions of partitions in parentheses."""
        return [each.text for each in self._definitions()]

    def _definitions(self) -> list[_Definition]:
        self.need("(")
        found = [self._definition()]
        while self.take(","):
            found.append(self._definition())
        self.need(")")
        return found

    def _definition(self) -> _Definition:
        self.need("PARTITION")
        parts = [f"PARTITION {self.name()}", self._values_clause()]
        while (option := self.partition_option()) is not None:
            parts.append(f" {option.text}")
        subs: list[str] = []
        if self.at("("):
            subs = self.parenthesised(self._subpartition)
            parts.append(f" ({','.join(subs)})")
        return _Definition("".join(parts), len(subs))

    def _subpartition(self) -> str:
        self.need("SUBPARTITION")
        parts = [f"SUBPARTITION {self.name()}"]
        while (option := self.partition_option()) is not None:
            parts.append(f" {option.text}")
        return "".join(parts)

    def _values_clause(self) -> str:
        if self.take("VALUES", "LESS", "THAN"):
            if self.take("MAXVALUE"):
                return " VALUES LESS THAN (MAXVALUE)"
            return f" VALUES LESS THAN ({', '.join(self.parenthesised(self._bound_value))})"
        if self.take("VALUES", "IN"):
            values = self.parenthesised(self._list_value)
            return " DEFAULT" if values == ["DEFAULT"] else f" VALUES IN ({', '.join(values)})"
        if word := self.take_any("DEFAULT", "HISTORY", "CURRENT"):
            return f" {word}"
        return ""

    def _bound_value(self) -> str:
        return "MAXVALUE" if self.take("MAXVALUE") else self.bit_expression()

    def _list_value(self) -> str:
        if self.at("DEFAULT") and self.ahead().key in (",", ")"):
            return self.next().key
        value = self.bit_expr()
        return f"({', '.join(value.parts)})" if value.kind == "row" else value.text

"""ALTER TABLE and its changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from tidegate.tidb.sql.options import Option
from tidegate.tidb.sql.partitions import Partitions

_ALGORITHMS: Final = ("DEFAULT", "COPY", "INPLACE", "INSTANT")
_LOCKS: Final = ("DEFAULT", "NONE", "SHARED", "EXCLUSIVE")
_PLAIN: Final = ("CACHE", "NOCACHE", "SECONDARY_LOAD", "SECONDARY_UNLOAD")
_ON_PARTITIONS: Final = ("CHECK", "OPTIMIZE", "REPAIR", "REBUILD", "TRUNCATE", "IMPORT", "DISCARD")


class _Change(NamedTuple):
    text: str
    apart: str = ", "
    """The separator before it, unless it is the first change."""
    stated: bool = True
    only_placement: bool = False
    """Whether it only places a partition; a statement with only such changes is not sent."""


class AlterTable(Partitions):
    """Reads ALTER TABLE."""

    def alter_table(self) -> str:
        """The whole statement, from the table on; empty if no part of it concerns a target."""
        table = self.table_name()
        changes: list[_Change] = []
        while True:
            change = self._single() or self._change()
            if change is None:
                break
            changes.append(change)
            if self.take(","):
                continue
            if (last := self._single()) is not None:
                changes.append(last)
            break
        if all(change.only_placement for change in changes):
            return ""
        stated = [change for change in changes if change.stated]
        parts = [f"ALTER TABLE {table}"]
        for index, change in enumerate(stated):
            parts += [" " if index == 0 else change.apart, change.text]
        return "".join(parts)

    # --- changes without others in the same statement ---------------------------------------------------

    def _single(self) -> _Change | None:
        if self.at("PARTITION", "BY"):
            return _Change(self.partition_by(), " ")
        if self.take("REMOVE", "PARTITIONING"):
            return _Change("REMOVE PARTITIONING", " ")
        if self.take("REMOVE", "TTL"):
            return _Change("/*T![ttl] REMOVE TTL */")
        if self.take("REORGANIZE", "PARTITION"):
            return _Change(self._reorganize())
        if self.at("SPLIT", "MAXVALUE"):
            return _Change(self.edge("SPLIT", "MAXVALUE"))
        if self.at("MERGE", "FIRST"):
            return _Change(self.edge("MERGE", "FIRST"))
        if self.take("PARTITION"):
            return self._one_partition(self.name())
        return None

    def _one_partition(self, name: str) -> _Change:
        if self.at("ATTRIBUTES"):
            return _Change(f"PARTITION {name} {self.attributes()}", stated=False)
        options: list[Option] = []
        while (option := self.partition_option()) is not None:
            options.append(option)
        placed = all(option.kind == "placement" for option in options)
        text = f"PARTITION {name} " + " ".join(option.text for option in options)
        return _Change(f"/*T![placement] {text} */", stated=not placed, only_placement=placed)

    def _reorganize(self) -> str:
        text = "REORGANIZE PARTITION" + self._binlog(" NO_WRITE_TO_BINLOG")
        if not self.at_name():
            return text
        names = ",".join(self.listed(self.name))
        self.need("INTO")
        return f"{text} {names} INTO ({', '.join(self.partition_definitions())})"

    def _binlog(self, written: str) -> str:
        return written if self.take_any("NO_WRITE_TO_BINLOG", "LOCAL") else ""

    # --- changes separated by commas --------------------------------------------------------------------

    def _change(self) -> _Change | None:
        start = self._place
        options = self.table_options(commas=False)
        if self._place != start:
            return _options_change(options)
        readers: dict[str, Callable[[], str | None]] = {
            "ADD": self._add,
            "ALTER": self._alter,
            "CHANGE": self._change_column,
            "CONVERT": self._convert_to,
            "DROP": self._drop,
            "MODIFY": self._modify,
            "RENAME": self._rename,
            "ORDER": self._order,
            "SET": self.tiflash_replica,
            "COALESCE": self._coalesce,
            "EXCHANGE": self._exchange,
        }
        if (read := readers.get(self.token.key)) is not None:
            text = read()
            return _Change(text) if text is not None else self.fail("a change of a table")
        if self.at("ATTRIBUTES"):
            return _Change(self.attributes(), stated=False)
        if self.at_any(*_ON_PARTITIONS):
            return self._on_partitions()
        return self._rare_change()

    def _rare_change(self) -> _Change | None:
        if self.at("FIRST") or self.at("LAST"):
            edge = self.edge(self.token.key)
            return _Change(edge + self._edge_suffix(edge))
        if word := self.take_any(*_PLAIN):
            return _Change(word)
        if word := self.take_any("ENABLE", "DISABLE"):
            self.need("KEYS")
            return _Change(f"{word} KEYS")
        if word := self.take_any("WITH", "WITHOUT"):
            self.need("VALIDATION")
            return _Change(f"{word} VALIDATION")
        if self.take("READ"):
            return _Change(f"READ {self.need_any('WRITE', 'ONLY')}")
        if self.take("FORCE"):
            return _Change("FORCE /* AlterTableForce is not supported */ ")
        if self.take("LOCK"):
            return _Change(f"LOCK = {self._value_of(_LOCKS)}")
        if self.take("ALGORITHM"):
            return _Change(f"ALGORITHM = {self._value_of(_ALGORITHMS)}")
        if self.take("STATS_OPTIONS"):
            self.take_equals()
            return _Change(f"STATS_OPTIONS={self.take_any('DEFAULT') or self.plain_string()}")
        return None

    def _edge_suffix(self, edge: str) -> str:
        if edge.startswith("FIRST"):
            self.if_exists()
            return ""
        return self._binlog(" NO_WRITE_TO_BINLOG")

    def _value_of(self, words: tuple[str, ...]) -> str:
        self.take_equals()
        return self.need_any(*words)

    def lock_and_algorithm(self) -> str:
        """LOCK and ALGORITHM after a statement about an index; empty if both are the default."""
        found = {"LOCK": "DEFAULT", "ALGORITHM": "DEFAULT"}
        while word := self.take_any("LOCK", "ALGORITHM"):
            found[word] = self._value_of(_LOCKS if word == "LOCK" else _ALGORITHMS)
        stated = [f"{word} = {found[word]}" for word in ("ALGORITHM", "LOCK") if found[word] != "DEFAULT"]
        return f" {' '.join(stated)}" if stated else ""

    # --- columns ----------------------------------------------------------------------------------------

    def _add(self) -> str:
        self.need("ADD")
        if self.take("PARTITION"):
            return self._add_partitions()
        if self.take("STATS_EXTENDED"):
            return self._add_statistics()
        if self.at_constraint():
            return f"ADD {self.constraint()}"
        self.take("COLUMN")
        exists = self.if_not_exists()
        if self.at("("):
            columns, constraints = self.elements()
            return f"ADD COLUMN {exists}({', '.join([*columns, *constraints])})"
        return f"ADD COLUMN {exists}{self.column()}{self._column_position()}"

    def _column_position(self) -> str:
        if self.take("FIRST"):
            return " FIRST"
        return f" AFTER {self.column_name()}" if self.take("AFTER") else ""

    def _modify(self) -> str:
        self.need("MODIFY")
        self.take("COLUMN")
        return f"MODIFY COLUMN {self.if_exists()}{self.column()}{self._column_position()}"

    def _change_column(self) -> str:
        self.need("CHANGE")
        self.take("COLUMN")
        exists = self.if_exists()
        old = self.column_name()
        return f"CHANGE COLUMN {exists}{old} {self.column()}{self._column_position()}"

    def _alter(self) -> str:
        self.need("ALTER")
        if self.take("INDEX"):
            return f"ALTER INDEX {self.name()} {self.need_any('VISIBLE', 'INVISIBLE')}"
        if self.take_any("CHECK", "CONSTRAINT"):
            name = self.name()
            negated = " NOT" if self.take("NOT") else ""
            self.need("ENFORCED")
            return f"ALTER CHECK {name}{negated} ENFORCED"
        self.take("COLUMN")
        column = self.column_name()
        if self.take("DROP", "DEFAULT"):
            return f"ALTER COLUMN {column} DROP DEFAULT"
        self.need("SET", "DEFAULT")
        return f"ALTER COLUMN {column} SET DEFAULT {self._new_default()}"

    def _new_default(self) -> str:
        if self.take("("):
            value = self.expr()
            self.need(")")
            return value.text if value.kind == "value" else f"({value.text})"
        signed = self.at_any("+", "-")
        text = self.signed_literal()
        return f"({text})" if signed else text

    def _drop(self) -> str:
        self.need("DROP")
        if self.take("PRIMARY", "KEY"):
            return "DROP PRIMARY KEY"
        if self.take("PARTITION"):
            return f"DROP PARTITION {self.if_exists()}{','.join(self.listed(self.name))}"
        if self.take("STATS_EXTENDED"):
            return f"DROP STATS_EXTENDED {self.if_exists()}{self.name()}"
        if self.take("FOREIGN", "KEY"):
            return f"DROP FOREIGN KEY {self.if_exists()}{self.name()}"
        if self.take_any("CHECK", "CONSTRAINT"):
            return f"DROP CHECK {self.name()}"
        if self.take_any("KEY", "INDEX"):
            return f"DROP INDEX {self.if_exists()}{self.name()}"
        self.take("COLUMN")
        text = f"DROP COLUMN {self.if_exists()}{self.column_name()}"
        self.take_any("RESTRICT", "CASCADE")
        return text

    def _rename(self) -> str:
        self.need("RENAME")
        if self.take("COLUMN"):
            old = self.name()
            self.need("TO")
            return f"RENAME COLUMN {old} TO {self.name()}"
        if self.take_any("KEY", "INDEX"):
            old = self.name()
            self.need("TO")
            return f"RENAME INDEX {old} TO {self.name()}"
        self.take_any("TO", "AS", "=")
        return f"RENAME AS {self.table_name()}"

    def _convert_to(self) -> str:
        self.need("CONVERT", "TO")
        if not self.take_charset_word():
            self.fail("CHARACTER SET")
        name = "DEFAULT" if self.take("DEFAULT") else self.charset().upper()
        text = f"CONVERT TO CHARACTER SET {name}"
        return f"{text} COLLATE {self.collation().upper()}" if self.take("COLLATE") else text

    def _order(self) -> str:
        self.need("ORDER", "BY")
        return f"ORDER BY {','.join(self.listed(self._order_item))}"

    def _order_item(self) -> str:
        column = self.column_name()
        if self.take("DESC"):
            return f"{column} DESC"
        self.take("ASC")
        return column

    def _add_statistics(self) -> str:
        text = f"ADD STATS_EXTENDED {self.if_not_exists()}{self.name()} "
        kind = self.need_any("CARDINALITY", "DEPENDENCY", "CORRELATION")
        return f"{text}{kind}({', '.join(self.parenthesised(self.column_name))})"

    # --- partitions -------------------------------------------------------------------------------------

    def _add_partitions(self) -> str:
        text = "ADD PARTITION" + (" IF NOT EXISTS" if self.if_not_exists() else "")
        text += self._binlog(" NO_WRITE_TO_BINLOG")
        if self.at("("):
            return f"{text} ({', '.join(self.partition_definitions())})"
        if self.take("PARTITIONS"):
            number = self.uint()
            return f"{text} PARTITIONS {number}" if number != "0" else text
        return text

    def _coalesce(self) -> str:
        self.need("COALESCE", "PARTITION")
        return f"COALESCE PARTITION {self._binlog('NO_WRITE_TO_BINLOG ')}{self.uint()}"

    def _exchange(self) -> str:
        self.need("EXCHANGE", "PARTITION")
        name = self.name()
        self.need("WITH", "TABLE")
        text = f"EXCHANGE PARTITION {name} WITH TABLE {self.table_name()}"
        if self.take("WITHOUT", "VALIDATION"):
            return f"{text} WITHOUT VALIDATION"
        self.take("WITH", "VALIDATION")
        return text

    def _on_partitions(self) -> _Change:
        word = self.next().key
        if word in ("IMPORT", "DISCARD") and self.take("TABLESPACE"):
            return _Change(f"{word} TABLESPACE", " ")
        self.need("PARTITION")
        logged = word in ("OPTIMIZE", "REPAIR", "REBUILD")
        binlog = self._binlog("NO_WRITE_TO_BINLOG ") if logged else ""
        names = "ALL" if self.take("ALL") else ",".join(self.listed(self.name))
        text = f"{word} PARTITION {binlog}{names}"
        if word in ("IMPORT", "DISCARD"):
            self.need("TABLESPACE")
            text += " TABLESPACE"
        return _Change(text)


def _options_change(options: list[Option]) -> _Change:
    """Options without a comma between them are one change."""
    if all(option.kind == "placement" for option in options):
        return _Change("", stated=False)
    kinds = [option.kind.partition(" ") for option in options]
    if [kind for kind, _, _ in kinds] == ["charset", "collate"]:
        return _Change(f"CHARACTER SET {kinds[0][2]} COLLATE {kinds[1][2]}")
    return _Change(" ".join(option.text for option in options))

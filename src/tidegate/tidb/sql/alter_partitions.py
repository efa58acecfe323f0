"""The changes of ALTER TABLE that are about its partitions."""

from __future__ import annotations

from typing import Final, NamedTuple

from tidegate.tidb.sql.cursor import Cursor
from tidegate.tidb.sql.options import Option, Options
from tidegate.tidb.sql.partitions import Partitions

ON_PARTITIONS: Final = ("CHECK", "OPTIMIZE", "REPAIR", "REBUILD", "TRUNCATE", "IMPORT", "DISCARD")
"""The words with which changes of named partitions begin."""


class AlterChange(NamedTuple):
    """A change of a table."""

    text: str
    apart: str = ", "
    """The separator before it, unless it is the first change."""
    stated: bool = True
    only_placement: bool = False
    """Whether it only places a partition; a statement with only such changes is not sent."""


class PartitionChanges:
    """Reads changes of partitions."""

    def __init__(self, cursor: Cursor, options: Options, partitions: Partitions) -> None:
        self._cursor, self._options, self._partitions = cursor, options, partitions

    # --- changes without others in the same statement ---------------------------------------------------

    def single(self) -> AlterChange | None:
        """A change that must be the only or the last one of a statement, if one comes next."""
        cursor = self._cursor
        if cursor.at("PARTITION", "BY"):
            return AlterChange(self._partitions.partition_by(), " ")
        if cursor.take("REMOVE", "PARTITIONING"):
            return AlterChange("REMOVE PARTITIONING", " ")
        if cursor.take("REMOVE", "TTL"):
            return AlterChange("/*T![ttl] REMOVE TTL */")
        if cursor.take("REORGANIZE", "PARTITION"):
            return AlterChange(self._reorganize())
        if cursor.at("SPLIT", "MAXVALUE"):
            return AlterChange(self._partitions.edge("SPLIT", "MAXVALUE"))
        if cursor.at("MERGE", "FIRST"):
            return AlterChange(self._partitions.edge("MERGE", "FIRST"))
        if cursor.take("PARTITION"):
            return self._one_partition(cursor.name())
        return None

    def _one_partition(self, name: str) -> AlterChange:
        if self._cursor.at("ATTRIBUTES"):
            return AlterChange(f"PARTITION {name} {self._options.attributes()}", stated=False)
        options: list[Option] = []
        while (option := self._options.partition_option()) is not None:
            options.append(option)
        placed = all(option.kind == "placement" for option in options)
        text = f"PARTITION {name} " + " ".join(option.text for option in options)
        return AlterChange(f"/*T![placement] {text} */", stated=not placed, only_placement=placed)

    def _reorganize(self) -> str:
        cursor = self._cursor
        text = "REORGANIZE PARTITION" + self._binlog(" NO_WRITE_TO_BINLOG")
        if not cursor.at_name():
            return text
        names = ",".join(cursor.listed(cursor.name))
        cursor.need("INTO")
        return f"{text} {names} INTO ({', '.join(self._partitions.partition_definitions())})"

    def _binlog(self, written: str) -> str:
        return written if self._cursor.take_any("NO_WRITE_TO_BINLOG", "LOCAL") else ""

    # --- changes separated by commas --------------------------------------------------------------------

    def edge(self) -> AlterChange | None:
        """A change at the first or the last partition, if one comes next."""
        cursor = self._cursor
        if not cursor.at_any("FIRST", "LAST"):
            return None
        text = self._partitions.edge(cursor.token.key)
        if text.startswith("FIRST"):
            cursor.if_exists()
            return AlterChange(text)
        return AlterChange(text + self._binlog(" NO_WRITE_TO_BINLOG"))

    def add(self) -> str:
        """The partitions that ADD PARTITION adds."""
        cursor = self._cursor
        text = "ADD PARTITION" + (" IF NOT EXISTS" if cursor.if_not_exists() else "")
        text += self._binlog(" NO_WRITE_TO_BINLOG")
        if cursor.at("("):
            return f"{text} ({', '.join(self._partitions.partition_definitions())})"
        if cursor.take("PARTITIONS"):
            number = cursor.uint()
            return f"{text} PARTITIONS {number}" if number != "0" else text
        return text

    def coalesce(self) -> str:
        """COALESCE PARTITION."""
        cursor = self._cursor
        cursor.need("COALESCE", "PARTITION")
        return f"COALESCE PARTITION {self._binlog('NO_WRITE_TO_BINLOG ')}{cursor.uint()}"

    def exchange(self) -> str:
        """EXCHANGE PARTITION."""
        cursor = self._cursor
        cursor.need("EXCHANGE", "PARTITION")
        name = cursor.name()
        cursor.need("WITH", "TABLE")
        text = f"EXCHANGE PARTITION {name} WITH TABLE {cursor.table_name()}"
        if cursor.take("WITHOUT", "VALIDATION"):
            return f"{text} WITHOUT VALIDATION"
        cursor.take("WITH", "VALIDATION")
        return text

    def on_partitions(self) -> AlterChange:
        """A change of partitions by their names, or of all."""
        cursor = self._cursor
        word = cursor.next().key
        if word in ("IMPORT", "DISCARD") and cursor.take("TABLESPACE"):
            return AlterChange(f"{word} TABLESPACE", " ")
        cursor.need("PARTITION")
        logged = word in ("OPTIMIZE", "REPAIR", "REBUILD")
        binlog = self._binlog("NO_WRITE_TO_BINLOG ") if logged else ""
        names = "ALL" if cursor.take("ALL") else ",".join(cursor.listed(cursor.name))
        text = f"{word} PARTITION {binlog}{names}"
        if word in ("IMPORT", "DISCARD"):
            cursor.need("TABLESPACE")
            text += " TABLESPACE"
        return AlterChange(text)

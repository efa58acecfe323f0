"""The definitions of a consumer's tables, as the target stores them, and which consumer owns a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.session import SCHEMA
from tidegate.errors import InvalidInput


class KeptDefinitions:
    """The rows of `definitions`. Each table belongs to one consumer."""

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def all(self) -> Mapping[tuple[str, str], str]:
        """This consumer's definitions, by schema and name."""
        found = self._hold.rows(
            f"SELECT table_schema, table_name, definition FROM `{SCHEMA}`.`definitions` WHERE consumer=%s",
            self._hold.consumer,
        )
        return {(schema, table): text for schema, table, text in found}

    def replace(self, made: Mapping[tuple[str, str], str], gone: Sequence[tuple[str, str]]) -> None:
        """Delete the definitions `gone` and store those in `made`, in a transaction of the caller.

        InvalidInput when one of the tables belongs to another consumer.
        """
        mine = self._hold.consumer
        # Before those in `made`: a table may have been renamed to the name of one that is gone.
        for schema, table in gone:
            self._hold.execute(
                f"DELETE FROM `{SCHEMA}`.`definitions`"
                " WHERE consumer=%s AND table_schema=%s AND table_name=%s",
                *(mine, schema, table),
            )
        for (schema, table), text in made.items():
            self.check_owner(schema, table, lock=True)
            self._hold.execute(
                f"REPLACE INTO `{SCHEMA}`.`definitions` (consumer, table_schema, table_name, definition)"
                " VALUES (%s, %s, %s, %s)",
                *(mine, schema, table, text),
            )

    def owner(self, schema: str, table: str, *, lock: bool = False) -> str:
        """The consumer that owns a table; empty: none. `lock`: lock its row until the transaction ends."""
        found = self._hold.rows(
            f"SELECT consumer FROM `{SCHEMA}`.`definitions` WHERE table_schema=%s AND table_name=%s"
            + (" FOR UPDATE" if lock else ""),
            *(schema, table),
        )
        return str(found[0][0]) if found else ""

    def check_owner(self, schema: str, table: str, *, lock: bool = False) -> None:
        """InvalidInput when a table belongs to another consumer; `lock` as in `owner`."""
        found, mine = self.owner(schema, table, lock=lock), self._hold.consumer
        if found not in ("", mine):
            raise InvalidInput(
                "two consumers write one table",
                where=f"{self._hold.server}, table {schema}.{table}",
                why=f"consumer {found} has it, and {mine} would",
                fix="leave it out of one of the changefeeds with a [filter] rule",
            )

    def of_others(self, schema: str) -> list[str]:
        """The tables of a schema that belong to other consumers."""
        found = self._hold.rows(
            f"SELECT table_name FROM `{SCHEMA}`.`definitions` WHERE table_schema=%s AND consumer<>%s",
            *(schema, self._hold.consumer),
        )
        return [table for (table,) in found]

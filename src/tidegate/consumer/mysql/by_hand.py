"""SQL for single rows, which a person can run in a database. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from tidegate.consumer.applying.net_effect import Effect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.digest import Digest
from tidegate.consumer.mysql.literals import MySqlValues, bag_deletes, deletes, inserts
from tidegate.consumer.mysql.rendering import Statements, check_sets, has_native_json
from tidegate.consumer.mysql.session import SQL_MODE
from tidegate.consumer.mysql.tables import qualified

SESSION: Final = (
    f"SET NAMES utf8mb4; SET SESSION sql_mode='{SQL_MODE}', time_zone='+00:00', foreign_key_checks=0;"
)
"""The same settings as in the consumer's own session: the literals depend on them."""


@dataclass(frozen=True, slots=True)
class MySqlByHand:
    """Statements with the literals that the consumer itself writes."""

    dialect: Dialect
    """The kind of the server for which they are."""

    advice: ClassVar[str] = (
        "`--sql FILE` writes the statements: look first whether each row has changed at the target since its "
        "commit ts, and run those that are still missing"
    )

    @property
    def values(self) -> MySqlValues:
        """Values as the topic has them."""
        return MySqlValues()

    @property
    def head(self) -> bytes:
        """The statement that sets up the session."""
        return SESSION.encode()

    def statements(self, changes: TableChanges) -> list[bytes]:
        """A DELETE by the key, then an INSERT.

        The INSERT fails if another row has one of its unique values by now, so that a person looks into it:
        no other row is deleted. Raises Fatal for a row that the database would not find by its values.
        """
        table, effect, made = changes.definition, changes.effect, Statements(Digest())
        name = qualified(table.schema, table.table)
        columns = {column.name: column for column in table.columns}
        own = [column for column in table.columns if column.name not in table.generated]
        if isinstance(effect, Effect):
            keys = [columns[key] for key in table.keys]
            for gone in (effect.deletes, effect.upserts.select(list(table.keys))):
                check_sets(keys, gone, table.name, self.dialect)
                made.deletes += [(text, None) for text in deletes(keys, gone, name, made.digest)]
            fresh = effect.upserts
        else:
            check_sets(own, effect.deletes, table.name, self.dialect)
            native = has_native_json(table, self.dialect)
            made.deletes += bag_deletes(own, effect.deletes, name, made.digest, native_json=native)
            fresh = effect.inserts
        return [text for text, _ in made.deletes] + list(inserts(own, fresh, name, made.digest))

"""The catalog of a target: pyiceberg's SQL catalog, in a SQLite file next to the tables, with a fence.

The file holds one number, the *token*, and each takeover raises it. Every transaction of a writer reads the
token under SQLite's write lock and is rolled back if it is not the writer's own. A commit of a table is one
such transaction. So a consumer that was replaced cannot commit anything, in whichever call it was suspended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.exc import OperationalError

from tidegate.consumer.iceberg.known_tables import KnownTables
from tidegate.errors import Fenced

NAME: Final = "tidegate"
"""The catalog's name. pyiceberg stores it with each table and finds tables only under it."""
FILE: Final = "catalog.db"
PATIENCE_MS: Final = 30_000
"""Milliseconds for which a transaction waits for those of others."""
_TOKENS: Final = "tidegate_writer"
_LOCATION: Final = (
    "SELECT metadata_location FROM iceberg_tables"
    " WHERE catalog_name=:name AND table_namespace=:namespace AND table_name=:table"
)
_TABLES: Final = (
    "SELECT table_namespace, table_name, metadata_location FROM iceberg_tables WHERE catalog_name=:n"
)


def uri_of(root: Path) -> str:
    """The `uri` of the catalog for pyiceberg."""
    return f"sqlite:///{root / FILE}"


def location_of(root: Path) -> str:
    """How metadata begin the names of files below the root. pyiceberg decodes no percent signs in it."""
    return f"file://{root}"


class DiskCatalog(SqlCatalog):
    """The catalog of a target in a directory."""

    @staticmethod
    def for_readers(root: Path) -> DiskCatalog:
        """The catalog of a target. Call it only if its file exists: SQLite would create one."""
        return DiskCatalog(NAME, uri=uri_of(root), init_catalog_tables="false")

    def locations(self) -> dict[tuple[str, str], str]:
        """The location of each table's newest metadata, by namespace and name.

        A new target's file exists before the catalog's own tables do; until then a reader finds nothing.
        """
        with self.engine.connect() as connection:
            try:
                found = connection.execute(text(_TABLES), {"n": NAME}).all()
            except OperationalError:
                # A catalog to which nothing was written has no such table; all other errors are real ones.
                if inspect(connection).has_table("iceberg_tables"):
                    raise
                return {}
        return {(namespace, name): location for namespace, name, location in found}


class WriterCatalog(DiskCatalog):
    """The catalog for the only process that may write it. Any thread may use it."""

    def __init__(self, root: Path) -> None:
        """Creates the file if there is none. Nothing is fenced until `take_over`."""
        super().__init__(NAME, uri=uri_of(root), warehouse=location_of(root))
        self._root = root
        self._known = KnownTables(self)
        self._token: int | None = None
        event.listen(self.engine, "connect", _begins_by_itself)
        event.listen(self.engine, "begin", self._begin)
        self.engine.dispose()  # close connections that were opened without these listeners

    def take_over(self) -> None:
        """Fence every earlier writer: none of its transactions commits after this one."""
        # Without a token `_begin` compares nothing, so the transaction below can replace another writer's.
        self._token = None
        with self.engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE IF NOT EXISTS {_TOKENS} (token INTEGER NOT NULL)"))
            held = connection.execute(text(f"SELECT max(token) FROM {_TOKENS}")).scalar() or 0
            connection.execute(text(f"DELETE FROM {_TOKENS}"))
            connection.execute(text(f"INSERT INTO {_TOKENS} VALUES (:token)"), {"token": held + 1})
        self._token = held + 1

    def load_table(self, identifier: str | Identifier) -> Table:
        """A table at its newest metadata, which are read only if this process did not write or read them."""
        namespace, name = self.namespace_from(identifier), self.table_name_from(identifier)
        with self.engine.connect() as connection:
            wanted = {"name": NAME, "namespace": ".".join(namespace), "table": name}
            location = connection.execute(text(_LOCATION), wanted).scalar()
        held = self._known.find((*namespace, name), location or "")
        if held is None:
            held = super().load_table(identifier)
            self._known.remember(held.metadata_location, held.metadata, held.io)
        return held

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit like pyiceberg, and remember the new metadata."""
        done = super().commit_table(table, requirements, updates)
        self._known.remember(done.metadata_location, done.metadata, table.io)
        return done

    def check_writer(self) -> None:
        """Does nothing: the process holds the directory's lock, and each transaction checks the token."""

    def confirm(self) -> None:
        """Does nothing: each transaction is durable, and has checked the token."""

    def thin(self, before: float) -> int:
        """Does nothing: the file has the newest state only. Returns 0."""
        return 0

    def _begin(self, connection: Connection) -> None:
        """Begin each transaction with SQLite's write lock, and check the token while holding it.

        So no takeover can come between the check and the commit.
        """
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        if self._token is None:
            return
        held = connection.exec_driver_sql(f"SELECT max(token) FROM {_TOKENS}").scalar()
        # docs/guarantees.md#each-change-is-in-a-target-once: a consumer that was replaced commits nothing.
        if held != self._token:
            connection.exec_driver_sql("ROLLBACK")
            raise Fenced(
                "another consumer has taken this target over",
                where=str(self._root),
                why=f"the catalog's token is {held}, and this consumer's is {self._token}",
                fix="leave it to the other consumer, or stop that one and start this one again",
            )


def _begins_by_itself(connection: Any, record: object) -> None:
    """Let SQLAlchemy begin transactions: Python's sqlite3 begins one only before a write."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={PATIENCE_MS}")
    # A commit survives the death of the process. As for the files of the tables, the file system decides when
    # it reaches the disk; after a power cut the catalog is as it was at one moment, with all its tables.
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")

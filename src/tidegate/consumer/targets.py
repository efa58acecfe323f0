"""Which targets there are: the one list that names them."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tidegate.consumer.delta.target import DeltaAddress
from tidegate.consumer.mysql.session import SCHEMES, MySqlServer
from tidegate.consumer.mysql.target import LANES, MySqlAddress
from tidegate.consumer.snapshots import target_directory
from tidegate.consumer.target import Address
from tidegate.consumer.upkeep import Upkeep
from tidegate.errors import InvalidInput

ICEBERG: Final = "iceberg"
"""The scheme of its addresses."""


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """What a database needs to be told beside its address."""

    name: str = ""
    """The consumer's, by which it knows its place again."""
    folder: Path | None = None
    """Of the consumer's own files; None: `tidegate-consumer-NAME` in the working directory."""
    lanes: int = LANES
    adopt: bool = False
    """Tables that are there already become the consumer's."""
    skip_ddls: Set[int] = frozenset()
    """The ts of DDLs that somebody has run at the target in other words."""
    transaction_bytes: int | None = None
    """The largest transaction of a lane, in bytes of staged rows (`mysql.parts.check_size`)."""


def address_of(
    target: str | Path, upkeep: Upkeep, database: DatabaseSettings, *, by_offset: bool = False
) -> Address:
    """What `--target` means; InvalidInput for what names none.

    `delta:///directory`, a plain path, `iceberg:///directory`, or `mysql://user@host:port/`. `by_offset`:
    the topics have no watermarks.
    """
    text = str(target)
    if text.partition("://")[0] not in SCHEMES:
        if database.adopt or database.skip_ddls:
            raise InvalidInput(
                f"{'--adopt' if database.adopt else '--skip-ddl'} is for databases",
                where=text,
                why="a target of files makes its own tables, and no other program writes them",
                fix="leave it out, or write --target mysql://user@host:port/",
            )
        if text.startswith(f"{ICEBERG}://"):
            # pyiceberg and SQLAlchemy take about a second to import, which other targets need not wait for.
            from tidegate.consumer.iceberg.snapshots import iceberg_directory
            from tidegate.consumer.iceberg.target import IcebergAddress

            return IcebergAddress(iceberg_directory(target), upkeep)
        return DeltaAddress(target_directory(target), upkeep)
    server = MySqlServer.from_uri(text)
    if not database.name:
        raise InvalidInput(
            "a consumer that writes a database needs a name",
            where=str(server),
            why="by it the consumer finds its position there again, and no other consumer may have it",
            fix="add --name NAME, and keep it",
        )
    folder = database.folder or Path(f"tidegate-consumer-{database.name.replace('/', '_')}").absolute()
    return MySqlAddress(
        *(server, database.name, folder, database.lanes),
        adopting=database.adopt,
        skipped=database.skip_ddls,
        transaction_bytes=database.transaction_bytes,
        by_offset=by_offset,
    )

"""The list of all kinds of targets, and how `--target` names them."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

from tidegate.consumer.applying.target import Address
from tidegate.consumer.delta.target import BucketAddress, DeltaAddress
from tidegate.consumer.iceberg.scheme import BUCKETS as ICEBERG_BUCKETS
from tidegate.consumer.iceberg.scheme import SCHEME as ICEBERG
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.lakehouse.write_mode import DEFAULT, WriteMode
from tidegate.consumer.mysql.atomicity import Atomicity, chosen
from tidegate.consumer.mysql.session import SCHEMES, MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.consumer.parquet.address import BUCKETS as LOG_BUCKETS
from tidegate.consumer.parquet.address import SCHEME as LOGS
from tidegate.consumer.parquet.address import LogAddress, LogBucketAddress, log_directory
from tidegate.consumer.snapshots import target_directory
from tidegate.errors import InvalidInput, shown
from tidegate.sink.lakehouse.object_store import SCHEME as BUCKETS
from tidegate.sink.lakehouse.object_store import Bucket, ObjectStore


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    """Settings of a database target; a target in an object store uses only `name` and `folder`."""

    name: str = ""
    """The consumer's name, under which the target stores its position."""
    folder: Path | None = None
    """The folder for the consumer's own files; None: `tidegate-consumer-NAME` in the working directory."""
    lanes: int | None = None
    """None: as many as the atomicity needs (`mysql.atomicity.chosen`)."""
    adopt: bool = False
    """Whether tables that exist already become the consumer's."""
    skip_ddls: Set[int] = frozenset()
    """The ts of DDLs that a person has executed at the target in another form."""
    transaction_bytes: int | None = None
    """The largest transaction of a lane, in bytes of staged rows (`mysql.parts.check_size`)."""
    atomicity: str = ""
    """none, table or global (`mysql.atomicity`); empty: as the address and the number of lanes say."""


def address_of(
    target: str | Path,
    upkeep: Upkeep,
    database: DatabaseSettings,
    *,
    by_offset: bool = False,
    write_mode: WriteMode | None = None,
) -> Address:
    """The target that `--target` names; InvalidInput if it names none.

    `delta:///directory`, a plain path, `iceberg:///directory`, `parquet:///directory`, one of these in a
    bucket, `delta+s3://bucket/prefix`, or `mysql://user@host:port/`. `by_offset`: the topics have no
    watermarks. `write_mode`: for Delta and Iceberg; None is the target's default.
    """
    text = str(target)
    is_iceberg = text.partition("://")[0] in (ICEBERG, ICEBERG_BUCKETS)
    if write_mode is not None and (keeps_every_change(text) or text.partition("://")[0] in SCHEMES):
        raise InvalidInput(
            "--write-mode is for Delta and Iceberg",
            where=shown(text),
            why="other targets have one way to update and delete rows",
            fix="leave it out, or write --target delta:///absolute/directory",
        )
    if upkeep.keep_changes_hours is not None and not keeps_every_change(text):
        raise InvalidInput(
            "--keep-changes-hours is for a change log",
            where=shown(text),
            why="other targets have tables, and no list of changes",
            fix=f"leave it out, or write --target {LOGS}:///absolute/directory",
        )
    if text.partition("://")[0] not in SCHEMES:
        given = {
            "--adopt": database.adopt,
            "--skip-ddl": database.skip_ddls,
            "--atomicity": database.atomicity,
        }
        if option := next((name for name, value in given.items() if value), ""):
            raise InvalidInput(
                f"{option} is for databases",
                where=shown(text),
                why="a target of files makes its own tables, and no other program writes them",
                fix="leave it out, or write --target mysql://user@host:port/",
            )
        if is_iceberg:
            return _iceberg(text, upkeep, database, write_mode or DEFAULT)
        if keeps_every_change(text):
            return _log(text, upkeep, database, by_offset=by_offset)
        if text.startswith(f"{BUCKETS}://"):
            return _in_a_bucket(ObjectStore(Bucket.from_uri(text)), upkeep, database, write_mode)
        return DeltaAddress(target_directory(target), upkeep, write_mode)
    server = MySqlServer.from_uri(text)
    folder = _own_folder(database, str(server))
    level, lanes = chosen(database.atomicity, database.lanes, text)
    return MySqlAddress(
        *(server, database.name, folder, lanes),
        adopting=database.adopt,
        skipped=database.skip_ddls,
        transaction_bytes=database.transaction_bytes,
        by_offset=by_offset,
        spreads=level is Atomicity.NONE,
    )


def keeps_every_change(target: str | Path) -> bool:
    """Whether `--target` names a target that needs all old values (`Target.every_change`)."""
    return str(target).startswith((f"{LOGS}:", f"{LOG_BUCKETS}:"))


def _iceberg(text: str, upkeep: Upkeep, database: DatabaseSettings, mode: WriteMode) -> Address:
    # Importing pyiceberg and SQLAlchemy takes about a second. Other targets need not wait for that.
    from tidegate.consumer.iceberg.snapshots import iceberg_directory
    from tidegate.consumer.iceberg.target import IcebergAddress, IcebergBucketAddress

    if not text.startswith(f"{ICEBERG_BUCKETS}:"):
        return IcebergAddress(iceberg_directory(text), upkeep, mode)
    store = ObjectStore(Bucket.from_uri(text, ICEBERG_BUCKETS))
    folder = _own_folder(database, str(store))
    return IcebergBucketAddress(store, database.name, folder, upkeep, mode)


def _in_a_bucket(
    store: ObjectStore, upkeep: Upkeep, database: DatabaseSettings, mode: WriteMode | None
) -> BucketAddress:
    return BucketAddress(store, database.name, _own_folder(database, str(store)), upkeep, mode)


def _log(text: str, upkeep: Upkeep, database: DatabaseSettings, *, by_offset: bool) -> Address:
    """The address of a change log; InvalidInput for topics without watermarks."""
    if by_offset:
        raise InvalidInput(
            "a change log needs a topic with watermarks",
            where=shown(text),
            why="without them the same change may come again later, and the log would have it twice",
            fix="choose a Delta or Iceberg target, or create a changefeed that sends watermarks",
        )
    if not text.startswith(f"{LOG_BUCKETS}:"):
        return LogAddress(log_directory(text), upkeep)
    store = ObjectStore(Bucket.from_uri(text, LOG_BUCKETS))
    return LogBucketAddress(store, database.name, _own_folder(database, str(store)), upkeep)


def _own_folder(settings: DatabaseSettings, where: str) -> Path:
    """The consumer's folder on this machine; InvalidInput if it has no name."""
    if not settings.name:
        raise InvalidInput(
            "a consumer whose target is not on this machine needs a name",
            where=where,
            why="by it the consumer finds its position there again, and no other consumer may have it",
            fix="add --name NAME, and keep it",
        )
    return settings.folder or Path(f"tidegate-consumer-{settings.name.replace('/', '_')}").absolute()

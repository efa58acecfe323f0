"""Where a target's catalog is: a SQLite file in a directory, or a chain of objects in a bucket.

Both are pyiceberg catalogs. On a disk each commit of a table is durable at once (`catalog`). In a bucket the
commits of all tables become durable together, with `confirm` (`bucket_catalog`).
"""

from __future__ import annotations

from tidegate.consumer.iceberg import catalog as on_disk
from tidegate.consumer.iceberg.bucket_catalog import BucketCatalog, BucketWriterCatalog
from tidegate.consumer.iceberg.catalog import DiskCatalog, WriterCatalog
from tidegate.consumer.iceberg.file_io import root_of
from tidegate.sink.lakehouse.object_store import ObjectStore
from tidegate.sink.lakehouse.store import DiskStore, Store

AnyCatalog = DiskCatalog | BucketCatalog
AnyWriterCatalog = WriterCatalog | BucketWriterCatalog


def catalog_of(store: Store) -> AnyCatalog | None:
    """The catalog of a target for readers; None: a directory has none."""
    if isinstance(store, ObjectStore):
        return BucketCatalog(store)
    assert isinstance(store, DiskStore)
    return DiskCatalog.for_readers(store.root) if (store.root / on_disk.FILE).exists() else None


def writer_catalog(store: Store, consumer: str) -> AnyWriterCatalog:
    """The catalog for the only process that may write it, which is of this consumer."""
    if isinstance(store, ObjectStore):
        return BucketWriterCatalog(store, consumer)
    assert isinstance(store, DiskStore)
    return WriterCatalog(store.root)


def location_of(store: Store) -> str:
    """How the locations of files below the root begin in metadata."""
    if isinstance(store, ObjectStore):
        return root_of(store)
    assert isinstance(store, DiskStore)
    return on_disk.location_of(store.root)


def path_in(store: Store, location: str) -> str | None:
    """The path of the table whose metadata are at a location; None if they are not below the root."""
    parts = location.removeprefix(f"{location_of(store)}/").split("/")
    return "/".join(parts[:2]) if len(parts) == 4 and parts[2] == "metadata" else None

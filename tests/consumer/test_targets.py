"""Values of --target, and the reasons to refuse one before anything is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.consumer.delta.target import BucketAddress, DeltaAddress
from tidegate.consumer.engine.watermark import Mode
from tidegate.consumer.iceberg.target import IcebergBucketAddress
from tidegate.consumer.job import run
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.lakehouse.write_mode import WriteMode
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.mysql.target import MySqlAddress
from tidegate.consumer.running.progress import Listener
from tidegate.consumer.settings import Settings
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.errors import InvalidInput
from tidegate.sink.lakehouse.object_store import Bucket, ObjectStore

NAMED = DatabaseSettings("shop/1")


def test_an_address_is_a_directory_or_a_server(tmp_path: Path) -> None:
    assert address_of(tmp_path, Upkeep(), NAMED) == DeltaAddress(tmp_path, Upkeep())
    assert address_of(f"delta://{tmp_path}", Upkeep(), NAMED) == DeltaAddress(tmp_path, Upkeep())
    found = address_of("mysql://me:geheim@db:3307/", Upkeep(), NAMED)
    assert isinstance(found, MySqlAddress)
    assert str(found) == "mysql://me@db:3307/ as shop/1"
    assert found.folder == Path("tidegate-consumer-shop_1").absolute()
    with pytest.raises(InvalidInput, match="iceberg:///absolute/directory or mysql://"):
        address_of("postgres://db/", Upkeep(), NAMED)


def test_an_address_of_iceberg_tables_in_a_bucket_wants_a_name() -> None:
    text = "iceberg+s3://lake/shop?endpoint=http://127.0.0.1:1"
    found = address_of(text, Upkeep(), NAMED, write_mode=WriteMode.COPY_ON_WRITE)
    assert isinstance(found, IcebergBucketAddress)
    assert (str(found), found.mode) == ("s3://lake/shop as Iceberg tables", WriteMode.COPY_ON_WRITE)
    assert found.folder == Path("tidegate-consumer-shop_1").absolute()
    with pytest.raises(InvalidInput, match="needs a name"):
        address_of(text, Upkeep(), DatabaseSettings())
    with pytest.raises(InvalidInput, match="is for databases"):
        address_of(text, Upkeep(), DatabaseSettings("one", adopt=True))
    with pytest.raises(InvalidInput, match="cannot be used") as refused:
        address_of("iceberg+s3://me:geheim@lake/a?key=geheim", Upkeep(), NAMED)
    assert "geheim" not in str(refused.value)
    assert "--target 'iceberg+s3://" in refused.value.fix


def test_a_database_wants_a_name_and_whole_transactions(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="needs a name"):
        address_of("mysql://me@db/", Upkeep(), DatabaseSettings())
    settings = Settings(
        "kafka://127.0.0.1:1/t?protocol=open-protocol",
        "mysql://me@127.0.0.1:1/",
        Mode.ROW,
        database=DatabaseSettings("shop", tmp_path / "own"),
    )
    with pytest.raises(InvalidInput, match="this target has no --mode row"):
        run(settings, lambda: False, Listener())
    assert not (tmp_path / "own").exists()


def test_a_folder_is_of_one_consumer(tmp_path: Path) -> None:
    server = MySqlServer("127.0.0.1", 1, "me", "")
    for _ in range(2):
        with MySqlAddress(server, "one", tmp_path / "own").opened():
            pass
    bucket = ObjectStore(Bucket("lake", "a", "http://127.0.0.1:1"))
    for other in (
        MySqlAddress(server, "other", tmp_path / "own"),
        BucketAddress(bucket, "one", tmp_path / "own"),
    ):
        with pytest.raises(InvalidInput, match="the folder is another consumer's"), other.opened():
            pass
    (tmp_path / "file").touch()
    blocked = MySqlAddress(server, "one", tmp_path / "file" / "own")
    with pytest.raises(InvalidInput, match="cannot be used"), blocked.opened():
        pass

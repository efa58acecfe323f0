"""The same promises as in `test_every_target`, kept by the targets that are at a server.

They are in a file of their own because the process for spare time, `tests/fixtures/filler.py`, has no server.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer import test_every_target
from tests.consumer.at_iceberg import deletes_in_small_files
from tests.consumer.each_target import AtDeltaInS3, AtIcebergInS3, AtMariaDb, AtParquetInS3, Place
from tests.consumer.test_every_target import (
    test_a_restart_after_any_step_finds_the_position_and_what_it_says,
    test_a_second_consumer_of_the_same_tables_is_refused,
    test_a_table_that_cannot_be_settled_stops_the_write_and_all_writers,
    test_an_older_open_target_writes_nothing_after_a_takeover,
    test_death_at_every_write_loses_and_doubles_nothing,
    test_what_is_somebody_elses_is_refused_and_left_as_it_was,
)
from tidegate.consumer.lakehouse.write_mode import WriteMode

__all__ = [
    "test_a_restart_after_any_step_finds_the_position_and_what_it_says",
    "test_a_second_consumer_of_the_same_tables_is_refused",
    "test_a_table_that_cannot_be_settled_stops_the_write_and_all_writers",
    "test_an_older_open_target_writes_nothing_after_a_takeover",
    "test_death_at_every_write_loses_and_doubles_nothing",
    "test_what_is_somebody_elses_is_refused_and_left_as_it_was",
]


@pytest.fixture(params=["delta-s3", "iceberg-s3", "parquet-s3", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Each target at a server."""
    if request.param == "mariadb":
        return AtMariaDb(request.getfixturevalue("mariadb"), tmp_path)
    s3 = request.getfixturevalue("s3")
    if request.param == "delta-s3":
        return AtDeltaInS3(s3, tmp_path)
    if request.param == "parquet-s3":
        return AtParquetInS3(s3, tmp_path)
    deletes_in_small_files(monkeypatch)
    return AtIcebergInS3(s3, tmp_path, WriteMode.MERGE_ON_READ)


def test_each_promise_is_tried_at_servers() -> None:
    assert set(__all__) == {name for name in vars(test_every_target) if name.startswith("test_")}

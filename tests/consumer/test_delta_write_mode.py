"""The write mode of a Delta target: it is chosen once, and without it nothing is new."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.consumer.at_iceberg import deletes_in_small_files
from tests.consumer.delta_table import MERGE, Begun
from tests.consumer.test_iceberg import KEYED, position
from tidegate.cli.consumer import app
from tidegate.consumer.ddl.ddl_steps import Create
from tidegate.consumer.delta.target import DeltaTarget
from tidegate.consumer.lakehouse.upkeep import Upkeep
from tidegate.consumer.lakehouse.write_mode import WriteMode
from tidegate.consumer.snapshots import open_snapshot
from tidegate.consumer.targets import DatabaseSettings, address_of
from tidegate.errors import InvalidInput

COPY = WriteMode.COPY_ON_WRITE


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    deletes_in_small_files(monkeypatch)


def test_a_target_keeps_the_mode_that_it_was_begun_with(tmp_path: Path) -> None:
    for begun, other in ((MERGE, COPY), (COPY, MERGE), (None, MERGE)):
        root = tmp_path / f"{begun}"
        made = Begun(root, begun)
        made.commit(1)
        made.target.close()
        with pytest.raises(InvalidInput, match="keeps the write mode") as refused:
            Begun(root, other)
        assert f"--write-mode {other}" in refused.value.fix
        for same in (begun, None):
            again = Begun(root, same)
            again.put({key: key for key in range(9)}, fresh=True)
            again.put({3: -3})
            again.put({}, deletes=(3,))
            again.commit(2)
            assert any(file.dead for file in again.files().values()) == (begun is MERGE)
            again.put({}, deletes=tuple(range(9)))
            again.commit(3)
            again.target.close()


def test_without_the_option_a_table_never_asks_for_new_readers(tmp_path: Path) -> None:
    made = Begun(tmp_path, None)
    made.put({key: key for key in range(40)}, fresh=True)
    made.put({3: -3}, deletes=(4,))
    made.commit(1)
    assert made.delta().protocol().min_reader_version == 1
    assert made.delta().to_pyarrow_table().num_rows == 39
    assert open_snapshot(tmp_path).tables["db.t"].dataset().count_rows() == 39
    made.target.close()


def test_the_option_is_for_targets_that_have_both_modes(tmp_path: Path) -> None:
    found = address_of(tmp_path, Upkeep(), DatabaseSettings(), write_mode=MERGE)
    with found.opened() as target:
        assert isinstance(target, DeltaTarget)
        target.recover()
        target.execute(Create(KEYED))
        target.commit(position(1))
    with pytest.raises(InvalidInput, match="for Delta and Iceberg"):
        address_of(f"parquet://{tmp_path}", Upkeep(), DatabaseSettings(), write_mode=MERGE)
    command = ["run", "--source", "kafka://h:1/t?protocol=open-protocol", "--write-mode", "copy-on-write"]
    shown = CliRunner().invoke(app, [*command, "--target", "mysql://me@h:1/", "--name", "x"])
    assert shown.exit_code
    assert "--write-mode is for Delta and Iceberg" in shown.output

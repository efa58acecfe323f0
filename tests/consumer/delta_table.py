"""A Delta target of one table, written step by step, and read by delta-rs alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable

from tests.consumer.test_iceberg import KEYED, position, rows
from tidegate.consumer.applying.net_effect import Effect
from tidegate.consumer.applying.target import TableChanges
from tidegate.consumer.ddl.ddl_steps import Create
from tidegate.consumer.delta.lake import DeltaLake
from tidegate.consumer.delta.target import DeltaTarget
from tidegate.consumer.lakehouse.write_mode import WriteMode
from tidegate.sink.lakehouse.live_files import LiveFile
from tidegate.sink.lakehouse.store import Store

MERGE = WriteMode.MERGE_ON_READ


class Begun:
    """A target of one table, `t`, written step by step."""

    def __init__(self, root: Path | Store, mode: WriteMode | None = MERGE) -> None:
        self.target = DeltaTarget(root, consumer="one", mode=mode)
        if self.target.recover() is None:
            self.target.execute(Create(KEYED))

    @property
    def lake(self) -> DeltaLake:
        return self.target.lake

    @property
    def path(self) -> str:
        return self.target.tables["db", "t"].path

    def put(self, values: dict[int, int], deletes: tuple[int, ...] = (), *, fresh: bool = False) -> None:
        gone = rows(KEYED, dict.fromkeys(deletes, 0)).select(["id"])
        effect = Effect(rows(KEYED, values), gone, np.full(len(values), fresh, np.bool_))
        self.target.write([partial(TableChanges, KEYED, effect)], position(0))

    def commit(self, at: int) -> None:
        self.target.commit(position(at))

    def files(self) -> dict[str, LiveFile]:
        return dict(self.lake.vectors.live(self.path).files)

    def log(self) -> Path:
        return self.lake.root / self.path / "_delta_log"

    def delta(self, version: int | None = None) -> DeltaTable:
        store = self.lake.store
        return DeltaTable(store.uri(self.path), version=version, storage_options=store.options)

    def held(self, version: int | None = None) -> dict[int, int]:
        """As delta-rs alone reads it, and as we do."""
        found = as_values(pa.table(self.delta(version).scan()))
        assert found == as_values(self.lake.read(self.path, version))
        return found


def trim(made: Begun) -> None:
    """Delete the commits before the newest, which are in a checkpoint."""
    for file in made.log().glob("*.json"):
        if int(file.name[:20]) < made.lake.version(made.path):
            file.unlink()


def as_values(found: pa.Table) -> dict[int, int]:
    values = dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True))
    assert len(values) == found.num_rows, "no key twice"
    return values

"""Stores for the tests of the embedded upstream."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tikv.cluster import Cluster
from tidegate.tikv.pd.tso import TsoMode


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes stores with regions at the given raw boundaries; they are closed at the end."""
    made: list[Cluster] = []

    def build(
        *boundaries: bytes, mode: TsoMode = TsoMode.SYSTEM, api_version: int = 1, stores: int = 1
    ) -> Cluster:
        made.append(Cluster(tmp_path / f"store{len(made)}", list(boundaries), mode, api_version, stores))
        return made[-1]

    yield build
    for cluster in made:
        cluster.close()

"""An applier over a directory of Iceberg tables, as a job puts it together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.iceberg.target import IcebergTarget
from tidegate.consumer.lakehouse import write_mode
from tidegate.consumer.lakehouse.directory_lock import OWN


def deletes_in_small_files(monkeypatch: pytest.MonkeyPatch, worn: float = 0.6) -> None:
    """Merges write delete files for the small files of tests, too, which otherwise they rewrite."""
    monkeypatch.setattr(write_mode, "TINY_BYTES", 0)
    monkeypatch.setattr(write_mode, "WORN", worn)


def applier_of(root: Path, time_zone: str = "UTC", **options: Any) -> Applier:
    """One that writes `root`; the target is its `target`."""
    return Applier(IcebergTarget(root), root / OWN, time_zone, **options)

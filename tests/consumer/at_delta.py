"""An applier over a directory of Delta tables, as a job puts it together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.delta.target import FOLDER, DeltaTarget
from tidegate.consumer.lakehouse.write_mode import WriteMode


def applier_of(root: Path, time_zone: str = "UTC", mode: WriteMode | None = None, **options: Any) -> Applier:
    """One that writes `root`; the target is its `target`."""
    return Applier(DeltaTarget(root, mode=mode), root / FOLDER, time_zone, **options)

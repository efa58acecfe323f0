"""A container's quota bounds how many cores count, although its affinity names all of the machine's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.cores import usable


@pytest.fixture(autouse=True)
def of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.parametrize(
    ("quotas", "own", "cores"),
    [
        ({}, "0::/", 8),
        ({"": "max 100000"}, "0::/", 8),
        ({"": "200000 100000"}, "0::/", 2),
        ({"": "150000 100000"}, "0::/", 2),
        ({"": "10000 100000"}, "0::/", 1),
        ({"": "6400000 100000"}, "0::/", 8),
        ({"a/b": "300000 100000"}, "0::/a/b", 3),
        ({"a": "100000 50000", "a/b": "max 100000"}, "0::/a/b", 2),
        ({"a": "100000 100000"}, "0::/other", 8),
        ({"": "400000 100000"}, "2:cpu:/docker/x", 4),
        ({"": "400000 100000"}, "0::/../../elsewhere", 4),
        ({"": "nonsense"}, "", 8),
        ({"": "1 0"}, "0::/", 8),
    ],
)  # fmt: skip
def test_the_least_quota_around_counts(quotas: dict[str, str], own: str, cores: int, tmp_path: Path) -> None:
    root, group = tmp_path / "cgroup", tmp_path / "own"
    group.write_text(f"3:memory:/m\n{own}\n")
    for name, quota in quotas.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "cpu.max").write_text(quota + "\n")
    assert usable(root, group) == cores


def test_without_cgroups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable(tmp_path / "none", tmp_path / "none either") == 8

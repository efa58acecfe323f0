"""`--golden DIR` over two cases, one of them with a single character altered: only that one fails."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_folder import OURS, lines

ROOT = Path(__file__).parents[1]


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/tidb/test_record.py",
        "tests/mounter/test_recorded_tables.py",
    ]
    command += ["--golden", str(folder), "--tb=no", "-rf", "--noconftest", "-p", "tests.fixtures.golden"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.integration
def test_an_altered_value_fails_its_case_and_the_counts_are_printed(tmp_path: Path) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    good = gzip.decompress((OURS / "rows" / "key_int_signed.jsonl.gz").read_bytes())
    (rows / "key_int_signed.jsonl").write_bytes(good)
    altered = list(lines("rows/key_int_small", ours=True))
    change = next(line for line in altered if line["kind"] == "kv" and line["is"] == "row")
    value = change["value"]
    change["value"] = value[:-1] + ("0" if value[-1] != "0" else "1")
    (rows / "key_int_small.jsonl").write_text("".join(json.dumps(line) + "\n" for line in altered))
    done = run(tmp_path)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == 1, done.stdout + done.stderr
    assert failed
    assert all("[key_int_small]" in line for line in failed)
    assert f"golden data of {tmp_path}" in done.stdout
    assert "row changes, insert" in done.stdout


@pytest.mark.integration
def test_a_folder_without_golden_data_fails(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode != 0
    assert "nothing was compared" in done.stdout

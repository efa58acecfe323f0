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


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "tests/tidb/test_record.py",
        "tests/mounter/test_recorded_tables.py",
        *more,
    ]
    command += ["--golden", str(folder), "--tb=no", "-rf", "--noconftest", "-p", "tests.fixtures.golden"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


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


@pytest.mark.integration
def test_other_forms_of_a_folder_are_judged_and_skipped_parts_are_named(tmp_path: Path) -> None:
    """`mounted` is absent, names are quoted, a copied row is first seen as an old value; unknown parts."""
    (tmp_path / "rows").mkdir()
    (tmp_path / "messages").mkdir()
    (tmp_path / "later").mkdir()
    records = list(lines("rows/key_int_small", ours=True))
    changes = [line for line in records if line["kind"] == "kv" and line["is"] == "row"]
    del changes[0]["mounted"]
    again = {line["key"] for line in changes if line["old_value"]}
    copied = next(line for line in changes[1:] if line["key"] in again and not line["old_value"])
    records.remove(copied)
    after = next(at for at, line in enumerate(records) if line["kind"] == "kv")
    ddl = next(line for line in records if line["kind"] == "ddl")
    records.insert(after, {**ddl, "type": 64})
    for line in records:
        if line["kind"] == "select":
            line["table"] = f"`{line['table']}`"
    written = "".join(json.dumps(line) + "\n" for line in records)
    (tmp_path / "rows" / "odd.jsonl").write_text(written)
    config = {"kind": "config", "protocol": "canal-json", "options": {"no-such-option": True}}
    config |= {"max_message_bytes": 100, "max_batch_size": 1, "time_zone": "UTC"}
    (tmp_path / "messages" / "newest.jsonl").write_text(json.dumps(config) + "\n")
    done = run(tmp_path, "tests/codec/test_golden_messages.py")
    assert done.returncode == 0, done.stdout + done.stderr
    for what in (
        "row changes that TiCDC could not mount",
        "first seen as an old value",
        "skipped: newest: refused: ",
        "later      skipped: no test here compares this folder",
    ):
        assert what in done.stdout, done.stdout

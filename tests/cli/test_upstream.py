"""The commands as a user types them: those that run for a while, or whose exit is tested, in processes of
their own; others in this process, because each start takes a second."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tidegate.cli.upstream import app, bank_line
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.kvclient.transaction import Transaction
from tidegate.workload.bank import BankStats

ROOT = Path(__file__).parents[2]
LOG = ROOT / "tests/golden/changelog/bank.jsonl.gz"
UNTIL = "470612974532558848"
COMMAND = [sys.executable, "-c", "from tidegate.cli.upstream import app; app()"]
PATIENCE_S = 240
ENV = os.environ | {"PYTHONPATH": str(ROOT / "src"), "COLUMNS": "200"}


def tidegate(*args: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    done = CliRunner(env={"COLUMNS": ENV["COLUMNS"]}).invoke(app, args)
    return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)


def started(*args: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, env=ENV, timeout=PATIENCE_S)


@contextmanager
def running(data_dir: Path, *args: str, pd: str = "127.0.0.1:0") -> Iterator[dict[str, Any]]:
    """`upstream run` until the block ends; it must then end by SIGTERM with exit code 0."""
    line = [*COMMAND, "run", "--data-dir", str(data_dir), "--pd", pd, "--json", *args]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=ENV)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()


def test_help_starts_without_heavy_imports() -> None:
    heavy = "grpc", "pyspark", "pyarrow", "numba", "rich.progress", "tidegate.kvclient"
    code = f"import sys, tidegate.cli.upstream; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=ENV, timeout=PATIENCE_S
    )
    assert found.stdout.strip() == "[]"
    shown = started("--help")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("run", "load", "tso", "dump", "workload"))


def test_a_log_is_loaded_shown_and_skipped_the_second_time(tmp_path: Path) -> None:
    with running(tmp_path / "up", "--tso", "manual", "--regions", "4") as ready:
        pd = ready["pd"]
        first = json.loads(started("load", "--pd", pd, str(LOG), "--until", UNTIL, "--json").stdout)
        again = json.loads(started("load", "--pd", pd, str(LOG), "--until", UNTIL, "--json").stdout)
        assert first["transactions"] > 300
        assert first["reached"] == int(UNTIL)
        assert (again["transactions"], again["skipped"]) == (0, first["transactions"])
        assert json.loads(tidegate("tso", "--pd", pd, "--json").stdout)["tso"] == int(UNTIL)
        moved = tidegate("tso", "--pd", pd, "--advance-to", str(int(UNTIL) + 7), "--json")
        assert json.loads(moved.stdout)["tso"] == int(UNTIL) + 7
        dumped = started("dump", "--pd", pd, "--at", UNTIL, "--json", "--table", "bank.accounts")
        table = json.loads(dumped.stdout)
        assert table["columns"] == ["id", "owner", "balance", "note", "updated"]
        assert len(table["rows"]) == 303
        assert table["rows"][0][:3] == ["1", "it's papa", "9917.3471"]
        people = tidegate("dump", "--pd", pd, "--limit", "1")
        assert "bank.transfers" in people.stdout
        assert "303 rows, 1 shown" in people.stdout
        unknown = tidegate("dump", "--pd", pd, "--table", "bank.nothing")
        assert unknown.returncode == 2
        assert "bank.accounts" in unknown.stderr


def test_a_restarted_upstream_is_found_again_and_has_kept_its_data(tmp_path: Path) -> None:
    with running(tmp_path / "up") as ready:
        client = PdClient(ready["pd"])
        txn = Transaction(client)
        txn.put(b"k", b"v")
        commit_ts = txn.commit()
    with running(tmp_path / "up", pd=ready["pd"]) as again:
        assert again["cluster_id"] == ready["cluster_id"]
        assert client.tso() > commit_ts
        assert Snapshot(client, commit_ts).get(b"k") == b"v"
    client.close()


def test_the_workload_continues_when_the_upstream_is_killed_and_restarted(tmp_path: Path) -> None:
    run = [*COMMAND, "run", "--data-dir", str(tmp_path / "up"), "--json", "--pd"]
    upstream = subprocess.Popen([*run, "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env=ENV)
    work = None
    try:
        assert upstream.stdout is not None
        pd = json.loads(upstream.stdout.readline())["pd"]
        line = [*COMMAND, "workload", "--pd", pd, "--accounts", "100", "--ddl-every", "500", "--json"]
        work = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=ENV)
        assert work.stdout is not None
        while json.loads(work.stdout.readline())["rows"] < 500:
            pass
        upstream.kill()
        upstream.wait()
        upstream = subprocess.Popen([*run, pd], stdout=subprocess.PIPE, text=True, env=ENV)
        before = json.loads(work.stdout.readline())["rows"]
        deadline = time.monotonic() + PATIENCE_S
        while json.loads(work.stdout.readline())["rows"] < before + 500:
            assert time.monotonic() < deadline
        work.send_signal(signal.SIGTERM)
        rest = work.stdout.read().splitlines()
        assert work.wait(PATIENCE_S) == 0
        assert json.loads(rest[-1])["event"] == "done"
        rows = json.loads(tidegate("dump", "--pd", pd, "--json", "--table", "bank.accounts").stdout)
        balance = rows["columns"].index("balance")
        units = sum(int(row[balance].replace(".", "")) for row in rows["rows"])
        assert units == 100 * 10_000 * 10_000
    finally:
        for process in filter(None, (work, upstream)):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["tso", "--pd", "nowhere"], "the address is not HOST:PORT"),
        (["load", "--pd", "127.0.0.1:1", "absent.jsonl.gz"], "a change log cannot be read"),
    ],
)
def test_a_wrong_option_is_exit_code_2_and_says_what_is_wrong(args: list[str], said: str) -> None:
    failed = started(*args)
    assert failed.returncode == 2
    assert said in failed.stderr
    assert "Traceback" not in failed.stderr


def test_regions_of_several_stores_are_listed_split_merged_and_moved(tmp_path: Path) -> None:
    with running(tmp_path / "up", "--stores", "3", "--regions", "2") as ready:
        pd = ready["pd"]
        assert len(set(ready["stores"])) == 3

        def region(*args: str) -> list[dict[str, Any]]:
            done = tidegate("region", *args, "--pd", pd, "--json")
            assert done.returncode == 0, done.stderr
            return [json.loads(line) for line in done.stdout.splitlines()]

        first, last = region("list")
        parts = region("split", str(first["id"]), "--key", "6d")
        assert [part["version"] for part in parts] == [2, 2]
        assert parts[1]["id"] == first["id"]
        (moved,) = region("transfer", str(last["id"]), "--to-store", "3")
        assert (moved["leader_store"], moved["term"]) == (3, 7)
        (merged,) = region("merge", str(parts[0]["id"]))
        assert (merged["id"], merged["version"]) == (first["id"], 4)
        assert [line["id"] for line in region("list")] == [first["id"], last["id"]]
        assert merged["roles"] == ["voter"] * 3
        (now,) = region("peers", str(last["id"]), "--learner", "2")
        assert (now["conf_ver"], now["roles"]) == (2, ["voter", "learner", "voter"])
        swap = ("--voter", "2", "--learner", "1", "--stay")
        joint = tidegate("region", "peers", str(last["id"]), *swap, "--pd", pd)
        assert joint.stdout.endswith("peers on 1 (demoting voter), 2 (incoming voter), 3\n"), joint
        (now,) = region("peers", str(last["id"]), "--leave")
        assert (now["conf_ver"], now["roles"]) == (6, ["learner", "voter", "voter"])
        people = tidegate("region", "list", "--pd", pd)
        assert f"region {first['id']}: [-inf, " in people.stdout
        assert people.stdout.splitlines()[1].endswith("leader store 3, peers on 1 (learner), 2, 3")
        (one,) = [line["peers"] for line in region("list") if line["id"] == last["id"]]
        assert [(each["store_id"], each["role"], each["leads"]) for each in one] == [
            (1, "learner", False),
            (2, "voter", False),
            (3, "voter", True),
        ]
        for args, text in (
            (("split", str(first["id"])), "too few keys to have a middle"),
            (("split", str(first["id"]), "--key", "ff"), "no valid key found for split"),
            (("split",), "name a region, or at least one --key"),
            (("split", "--key", "xyz"), "'xyz' is not hex"),
            (("merge", "99"), "there is no region 99"),
            (("transfer", str(first["id"]), "--to-store", "9"), "name one of these: 1, 2, 3"),
            (("move", str(first["id"]), "--from-store", "1", "--to-store", "2"), "has a voter on store 2"),
            (("peers", str(last["id"])), "name voters, learners or removals"),
            (("peers", str(last["id"]), "--voter", "7"), "name one of these: 1, 2, 3"),
            (("peers", str(last["id"]), "--leave"), "is not in joint state"),
        ):
            wrong = tidegate("region", *args, "--pd", pd)
            assert wrong.returncode == 2, wrong
            assert text in wrong.stderr, wrong.stderr
        for store in ("2", "3"):
            assert tidegate("fault", "stop-store", store, "--pd", pd).returncode == 0
        without = tidegate("region", "list", "--pd", pd).stdout
        assert without.splitlines()[1].endswith("leader none, peers on 1 (learner), 2, 3")


def test_faults_are_switched_on_shown_and_cleared(tmp_path: Path) -> None:
    with running(tmp_path / "up", "--stores", "3") as ready:
        pd = ready["pd"]

        def fault(*args: str) -> str:
            done = tidegate("fault", *args, "--pd", pd)
            assert done.returncode == 0, done.stderr
            return done.stdout

        assert fault("show") == "no faults\n"
        assert fault("delay", "--apply-ms", "2", "--scan-ms", "1") == "apply-delay: 2 ms\nscan-delay: 1 ms\n"
        assert "resolved-ts: frozen" in fault("resolved-ts", "freeze")
        assert "pd: stale" in fault("stale-pd", "on")
        assert "kv-error: server_is_busy, 10% of requests" in fault("kv-error", "server_is_busy")
        assert "store: 2 is down" in fault("stop-store", "2")
        assert "tso: frozen" in fault("tso", "freeze")
        assert "quota: 1000 bytes" in fault("quota", "1000")
        assert "snapshot-delay: 3 ms" in fault("delay", "--snapshot-ms", "3")
        assert "duplicate: 50% of requests" in fault("duplicate", "0.5")
        assert fault("cut-streams") == fault("congest")
        assert fault("clear") == "no faults\n"
        for args, text in (
            (("stop-store", "9"), "name one of these: 1, 2, 3"),
            (("kv-error", "nonsense"), "there is no kv error 'nonsense'"),
            (("capture-error", "congested", "--share", "7"), "a share of 7 is out of range"),
            (("delay", "--apply-ms", "99999999"), "out of range"),
            (("duplicate", "2"), "a share of 2 is out of range"),
            (("tso", "melt"), "'melt' is not one of freeze, thaw"),
            (("delay",), "name at least one"),
        ):
            wrong = tidegate("fault", *args, "--pd", pd)
            assert wrong.returncode == 2, wrong
            assert text in wrong.stderr, wrong.stderr


def test_a_cluster_keeps_its_stores_and_their_addresses(tmp_path: Path) -> None:
    with running(tmp_path / "up", "--stores", "3") as ready:
        before = ready["stores"]
    with running(tmp_path / "up") as ready:
        assert ready["stores"] == before
    wrong = started("run", "--data-dir", str(tmp_path / "up"), "--pd", "127.0.0.1:0", "--stores", "2")
    assert wrong.returncode == 2
    assert "of a cluster of 3 stores, not 2" in wrong.stderr


def test_the_live_line_of_a_workload_is_one_line() -> None:
    """A terminal can then cut it at its width; a line that wraps is not overwritten by the next one."""
    stats = BankStats(
        transactions=208, rows=3881, ddls=4, last_ddl="create table t(\n  id bigint)", seconds=10
    )
    line = bank_line(stats)
    assert line == "3881 rows in 208 transactions, 388 rows/s, 4 DDLs, last: create table t( id bigint)"
    assert bank_line(BankStats()) == "0 rows in 0 transactions, 0 rows/s, 0 DDLs"

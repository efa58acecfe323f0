"""A small disk that others fill while a changefeed runs: a warning, and everything continues by itself."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.test_capture import Running, bank, check_order, wait_for, work

from tidegate.control.metadata import Put
from tidegate.disk import BALLAST, Ballast, DiskFull, free_bytes
from tidegate.kvclient.pd import PdClient
from tidegate.server.metadata.sqlite import SqliteMetadata
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import BankWorkload

pytestmark = pytest.mark.integration
__all__ = ["bank"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small file system is not permitted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int = 0) -> Path:
    """Somebody else's file takes all room but `leave` bytes."""
    path = folder / "filler"
    with path.open("ab", buffering=0) as file, suppress(OSError):  # ENOSPC: somebody else was faster
        while (room := free_bytes(folder) - leave) > 0:
            file.write(bytes(min(room, 1 << 20)))
    return path


def test_a_ballast_makes_room_for_small_files_and_is_taken_again(disk: Path) -> None:
    ballast = Ballast(disk)
    assert ballast.keep(1) == ""
    filler = fill(disk)
    assert ballast.keep(5) == f"the disk of {disk} is full"
    assert (ballast.keep(9), ballast.full_since_ms) == (f"the disk of {disk} is full", 5)

    def write() -> int:
        try:
            return (disk / "small").write_bytes(bytes(50_000))
        except OSError as error:
            raise DiskFull("full", why=str(error)) from error

    assert ballast.small(write) == 50_000
    assert ballast.keep(11) != ""
    filler.unlink()
    assert (ballast.keep(12), ballast.full_since_ms) == ("", 0)
    assert (disk / BALLAST).stat().st_size > 0


def test_a_metadata_store_reports_a_full_disk_and_resumes_with_free_space(disk: Path) -> None:
    store = SqliteMetadata(disk / "metadata.db")
    assert store.transact([], [Put("/k", b"0")]).succeeded
    filler = fill(disk)
    for _ in range(2):  # the second time, nothing of the first is left behind
        with pytest.raises(DiskFull, match="the disk is full"):
            store.transact([], [Put("/large", bytes(1 << 20))])
    filler.unlink()
    assert store.transact([], [Put("/k", b"1")]).succeeded
    found = store.get("/k")
    assert found is not None
    assert found.value == b"1"
    assert store.get("/large") is None
    store.close()


def test_a_full_disk_is_a_warning_and_everything_resumes_with_free_space(
    upstream: EmbeddedUpstream,
    bank: BankWorkload,
    disk: Path,
    tmp_path: Path,
    pd: PdClient,
    request: pytest.FixtureRequest,
) -> None:
    running = Running(upstream.pd_addr, disk / "capture", tmp_path / "out")
    request.addfinalizer(running.stop)
    start_ts, early_ddls = pd.tso(), bank.stats.ddls
    running.create("one", start_ts=start_ts)
    work(bank, 100)
    running.wait_checkpoint("one", pd.tso())

    def warned(words: str) -> Any:
        feed = running.feed("one")
        assert feed["state"] in ("normal", "warning")
        return feed["state"] == "warning" and words in (feed["error"] or {}).get("message", "")

    for _ in range(request.config.getoption("--disk-rounds")):
        # The event store leaves a twentieth of the disk to others.
        filler = fill(disk, leave=2 << 20)
        work(bank, 100)
        wait_for(lambda: warned("the event store leaves 3 MiB to others"), "the event store to wait")
        fill(disk)
        work(bank, 200)
        wait_for(
            lambda: warned(f"the disk of {disk / 'capture'} is full, since 20"), "the disk to be noticed"
        )
        health = httpx.get(f"http://{running.address}/api/v2/health", trust_env=False, timeout=120)
        assert health.status_code == 503
        assert "is full" in health.text
        before = running.capture.pullers.processes["tidb"].pid
        os.kill(before, signal.SIGKILL)
        os.kill(running.pipeline_pid("one"), signal.SIGKILL)
        work(bank, 100)
        wait_for(
            lambda before=before: running.capture.pullers.processes["tidb"].pid != before, "another puller"
        )
        wait_for(lambda: warned("is full"), "the warning of the next incarnation")
        filler.unlink()
        running.wait_checkpoint("one", pd.tso())
        running.wait_state("one", "normal")
    rows, ddls = check_order(running.lines("one"))
    assert ddls == bank.stats.ddls - early_ddls
    running.create("two", start_ts=start_ts, target_ts=pd.tso())  # it has never seen a full disk
    running.wait_state("two", "finished")
    assert check_order(running.lines("two")) == (rows, ddls)
    assert rows > 0

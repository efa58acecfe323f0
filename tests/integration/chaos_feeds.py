"""Two changefeeds from one start, one of them paused and resumed, while all that may happen happens.

`run(seed)`: a bank with many DDLs (tables truncated, renamed, columns added, dropped) on a small cluster in
trouble, a capture with two feeds, and a collector that removes every version PD lets it. Between pauses the
capture loses its event store, or its puller, so that feeds restart from saved state. At the end both have
delivered the same, their catalogues are equal and upstream's, and nothing registered below the safepoint.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest import mock

from tests.integration.chaos import PD_MEMBERS, STORES, Trouble
from tests.integration.garbage import POLL_S, Garbage, registrations_checked
from tests.server.test_capture import Running, wait_for
from tidegate.disk import DiskFull
from tidegate.kvclient.pd import PdClient
from tidegate.server.catalogue.schema_tracker import load_catalogue
from tidegate.server.pulling.puller_process import store_dir
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.bank import SCHEMA, BankWorkload

FEEDS: Final = ("steady", "paused")
DDL_EVERY_ROWS: Final = 60
LONG_S: Final = 3.0
QUICKLY: Final = {
    "control.gc.REFRESH_S": 0.0,
    "server.changefeeds.housekeeping.HOUSEKEEPING_S": 0.1,
    "server.processor.upkeep.UPKEEP_S": 0.1,
    "server.changefeeds.placement.COUNTED_S": 0.1,
    "server.processor.reader_floor.FLOOR_S": 0.1,
    "server.catalogue.catalogues.SAVE_REST": 1,
    "server.catalogue.catalogues.RENAME_S": 0.5,
}
"""The held history follows delivery and saved state within seconds instead of minutes."""


@dataclass
class Outcome:
    """The result of a run."""

    ddls: int = 0
    rows: int = 0
    moves: int = 0
    collected: bool = False
    deeds: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        deeds = ", ".join(f"{name} {count}" for name, count in sorted(self.deeds.items()))
        return f"{self.rows} rows and {self.ddls} DDLs twice; safepoint moved {self.moves} times; {deeds}"


def run(seed: int, folder: Path, seconds: float) -> Outcome:
    """One run; what it found wrong is in the outcome."""
    outcome = Outcome()
    upstream = EmbeddedUpstream(folder / "upstream", regions=6, stores=STORES, pd_members=PD_MEMBERS)
    upstream._collector._poll_s = POLL_S
    with ExitStack() as stack:
        for name, value in QUICKLY.items():
            stack.enter_context(mock.patch(f"tidegate.{name}", value))
        stack.enter_context(upstream)
        stack.enter_context(registrations_checked(upstream, outcome.findings))
        pd = stack.enter_context(PdClient(upstream.pd_addr))
        bank = BankWorkload(upstream.pd_addr, seed, accounts=60, threads=1, ddl_every_rows=DDL_EVERY_ROWS)
        stack.callback(bank.close)
        bank.setup()
        running = Running(upstream.pd_addr, folder / "capture", folder / "out")
        stack.callback(running.stop)
        _drive(upstream, pd, bank, running, seed, seconds, outcome)
    return outcome


def _drive(
    upstream: EmbeddedUpstream,
    pd: PdClient,
    bank: BankWorkload,
    running: Running,
    seed: int,
    seconds: float,
    outcome: Outcome,
) -> None:
    start, before = pd.tso(), bank.stats.ddls
    for name in FEEDS:
        assert running.create(name, start_ts=start)["http"] == 200
    stop = threading.Event()
    garbage = Garbage(upstream, pd.tso)
    trouble = Trouble(upstream, pd, seed, stop)
    trouble.start()
    working = threading.Thread(target=bank.run, args=(None, stop), daemon=True)
    working.start()
    try:
        _handle(running, pd, Random(seed), seconds, outcome)
        wait_for(
            lambda: bank.stats.ddls - before > 5 and garbage.collected > start, "DDL, and some collection"
        )
    finally:
        stop.set()
        trouble.join()
        working.join(60)
    end = pd.tso()
    for name in FEEDS:
        running.wait_checkpoint(name, end)
        assert running.call("POST", f"/changefeeds/{name}/pause")["http"] == 200
    garbage.join()
    outcome.moves, outcome.collected = garbage.moves, garbage.collected > start
    outcome.findings += [repr(error) for error in trouble.unexpected + garbage.unexpected]
    _compare(running, pd, outcome)


def _handle(running: Running, pd: PdClient, random: Random, seconds: float, outcome: Outcome) -> None:
    """Pause one feed, continue the other, lose something, resume: in the long form twice.

    The first time the saved state is older, and only upstream's history is left.
    """
    rounds = [
        ("store lost", False),
        (random.choice(("store lost", "puller killed", "nothing lost")), random.random() < 0.5),
    ]
    for loss, saving in rounds if seconds >= LONG_S else rounds[:1]:
        running.wait_checkpoint("paused", pd.tso())
        with ExitStack() as full:
            if not saving:
                full.enter_context(
                    mock.patch("tidegate.server.catalogue.catalogues.Catalogues._write", _disk_full)
                )
            time.sleep(random.uniform(0.1, 0.5) * seconds)
            running.wait_checkpoint("paused", pd.tso())
            assert running.call("POST", "/changefeeds/paused/pause")["http"] == 200
        running.wait_checkpoint("steady", pd.tso())
        time.sleep(random.uniform(0.2, 0.4) * seconds)
        if loss != "nothing lost":
            _kill_puller(running, with_store=loss == "store lost")
        outcome.deeds[f"{loss}, catalogue {'saved' if saving else 'not saved'}"] += 1
        assert running.call("POST", "/changefeeds/paused/resume", {})["http"] == 200


def _disk_full(*given: Any) -> None:
    raise DiskFull("the disk is full", why="No space left on device")


def _kill_puller(running: Running, *, with_store: bool) -> None:
    puller = running.capture.pullers.processes["tidb"]
    os.kill(puller.pid, signal.SIGSTOP)
    if with_store:
        shutil.rmtree(store_dir(running.data_dir, running.capture.cluster), ignore_errors=True)
    os.kill(puller.pid, signal.SIGKILL)
    wait_for(lambda: running.capture.pullers.processes["tidb"].pid != puller.pid, "another puller")


def _compare(running: Running, pd: PdClient, outcome: Outcome) -> None:
    delivered = {name: _delivered(running, name) for name in FEEDS}
    rows, ddls = delivered[FEEDS[0]]
    outcome.rows, outcome.ddls = len(rows), len(ddls)
    for at, what in enumerate(("rows", "DDLs")):
        one, two = (delivered[name][at] for name in FEEDS)
        for name, lacks in zip(FEEDS, (two - one, one - two), strict=True):
            if lacks:
                outcome.findings.append(f"{name} lacks {len(lacks)} {what}, the first is {min(lacks)}")
    upstreams = {table.id: table.name for table in _tables_of(pd)}
    for name in FEEDS:
        found = _catalogue(running, name)
        if found != upstreams:
            outcome.findings.append(f"{name}'s catalogue is {found}, upstream's {upstreams}")


def _delivered(running: Running, name: str) -> tuple[set[Any], set[Any]]:
    lines = running.lines(name)
    rows = {(line["row"], line["key"], line["table"]) for line in lines if "row" in line}
    return rows, {line["ddl"] for line in lines if "ddl" in line}


def _catalogue(running: Running, name: str) -> dict[int, str]:
    """The bank's tables that a paused feed would begin with again, by id."""
    found = running.catalogue(name)
    return {table: full for table, full in found.items() if full.startswith(f"{SCHEMA}.")}


def _tables_of(pd: PdClient) -> list[Any]:
    ts = pd.tso()
    return [table for table in load_catalogue(pd, ts).entries(ts) if table.schema == SCHEMA]

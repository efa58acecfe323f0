"""The capture of `benchmarks.feeds`, with many changefeeds of one table each: created, written to, read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Self

import httpx
import numpy as np
from benchmarks.accounting import anonymous_mb, busy_seconds, cpu_seconds, parent, role_of, spent
from benchmarks.feeds_figures import Limit
from benchmarks.lag import Reader, committed, percentiles
from benchmarks.many import name_of
from benchmarks.many_tables import Many, Upstream
from confluent_kafka import Message
from tools.processes import descendants

from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.transaction import Transaction
from tidegate.tidb import keys

AT_ONCE: Final = 8
"""The number of changefeeds that are created at the same time."""
WRITES_A_S: Final = 5
"""Transactions per second for each table."""
TABLES_A_TXN: Final = 5
"""Tables in one transaction, to leave the cores to the capture: each has three requests, and one phase."""
PAUSED_S: Final = 0.1
"""The pause between two looks of a paused writer."""
READ_MS: Final = 20
"""How long reader and broker wait for more rows: a lag may come out twice this much longer."""
READ_BYTES: Final = 1 << 20
"""The broker waits for so many. Otherwise each of hundreds of Resolved a second would end a request."""
PREFIX: Final = "feeds-"
FILL_ROWS: Final = 1_000
"""Rows in a transaction that fills the table to load."""
LOOK_S: Final = 1.0
"""The pause between two lists of changefeeds while they open."""
BENCHMARK: Final = "benchmark"
WORKERS: Final = "workers"
DRIVER: Final = "driver"
"""Roles of processes (`accounting`)."""
PIECES: Final = "tidegate_pipeline_batch_seconds_count{"
"""How the lines of the metric begin that counts the pieces of work of a changefeed."""
WINDOW_S: Final = 2.0
"""The lag of the rows of so many seconds is compared with that of those before (`Settling`)."""
FALLS: Final = 0.8
"""The lag falls if it is less than this many times what it was."""
STEADY_WINDOWS: Final = 2
"""The lag has settled when it has not fallen in so many windows in a row."""
NAMES: Final = (
    *("127.0.0.1", "127.0.1", "127.1", "localhost", "2130706433"),
    *("0x7f.0.0.1", "0x7f.0.1", "0x7f.1", "0177.0.1", "0177.1"),
)
"""Names of this machine. All mean the same address for the system's resolver."""
LOST: Final = "a worker of the pipeline has ended"
"""The line in a changefeed's log then."""


class Feeds(Many):
    """The capture, and its changefeeds of one table each."""

    def create_feed(
        self,
        number: int,
        bootstrap: str = "",
        start_ts: int = 0,
        settings: dict[str, Any] | None = None,
        patience_s: float = 300.0,
    ) -> float:
        """Create the changefeed of the table with this number. Returns the seconds of the request.

        `settings`: its section `[tidegate]`.
        """
        uri = f"kafka://{bootstrap or self.sink_uri}/{PREFIX}{number}?protocol=open-protocol&partition-num=1"
        body: dict[str, Any] = {"changefeed_id": f"f{number}", "sink_uri": uri, "start_ts": start_ts}
        body |= {"replica_config": {"filter": {"rules": [name_of(number)]}, "tidegate": settings or {}}}
        began, url = time.monotonic(), f"http://{self.address}/api/v2/changefeeds"
        made = httpx.post(url, json=body, timeout=patience_s, trust_env=False)
        if made.status_code != httpx.codes.OK:
            raise RuntimeError(made.text)
        return time.monotonic() - began

    def create_all(self, numbers: Sequence[int], limit: Limit, bootstraps: Sequence[str] = ("",)) -> Creation:
        """Start to create changefeeds, with these brokers in turns. The first one is created on return."""
        # The first one makes the capture read upstream's catalogue.
        first = self.create_feed(numbers[0], bootstraps[0], patience_s=limit.left_s)
        creation = Creation(numbers, [first])

        def create(number: int) -> None:
            if not creation.is_given_up and limit.left_s:
                bootstrap = bootstraps[(number - numbers[0]) % len(bootstraps)]
                creation.took.append(self.create_feed(number, bootstrap, patience_s=limit.left_s))

        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="create")
        creation.calls = [pool.submit(create, number) for number in numbers[1:]]
        pool.shutdown(wait=False)
        return creation

    def delivering(self, numbers: Sequence[int], since: int) -> int:
        """How many of these changefeeds have a checkpoint beyond `since`."""
        for child in self.children.values():
            child.check()
        url = f"http://{self.address}/api/v2/changefeeds"
        found = httpx.get(url, timeout=60, trust_env=False).json()["items"]
        names = {f"f{number}" for number in numbers}
        return sum(one["id"] in names and int(one["checkpoint_tso"]) > since for one in found)

    def open_all(self, creation: Creation, limit: Limit, progress: Callable[[str], None]) -> None:
        """Wait until all are created, and each has delivered beyond the time of the last creation.

        Raises TimeoutError at the limit. No further ones are created then.
        """
        numbers = creation.numbers
        try:
            while not creation.is_done:
                progress(f"{len(creation.took)} of {len(numbers)} created; {self.usage()}")
                limit.sleep(LOOK_S)
            creation.raise_error()
            with PdClient(self.pd) as pd:
                asked = pd.tso()
            while (count := self.delivering(numbers, asked)) < len(numbers):
                progress(f"{count} of {len(numbers)} deliver; {self.usage()}")
                limit.sleep(LOOK_S)
        finally:
            creation.is_given_up = True

    def rows_loaded(self, number: int) -> int:
        """How many rows the initial load of a changefeed has delivered so far."""
        url = f"http://{self.address}/api/v2/changefeeds/f{number}"
        found = httpx.get(url, timeout=60, trust_env=False).json()["tidegate"]["initial_load"]
        return int(found["rows"])

    def pieces(self) -> float:
        """How many pieces of work all changefeeds together have delivered so far."""
        text = httpx.get(f"http://{self.address}/metrics", timeout=60, trust_env=False).text
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(PIECES))

    def memory_mb(self) -> float:
        """The memory of all processes of the capture together."""
        root = self.children["server"].pid
        return sum(map(anonymous_mb, (root, *(pid for pid, _ in descendants(root)))))

    def memory_by_role(self) -> dict[str, int]:
        """The same by role of process."""
        root = self.children["server"].pid
        found: dict[str, float] = {}
        for pid, command in ((root, "tidegate server"), *descendants(root)):
            role = role_of(command)
            found[role] = found.get(role, 0.0) + anonymous_mb(pid)
        return {role: round(mb) for role, mb in found.items()}

    def workers(self) -> list[int]:
        """The process ids of the application's workers."""
        there = [pid for pid, role in self._roles() if role == WORKERS]
        # PySpark's daemon has the same command line. It is the parent of the workers.
        return [pid for pid in there if parent(pid) in there]

    def application(self) -> int:
        """The process id of the Spark application. Raises TimeoutError if there is none."""
        found = [pid for pid, role in self._roles() if role == DRIVER]
        if not found:
            raise TimeoutError("the application does not run")
        return found[0]

    def lost_workers(self) -> int:
        """How many times a changefeed has begun again because a worker had died with its work."""
        logs = (self.folder / "data" / "feeds" / "default").glob("*/log")
        return sum(one.read_text(errors="replace").count(LOST) for one in logs)

    def _roles(self) -> list[tuple[int, str]]:
        return [(pid, role_of(command)) for pid, command in descendants(self.children["server"].pid)]

    def usage(self) -> str:
        """Memory and load of the machine now, in words."""
        return f"{self.memory_mb():,.0f} MB, load {os.getloadavg()[0]:.1f}"


def by_other_names(bootstrap: str, count: int) -> list[str]:
    """The address of a broker of this machine by so many names, at least one and at most all of `NAMES`."""
    return [f"{name}:{bootstrap.rpartition(':')[2]}" for name in NAMES[: max(1, count)]]


class Creation:
    """The creation of many changefeeds."""

    def __init__(self, numbers: Sequence[int], took: list[float]) -> None:
        """`numbers`: those of their tables."""
        self.numbers, self.took = numbers, took
        """The seconds of each request that was answered."""
        self.calls: list[Any] = []
        self.is_given_up = False
        """Whether no further one is created."""

    @property
    def is_done(self) -> bool:
        """Whether all were created or have failed."""
        return all(one.done() for one in self.calls)

    def raise_error(self) -> None:
        """Raise the error of a creation that has failed."""
        for one in self.calls:
            one.result()


@dataclass(frozen=True, slots=True)
class Used:
    """The CPU of a stretch of time."""

    wall_s: float
    own: dict[str, float]
    """CPU seconds by role of the capture's processes."""
    others: dict[str, float]
    """The same of upstream, broker and benchmark."""
    machine_s: float
    """CPU seconds of everything on the machine."""

    @property
    def cores(self) -> float:
        """The cores that the capture used."""
        return round(sum(self.own.values()) / self.wall_s, 3)

    def percent(self) -> dict[str, float]:
        """Per cent of a core by role of the capture's processes."""
        return {role: round(100 * cpu / self.wall_s, 1) for role, cpu in self.own.items()}

    def others_percent(self) -> dict[str, float]:
        """The same of the others, and of everything on the machine."""
        both = self.others | {"machine": self.machine_s}
        return {role: round(100 * cpu / self.wall_s, 1) for role, cpu in both.items()}

    def ms_a_thousand_rows(self, rows: float) -> dict[str, float]:
        """Milliseconds of CPU for a thousand of the rows that were delivered, by role; others included."""
        both = self.own | self.others
        return {role: round(1e6 * cpu / rows, 2) for role, cpu in both.items()}

    def ms_a_feed(self, feeds: int) -> dict[str, float]:
        """Milliseconds of CPU per changefeed and second, by role."""
        return {role: round(1000 * cpu / self.wall_s / feeds, 3) for role, cpu in self.own.items()}


class Meter:
    """Measures the CPU from its making to `read`."""

    def __init__(self, product: Feeds, others: Mapping[str, int]) -> None:
        """`others`: by name, the process ids of what is not part of the capture."""
        self._product, self._others = product, others
        self._began, self._machine = time.monotonic(), busy_seconds()
        self._own, self._their = self._now()

    def read(self) -> Used:
        """The use until now."""
        own, their = self._now()
        wall_s, machine_s = time.monotonic() - self._began, busy_seconds() - self._machine
        return Used(wall_s, spent(self._own, own), spent(self._their, their), machine_s)

    def _now(self) -> tuple[dict[str, float], dict[str, float]]:
        ledger = self._product.ledger
        assert ledger is not None
        their = {name: cpu_seconds(pid) or 0.0 for name, pid in self._others.items()}
        return ledger.cpu(), their | {BENCHMARK: time.process_time()}


class RowWriters:
    """Commits rows to tables at a rate during the `with` block, except between `pause` and `resume`."""

    def __init__(self, pd_address: str, tables: Sequence[int], rows: int, row: bytes) -> None:
        """`rows`: per second, for each table."""
        self._pd_address, self._row = pd_address, row
        self._size = max(1, rows // WRITES_A_S)
        self._done, self._is_paused = threading.Event(), threading.Event()
        parts = [tables[at : at + TABLES_A_TXN] for at in range(0, len(tables), TABLES_A_TXN)]
        # At different times, as those of applications.
        delays_s = [number / len(parts) / WRITES_A_S for number in range(len(parts))]
        places = zip(parts, delays_s, strict=True)
        self._threads = [threading.Thread(target=self._write, args=place) for place in places]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join()

    def pause(self) -> None:
        """Begin no transaction until `resume`."""
        self._is_paused.set()

    def resume(self) -> None:
        """Continue at the rate. Rows of the pause are not written later."""
        self._is_paused.clear()

    def _write(self, tables: Sequence[int], delay_s: float) -> None:
        with PdClient(self._pd_address) as pd:
            due, first = time.monotonic() + delay_s, 1
            while not self._done.wait(max(0.0, due - time.monotonic())):
                if self._is_paused.is_set():
                    due = time.monotonic() + PAUSED_S
                    continue
                due += 1 / WRITES_A_S
                transaction = Transaction(pd, one_phase=True)
                for table in tables:
                    for handle in range(first, first + self._size):
                        transaction.put(keys.int_record(Upstream.id_of(table), handle), self._row)
                first += self._size
                transaction.commit()


@dataclass
class FeedReader(Reader):
    """Also notes when each topic gets its first row that was committed after `watch`."""

    _since_ms: float = float("inf")
    _first: dict[str, float] = field(default_factory=dict)
    """When the first such row of each topic was read (monotonic)."""
    resolved: int = 0
    """The number of messages without rows."""

    def watch(self) -> None:
        """Note the first rows that are committed from now on."""
        self._since_ms, self._first = time.time() * 1000, {}

    def first_rows(self) -> list[float] | None:
        """When each topic's first row since `watch` was read (monotonic). None until all have one."""
        found = list(self._first.values())
        return found if len(found) == len(self.topics) else None

    def _take(self, message: Message, now: float, stamp: float) -> None:
        super()._take(message, now, stamp)
        # In the other order than `watch` sets them: a row of before never gets into the new dict.
        first, since_ms, found = self._first, self._since_ms, committed(message)
        self.resolved += not found
        if message.topic() not in first and any(ms > since_ms for ms in found):
            first[message.topic()] = stamp


@contextmanager
def reading(bootstrap: str, numbers: Sequence[int]) -> Iterator[FeedReader]:
    """One reader of their topics for the whole run, because a new one would have to catch up first."""
    topics = [f"{PREFIX}{number}" for number in numbers]
    reader = FeedReader(bootstrap, topics, 1, look_ms=READ_MS, fetch_ms=READ_MS, fetch_bytes=READ_BYTES)
    thread = threading.Thread(target=reader.run, name="lag-reader", daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        reader.stop()
        thread.join()


class Settling:
    """Whether the lag has settled: it falls no longer. A lag that rises has settled, too."""

    def __init__(self) -> None:
        self._last, self._windows = float("inf"), 0

    def take(self, lag_ms: float) -> bool:
        """Take the lag of one window; infinite while no row came."""
        is_steady = lag_ms < float("inf") and lag_ms >= FALLS * self._last
        self._windows = self._windows + 1 if is_steady else 0
        self._last = lag_ms
        return self._windows >= STEADY_WINDOWS


def settle(reader: Reader, at_most_s: float, limit: Limit) -> str:
    """Wait until the lag of the rows that arrive has settled. Says in words how long that took."""
    settling, began = Settling(), time.monotonic()
    while True:
        first = len(reader.arrived)
        limit.sleep(WINDOW_S)
        kept = reader.lags[first : len(reader.arrived)]
        is_settled = settling.take(float(np.percentile(kept, 90)) if kept else float("inf"))
        took_s = time.monotonic() - began
        if is_settled:
            return f"the lag had settled after {took_s:.0f} s"
        if took_s >= at_most_s:
            return f"the lag was still falling after {took_s:.0f} s"


def lags(reader: Reader, seconds: float, limit: Limit) -> tuple[dict[str, Any], float]:
    """The lag from commit to readable of rows that arrive within `seconds`, and their number per second.

    `p99_by_s`: that of the rows of each second, in ms; 0: none has arrived.
    """
    first, began = len(reader.arrived), time.monotonic()
    time.sleep(min(seconds, limit.left_s))
    kept = np.array(reader.lags[first : len(reader.arrived)])
    if len(kept) == 0:
        raise TimeoutError("no row was read")
    took_s, at = time.monotonic() - began, np.array(reader.arrived[first : first + len(kept)]) - began
    each = (kept[(at >= second) & (at < second + 1)] for second in range(round(took_s)))
    by_second = [round(float(np.percentile(some, 99))) if len(some) else 0 for some in each]
    return {**percentiles(kept), "p99_by_s": by_second}, round(len(kept) / took_s)


def first_row_s(product: Feeds, bootstrap: str, number: int, limit: Limit) -> tuple[float, float]:
    """Create one more changefeed, of a table with a row. Returns the seconds until the request was answered,
    and until the row was readable.
    """
    with PdClient(product.pd) as pd:
        start_ts = pd.tso()
        transaction = Transaction(pd)
        transaction.put(keys.int_record(Upstream.id_of(number), 1), product.row())
        transaction.commit()
    began = time.monotonic()
    took_s = product.create_feed(number, bootstrap, start_ts, patience_s=limit.left_s)
    with reading(bootstrap, [number]) as reader:
        limit.wait(lambda: reader.arrived, 0.02)
        return took_s, reader.arrived[0] - began


def fill(product: Feeds, number: int, rows: int, limit: Limit) -> int:
    """Commit rows to a table. Returns their number, which is smaller at the limit."""
    row, table_id = product.row(), Upstream.id_of(number)
    with PdClient(product.pd) as pd:
        for first in range(0, rows, FILL_ROWS):
            if not limit.left_s:
                return first
            transaction = Transaction(pd)
            for handle in range(first, min(rows, first + FILL_ROWS)):
                transaction.put(keys.int_record(table_id, handle), row)
            transaction.commit()
    return rows

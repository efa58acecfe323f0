"""CPU seconds and memory of processes, from /proc: by role, with their children, while they run.

A `Ledger` follows process trees from their roots. CPU is user plus system time of every live process plus
that of the children it has reaped, so nothing is lost when a worker ends. Memory is the peak of anonymous
resident memory, which a process itself allocated. Mapped files of the event store do not count: they are in
the page cache and depend on the load of the machine.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.processes import descendants

TICK: Final = os.sysconf("SC_CLK_TCK")
SAMPLE_S: Final = 0.2
ROLES: Final = (
    ("JVM", ("org.apache.spark.deploy.SparkSubmit",)),  # first: its command line contains the others
    ("puller", ("benchmarks.puller_probe", "tidegate.server.pulling.puller_process")),
    ("driver", ("benchmarks.pipeline_probe", "tidegate.pipeline.application")),
    ("workers", ("tidegate.pipeline.daemon", "tidegate.consumer.reading.daemon", "tidegate.verify.daemon")),
    ("workers", ("benchmarks.consumer_probe pyspark", "tidegate.consumer.reading.fetch_workers")),
    ("source", ("pyspark.sql.streaming.python_streaming_source_runner",)),
    ("planners", ("pyspark.sql.worker.",)),
    ("consumer", ("tidegate consumer", "benchmarks.consumer_probe run")),
    ("MariaDB", ("mariadbd",)),
    ("broker", ("kafka.Kafka",)),
    ("verify", ("tidegate verify",)),
    ("player", ("benchmarks.player",)),
    ("control", ("tidegate server", "benchmarks.control_probe")),
)
"""The role of a process, and what its command line contains. The first match counts."""
UNKNOWN: Final = "other"


def role_of(command: str) -> str:
    """The role of a process. UNKNOWN if it has none of ours."""
    return next((role for role, marks in ROLES if any(mark in command for mark in marks)), UNKNOWN)


def cpu_seconds(pid: int) -> float | None:
    """User and system time of a process and its reaped children. None if it does not exist any more."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return sum(int(fields[i]) for i in (11, 12, 13, 14)) / TICK


def parent(pid: int) -> int:
    """The process id of a process's parent. 0 if it does not exist any more."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def busy_seconds() -> float:
    """CPU seconds that this machine has spent on anything since it was started."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[1:9])
    return (user + nice + system + irq + softirq + steal) / TICK


def anonymous_mb(pid: int) -> float:
    """Anonymous resident memory of a process. 0 if it does not exist any more."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended between the listing and the reading
    return 0.0


@dataclass(slots=True)
class _Account:
    role: str
    cpu_s: float
    peak_mb: float


class Ledger:
    """Follows the process trees of `roots`, including the roots, until `close`."""

    def __init__(self, roots: Iterable[int]) -> None:
        self._roots = list(roots)
        self._accounts: dict[int, _Account] = {}
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._run, name="ledger", daemon=True)
        self.sample()
        self._sampler.start()

    def sample(self) -> None:
        """Update the accounts of all processes."""
        live = [(root, _command(root)) for root in self._roots]
        for root in self._roots:
            live += descendants(root)
        with self._lock:
            for pid, command in live:
                cpu = cpu_seconds(pid)
                if cpu is None:
                    continue
                account = self._accounts.setdefault(pid, _Account(UNKNOWN, 0.0, 0.0))
                if account.role == UNKNOWN:  # a process that has just begun has no command line yet
                    account.role = role_of(command)
                account.cpu_s, account.peak_mb = cpu, max(account.peak_mb, anonymous_mb(pid))
            gone = self._accounts.keys() - {pid for pid, _ in live}
            for pid in gone:  # the parent's own time includes it now
                self._accounts[pid].cpu_s = 0.0

    def cpu(self) -> dict[str, float]:
        """CPU seconds by role since each process began."""
        self.sample()
        found: dict[str, float] = {}
        with self._lock:
            for account in self._accounts.values():
                found[account.role] = found.get(account.role, 0.0) + account.cpu_s
        return found

    def reset_peaks(self) -> None:
        """Forget the peaks seen so far."""
        with self._lock:
            for account in self._accounts.values():
                account.peak_mb = 0.0

    def peaks(self) -> dict[str, float]:
        """Peak anonymous memory in MB by role. If several processes have a role, that of the largest."""
        self.sample()
        found: dict[str, float] = {}
        with self._lock:
            for account in self._accounts.values():
                found[account.role] = round(max(found.get(account.role, 0.0), account.peak_mb), 1)
        return found

    def close(self) -> None:
        """Stop sampling."""
        self._done.set()
        self._sampler.join()

    def _run(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.sample()


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """CPU seconds by role between two readings."""
    return {role: round(max(0.0, after[role] - before.get(role, 0.0)), 2) for role in after}

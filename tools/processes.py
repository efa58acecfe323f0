"""Child processes of demo and tests: start them, read their lines, and end them so that none is left running."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from tidegate.launcher import bound

KEPT_LINES = 400


class ChildError(Exception):
    """A child process ended or did not become ready. The message has its last lines."""


class Child:
    """One process, with JSON lines on its standard output and a log file for the rest."""

    def __init__(self, name: str, command: Sequence[str | Path], log: Path) -> None:
        self.name, self._log_path = name, log
        self._log: IO[bytes] = log.open("ab")
        self._process = subprocess.Popen(
            bound(command, signal.SIGTERM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self.lines: deque[dict[str, Any]] = deque(maxlen=KEPT_LINES)
        self._listeners: list[Callable[[dict[str, Any]], None]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def on_line(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """Call `listener` with every later JSON line."""
        self._listeners.append(listener)

    def wait_line(self, wanted: Callable[[dict[str, Any]], bool], patience_s: float = 240) -> dict[str, Any]:
        """The first JSON line for which `wanted` is true. Earlier lines count as well."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            found = next((line for line in list(self.lines) if wanted(line)), None)
            if found is not None:
                return found
            if self._process.poll() is not None and not self._reader.is_alive():
                break
            time.sleep(0.02)
        raise ChildError(f"{self.name} did not get ready.\n{self.tail()}")

    def wait(self, patience_s: float) -> int:
        """Wait for the end and return the exit code."""
        try:
            return self._process.wait(patience_s)
        except subprocess.TimeoutExpired as error:
            raise ChildError(f"{self.name} did not end within {patience_s:.0f} s.\n{self.tail()}") from error

    def check(self) -> None:
        """Raise if the process has ended unexpectedly."""
        if self._process.poll() is not None:
            raise ChildError(f"{self.name} ended with {self._process.returncode}.\n{self.tail()}")

    @property
    def ended(self) -> bool:
        """Whether the process has ended and its lines are read."""
        return self._process.poll() is not None and not self._reader.is_alive()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL to the process itself, and wait for its end."""
        self._process.kill()
        self._process.wait()

    def ask_to_end(self) -> None:
        """Send SIGTERM if it still runs."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def end(self, patience_s: float = 10) -> None:
        """Send SIGTERM, then SIGKILL to its whole process group."""
        self.ask_to_end()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def tail(self, lines: int = 25) -> str:
        """The last lines of its log."""
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-lines:])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for raw in self._process.stdout:
            try:
                line = json.loads(raw)
            except ValueError:
                self._log.write(raw)
                self._log.flush()
                continue
            self.lines.append(line)
            for listener in self._listeners:
                listener(line)


def descendants(pid: int) -> list[tuple[int, str]]:
    """(pid, command line) of every process below `pid`, parents first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], list(children.get(pid, []))
    while waiting:
        one = waiting.pop(0)
        try:
            command = Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found.append((one, command))
        waiting += children.get(one, [])
    return found

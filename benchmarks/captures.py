"""The cost of sharing a changefeed among captures, and the time until others take over when one ends.

    python -m benchmarks.captures [--tables 1000] [--active 100] [--captures 3] [--ttl 3]
                                  [--moves 3] [--kills 2] [--json FILE]

Several `tidegate server` with a real etcd share one changefeed of all tables (copies of the narrow one, as in
`benchmarks.tables`) into a real Kafka broker, all on this machine. `--active` tables get one row per second
each.

- scheduled: seconds from `changefeed create` until all captures deliver and the checkpoint has passed the
  time of that call;
- undisturbed, moved: the longest time for which the checkpoint did not change, in milliseconds. Undisturbed:
  over 10 s. Moved: during the drain of a capture until the others have its tables, and during its return;
- owner, other: seconds from SIGKILL of the owner, or of another capture, until the checkpoint has passed the
  time of the kill. The TTL of the session in etcd is `--ttl` seconds.

The checkpoint is read every 20 ms over HTTP from a capture that lives. A killed capture is started again
before the next one is killed. With fewer cores than captures, the number of cores limits the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
from benchmarks.broker import new_topic, running_broker
from benchmarks.many_tables import Many, Upstream
from benchmarks.product import FEED, tidegate
from benchmarks.rig import READY_S, ROOT, eventually
from benchmarks.show import Ticker, machine, table
from benchmarks.tables import OfActive
from tools.longest_pause import LongestPause

from tidegate.kvclient.pd import PdClient

LOOK_S: Final = 0.02
QUIET_S: Final = 10.0
PATIENCE_S: Final = 300.0
SETTLE_S: Final = 8.0
"""The owner gives ranges to a capture 5 s after its first answer, and lets it pull them before."""


@contextmanager
def running_etcd() -> Iterator[str]:
    """The endpoints of a new etcd, which ends with the `with` block."""
    services = ROOT / "tools" / "services"
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-etcd-", ignore_cleanup_errors=True) as folder:
        command: list[str | Path] = [
            services,
            "start",
            "etcd",
            "--dir",
            folder,
            "--owner",
            str(os.getpid()),
            "--json",
        ]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        yield json.loads(done.stdout)["etcd"]["endpoints"]
        subprocess.run([services, "stop", "--dir", folder], check=True)


class Captures(Many):
    """The product with several captures."""

    def __init__(
        self,
        folder: Path,
        upstream: Upstream,
        sink_uri: str,
        etcd: str,
        names: str,
        ttl: int,
        cores: int = 1,
    ) -> None:
        """`cores`: how many cores the application of each capture uses."""
        super().__init__(folder, upstream, sink_uri)
        self._etcd, self._names, self._ttl, self._cores = etcd, names, ttl, cores
        self.addresses: dict[str, str] = {}
        self._client = httpx.Client(timeout=30, trust_env=False)

    def serve(self, pd: str) -> None:
        """Start all captures."""
        for name in self._names:
            self.start_capture(name)
        self.address = self.addresses[self._names[0]]

    def start_capture(self, name: str) -> None:
        """Start one capture with its own data folder. After a restart it has the same port."""
        command = tidegate("server", "--pd", self.pd, "--data-dir", self.folder / name, "--json")
        command += ["--etcd", self._etcd, "--session-ttl", str(self._ttl), "--log-level", "warn"]
        command += [
            "--spark-master",
            f"local[{self._cores}]",
            "--addr",
            self.addresses.get(name, "127.0.0.1:0"),
        ]
        child = self._child(name, command)
        self.addresses[name] = child.wait_line(lambda line: "addr" in line, READY_S)["addr"]

    def owner(self) -> str:
        """Wait for an owner. Returns its name."""

        def one() -> str:
            found = [name for name in self._names if self._get(name, "/status").get("is_owner")]
            return found[0] if len(found) == 1 else ""

        name: str = eventually("one owner", one, PATIENCE_S, LOOK_S)
        return name

    def kill(self, name: str) -> None:
        """Kill a capture with all its processes. Later calls use another capture's API."""
        child = self.children.pop(name)
        self.address = next(self.addresses[one] for one in self._names if one != name)
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(30)

    def checkpoint(self) -> int:
        """The checkpoint. 0 if no capture can answer."""
        with contextlib.suppress(httpx.HTTPError, ValueError, KeyError):
            answer = self._client.get(f"http://{self.address}/api/v2/changefeeds/{FEED}")
            return int(answer.json()["checkpoint_ts"])
        return 0

    def id_of(self, name: str) -> str:
        """The id of a capture in `tidegate capture list`."""
        items = self._client.get(f"http://{self.address}/api/v2/captures").json()["items"]
        return str(next(one["id"] for one in items if one["address"] == self.addresses[name]))

    def deliver(self, names: str) -> None:
        """Wait until these captures, and no others, deliver."""
        wanted = {self.addresses[name] for name in names}

        def same() -> bool:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                reported = self._client.get(f"http://{self.address}/api/v2/changefeeds/{FEED}").json()
                found = reported.get("tidegate", {}).get("captures", [])
                return {one["address"] for one in found if one["running"]} == wanted and len(found) >= len(
                    wanted
                )
            return False

        eventually(f"{names} deliver", same, PATIENCE_S, LOOK_S)

    def longest_stop_ms(self, until: Callable[[], bool]) -> float:
        """The longest time for which the checkpoint did not change, until `until` is true."""
        pause, looked_at = LongestPause(time.monotonic()), 0.0
        while True:
            found, now = self.checkpoint(), time.monotonic()
            pause.see(found, now)
            if now - looked_at > 0.5:
                looked_at = now
                if until():
                    return round(1000 * pause.seconds)
            time.sleep(LOOK_S)

    def passes(self, ts: int, since: float) -> float:
        """Seconds until the checkpoint has passed a ts."""
        eventually("the checkpoint", lambda: self.checkpoint() > ts, PATIENCE_S, LOOK_S)
        return round(time.monotonic() - since, 2)

    def delivers(self, name: str, wanted: bool) -> bool:
        """Whether a capture runs ranges (`wanted`), or runs none (not `wanted`)."""
        reported = self._client.get(f"http://{self.address}/api/v2/changefeeds/{FEED}").json()
        found = reported.get("tidegate", {}).get("captures", [])
        return any(one["address"] == self.addresses[name] and one["running"] for one in found) is wanted

    def _get(self, name: str, path: str) -> dict[str, Any]:
        with contextlib.suppress(httpx.HTTPError, ValueError):
            found: dict[str, Any] = self._client.get(f"http://{self.addresses[name]}{path}", timeout=2).json()
            return found
        return {}


def moves(captures: Captures, names: str, count: int, progress: Callable[[str], None]) -> list[float]:
    """The longest stop of the checkpoint during each drain and each return."""
    found = []
    owner = captures.owner()
    moved = next(name for name in names if name != owner)
    captures.address, drained = captures.addresses[owner], captures.id_of(moved)
    path = f"http://{captures.address}/api/v2/captures/{drained}/drain"
    for number in range(count):
        for method, back in (("PUT", False), ("DELETE", True)):
            progress(f"move {2 * number + back + 1} of {2 * count}")
            httpx.request(method, path, timeout=30, trust_env=False).raise_for_status()
            found.append(captures.longest_stop_ms(partial(captures.delivers, moved, back)))
            captures.deliver(names if back else names.replace(moved, ""))
    return found


def kills(
    captures: Captures, names: str, count: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds until the other captures have taken over."""
    found: dict[str, list[float]] = {"owner": [], "other": []}
    for number in range(count):
        for kind, seconds in found.items():
            progress(f"kill {number + 1} of {count}: {kind}")
            owner = captures.owner()
            name = owner if kind == "owner" else next(one for one in names if one != owner)
            with PdClient(captures.pd) as pd:
                ts = pd.tso()
            began = time.monotonic()
            captures.kill(name)
            seconds.append(captures.passes(ts, began))
            captures.start_capture(name)
            captures.deliver(names)
            time.sleep(SETTLE_S)
    return found


def measure(options: argparse.Namespace, progress: Callable[[str], None]) -> dict[str, Any]:
    """All figures."""
    names = "abcdefghi"[: options.captures]
    found: dict[str, Any] = {"tables": options.tables, "captures": options.captures, "ttl_s": options.ttl}
    with (
        running_broker() as bootstrap,
        running_etcd() as etcd,
        tempfile.TemporaryDirectory(prefix="tidegate-bench-") as temporary,
    ):
        folder = Path(temporary)
        upstream = Upstream(folder, options.tables, 10)
        uri = f"kafka://{bootstrap}/{new_topic(bootstrap)}?protocol=open-protocol"
        with Captures(folder, upstream, uri, etcd, names, options.ttl) as captures:
            progress("loading the catalogue, starting captures")
            captures.begin()
            captures.owner()
            time.sleep(SETTLE_S)
            progress("creating the changefeed")
            began = time.monotonic()
            captures.open()
            captures.deliver(names)
            found["scheduled_s"] = round(time.monotonic() - began, 1)
            active = min(options.active, options.tables)
            with PdClient(captures.pd) as pd, OfActive(pd, captures.row(), options.tables, active):
                time.sleep(SETTLE_S)
                progress("nothing happens")
                end = time.monotonic() + QUIET_S
                found["undisturbed_ms"] = captures.longest_stop_ms(lambda: time.monotonic() > end)
                found["moved_ms"] = moves(captures, names, options.moves, progress)
                found |= {
                    f"{kind}_s": all for kind, all in kills(captures, names, options.kills, progress).items()
                }
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=int, default=1_000)
    parser.add_argument("--active", type=int, default=100)
    parser.add_argument("--captures", type=int, default=3, choices=range(2, 10))
    parser.add_argument("--ttl", type=int, default=3, help="seconds of a session in etcd")
    parser.add_argument("--moves", type=int, default=3, help="drains, each with its way back")
    parser.add_argument("--kills", type=int, default=2, help="of the owner, and of another capture")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    ticker = Ticker()
    found = measure(options, ticker)
    ticker.close()
    rows = [("figure", "value")]
    rows += [
        (name, ", ".join(map(str, one)) if isinstance(one, list) else str(one)) for name, one in found.items()
    ]
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "captures": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()

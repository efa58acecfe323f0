"""The whole capture as a user runs it, with the feed server: `tidegate server` and one changefeed."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import httpx
from benchmarks.accounting import Ledger
from benchmarks.rig import READY_S, eventually
from benchmarks.rows import LOGS
from tools.processes import Child

from tidegate.kvclient.pd import PdClient
from tidegate.server.catalogue.schema_tracker import load_catalogue

FEED: Final = "bench"


def tidegate(*arguments: str | Path) -> list[str]:
    """The command line of a `tidegate` command."""
    return [sys.executable, "-m", "tidegate", *map(str, arguments)]


class Product:
    """The processes of a capture. `start` starts and `close` ends them; use it as a context."""

    def __init__(self, folder: Path, log: str, rows: int, sink_uri: str, live: int = 0) -> None:
        self.folder, self.sink_uri = folder, sink_uri
        self.source = [sys.executable, "-m", "benchmarks.feed_server", str(LOGS / f"{log}.jsonl.gz")]
        self.source += ["--rows", str(rows)] + (["--live", str(live)] if live else [])
        self.options: list[str] = []
        """Further options of `changefeed create`."""
        self.children: dict[str, Child] = {}
        self.ledger: Ledger | None = None
        self.server_src: Path | None = None
        """The source tree that the capture runs from, if it is not this one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start feed server, capture and changefeed. On return the pipeline runs or is starting."""
        ready = self._child("feed", self.source).wait_line(lambda line: "pd" in line, READY_S)
        config = self.folder / "feed.toml"
        config.write_text(f"[filter]\nrules = ['{_table_name(ready['pd'], ready['table_id'])}']\n")
        self.options += ["--config", str(config)]
        self.serve(ready["pd"])
        self.create()

    def serve(self, pd: str) -> None:
        """Start the capture."""
        command = self.tidegate("server", "--pd", pd, "--data-dir", self.folder / "data", "--json")
        server = self._child("server", [*command, "--addr", "127.0.0.1:0", "--log-level", "warn"])
        self.address = server.wait_line(lambda line: "addr" in line, READY_S)["addr"]
        self.ledger = Ledger([server.pid])

    def tidegate(self, *arguments: str | Path) -> list[str]:
        """The command line of a `tidegate` command from the capture's source tree."""
        tree = ["env", f"PYTHONPATH={self.server_src}"] if self.server_src else []
        return tree + tidegate(*arguments)

    def create(self) -> None:
        """Create the changefeed."""
        create = self.tidegate("changefeed", "create", "--server", self.address, "-c", FEED)
        create += ["--sink-uri", self.sink_uri, *self.options]
        subprocess.run(create, check=True, stdout=subprocess.DEVNULL)

    def totals(self) -> dict[str, Any]:
        """Rows, messages and batches delivered so far, from the capture's metrics."""
        text = httpx.get(f"http://{self.address}/metrics", timeout=10).text
        found = {}
        for line in text.splitlines():
            if line.startswith("tidegate_") and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name.partition("{")[0]] = float(value)
        return found

    def wait_rows(self, rows: int, patience_s: float, progress: Callable[[int], None]) -> int:
        """Wait until the capture has delivered `rows` rows."""

        def enough() -> int:
            for child in self.children.values():
                child.check()
            with contextlib.suppress(httpx.HTTPError):
                found = int(self.totals().get("tidegate_sink_rows_total", 0))
                progress(found)
                return found if found >= rows else 0
            return 0

        found: int = eventually(f"{rows} rows delivered", enough, patience_s, pause_s=0.5)
        return found

    def close(self) -> None:
        """End every process."""
        if self.ledger is not None:
            self.ledger.close()
        for child in reversed(list(self.children.values())):
            child.end()
        self.children.clear()

    def _child(self, name: str, command: list[str]) -> Child:
        child = Child(name, command, self.folder / f"{name}.log")
        self.children[name] = child
        return child


def _table_name(pd_address: str, table_id: int) -> str:
    """`schema.table` of the table whose rows are served."""
    with PdClient(pd_address) as pd:
        ts = pd.tso()
        table = load_catalogue(pd, ts).table(table_id, ts)
    assert table is not None, f"table {table_id} is not in the log's catalogue"
    return f"{table.schema}.{table.table}"

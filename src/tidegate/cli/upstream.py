"""`tidegate upstream ...`: runs the embedded upstream, loads recorded logs, shows its state, puts load on it.

This module only reads the options, calls `tidegate.tikv`, `tidegate.workload` and `tidegate.kvclient`, and
prints. Heavy imports happen in the commands, so that `--help` answers at once. Results go to stdout, progress
to stderr.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli import upstream_fault, upstream_region
from tidegate.cli.client import reported as _reported
from tidegate.cli.upstream_region import JsonOption, PdOption
from tidegate.errors import InvalidInput
from tidegate.program import loaded

if TYPE_CHECKING:
    from rich.progress import Progress

    from tidegate.kvclient.tables import Cell
    from tidegate.model.schema import TableSchema
    from tidegate.workload.bank import BankStats
    from tidegate.workload.load import LoadStats

app = typer.Typer(help="Run and use the embedded upstream, a small PD and TiKV.", no_args_is_help=True)

app.add_typer(upstream_region.app, name="region")
app.add_typer(upstream_fault.app, name="fault")


@app.callback()
def group() -> None:
    """Run and use the embedded upstream, a small PD and TiKV."""


@app.command()
def run(
    data_dir: Annotated[Path, typer.Option(help="The folder of the store; created if it does not exist.")],
    pd: Annotated[
        str, typer.Option("--pd", help="Address to listen on; port 0 takes a free one.")
    ] = "127.0.0.1:2379",
    regions: Annotated[
        int,
        typer.Option(
            min=1, help="The number of regions of a new cluster; an existing one keeps its regions."
        ),
    ] = 3,
    stores: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="The number of TiKV stores of a new cluster, each with its own server; default: 1. "
            "With 3 or more, each region has 3 peers.",
        ),
    ] = None,
    store_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65535,
            help="Port of the first of several stores; the others get the next ones. 0: free ports.",
        ),
    ] = 0,
    status_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="HTTP port for PD's API and the stores' status; default: none."),
    ] = None,
    region_split_mib: Annotated[
        int,
        typer.Option(
            min=0, help="Split each region that grows larger than this into parts of this size; 0: never."
        ),
    ] = 256,
    tso: Annotated[
        str,
        typer.Option(
            help="system: timestamps follow the clock; manual: they stay until `load` or `tso` moves them."
        ),
    ] = "system",
    api_version: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=2,
            help="The API version of a new store; 2 has keyspaces, and raw keys with versions, which "
            "can be captured.",
        ),
    ] = None,
    keyspace: Annotated[
        list[str] | None, typer.Option(help="A keyspace in addition to DEFAULT; may be repeated.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Serve PD, TiKV and its change feed until SIGTERM or Ctrl-C.

    One store shares PD's address; several have addresses of their own.
    """
    # gRPC prints its own message about an address in use; ours follows and is enough.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from tidegate.tikv.server import EmbeddedUpstream
    from tidegate.tls import Tls

    loaded()
    if tso not in ("system", "manual"):
        raise typer.BadParameter(f"'{tso}' is not one of system, manual", param_hint="--tso")
    stop = _stop_on_signals()
    with _reported():
        _make_folder(data_dir)
        upstream = EmbeddedUpstream(
            data_dir,
            pd,
            regions=regions,
            tso=tso,
            api_version=api_version,
            keyspaces=keyspace or (),
            stores=stores,
            store_port=store_port,
            split_bytes=region_split_mib << 20,
            status_port=status_port,
            tls=Tls.from_environment(),
        )
        try:
            addresses = upstream.start()
            ready = {
                "event": "ready",
                "pd": addresses.pd,
                "store": addresses.store,
                "stores": addresses.stores,
                "status": upstream.status_addr,
                "cluster_id": addresses.cluster_id,
                "tso": tso,
                "api_version": upstream.api_version,
                "data_dir": str(data_dir),
                "pid": os.getpid(),
            }
            text = f"upstream ready: PD {addresses.pd}, cluster {addresses.cluster_id}, tso {tso}"
            if len(addresses.stores) > 1:
                text += f", stores {', '.join(addresses.stores)}"
            _say(ready, text, as_json)
            stop.wait()
        finally:
            upstream.stop()


@app.command()
def load(
    files: Annotated[
        list[Path], typer.Argument(help="Recorded change logs (.jsonl.gz), in the order of their time.")
    ],
    pd: PdOption,
    until: Annotated[int | None, typer.Option(help="Load nothing above this ts.")] = None,
    rate: Annotated[float | None, typer.Option(min=0.001, help="The most key changes per second.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Commit recorded change logs with their own timestamps.

    Commits that exist already are left out. The upstream must run with `--tso manual`; its TSO follows the
    log.
    """
    from tidegate.kvclient.pd import PdClient
    from tidegate.workload.changelog import count_transactions, read_log
    from tidegate.workload.load import Loader

    with _reported(), PdClient(pd) as client:
        for file in files:
            with _progress(as_json) as progress:
                task = progress.add_task(file.name, total=count_transactions(file, until=until))

                def show(stats: LoadStats, progress: Progress = progress, task: Any = task) -> None:
                    progress.update(task, completed=stats.transactions + stats.skipped)

                stats = Loader(client, rows_per_s=rate, on_progress=show).load(read_log(file, until=until))
            done: dict[str, Any] = {"event": "loaded", "file": str(file)}
            done |= {name: getattr(stats, name) for name in stats.__slots__}
            text = (
                f"{file.name}: {stats.transactions} transactions ({stats.rows} key changes) committed, "
                f"{stats.skipped} were there, {stats.rollbacks} rolled back, "
                f"{stats.pessimistic} pessimistic; TSO at {stats.reached}; {stats.seconds:.1f} s"
            )
            _say(done, text, as_json)


@app.command()
def tso(
    pd: PdOption,
    advance_to: Annotated[int | None, typer.Option(help="Move a manual TSO forward to this ts.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a timestamp, or move a manual TSO."""
    from tidegate.kvclient.pd import PdClient
    from tidegate.model import timestamp

    with _reported(), PdClient(pd) as client:
        ts = client.tso() if advance_to is None else client.advance_tso(advance_to)
        _say({"tso": ts, "time": timestamp.readable(ts)}, f"{ts}  {timestamp.readable(ts)}", as_json)


@app.command()
def dump(
    pd: PdOption,
    at: Annotated[int | None, typer.Option(help="Timestamp to read at; default: now.")] = None,
    table: Annotated[
        list[str] | None, typer.Option(help="Only this table, db.table; may be repeated.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=0, help="Rows shown per table; default: 20, or all with --json.")
    ] = None,
    system: Annotated[bool, typer.Option(help="Show the system schemas too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the tables as they are at one timestamp, decoded."""
    from itertools import islice

    from tidegate.kvclient.pd import PdClient
    from tidegate.kvclient.snapshot import Snapshot
    from tidegate.kvclient.tables import read_rows, read_tables, sql_row

    with _reported(), PdClient(pd) as client:
        snapshot = Snapshot(client, client.tso() if at is None else at)
        tables = read_tables(snapshot, system=system)
        unknown = sorted(set(table or ()) - {t.name for t in tables})
        if unknown:
            there = ", ".join(t.name for t in tables) or "none"
            raise typer.BadParameter(
                f"no such table at {snapshot.ts}: {', '.join(unknown)}; there are: {there}",
                param_hint="--table",
            )
        if not tables:
            print(f"no tables at {snapshot.ts}", file=sys.stderr)
        for found in tables:
            if table and found.name not in table:
                continue
            rows = (sql_row(found, values) for values in read_rows(snapshot, found))
            if as_json:
                _print_rows(found, snapshot.ts, islice(rows, limit))
            else:
                _show_rows(found, rows, 20 if limit is None else limit)


@app.command()
def workload(
    pd: PdOption,
    seed: Annotated[
        int, typer.Option(help="The same seed makes the same changes, apart from timestamps.")
    ] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.001, help="The most rows per second; default: no limit.")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(min=1, help="End after this many rows; default: at SIGTERM or Ctrl-C.")
    ] = None,
    accounts: Annotated[int, typer.Option(min=2, help="Accounts of a new bank.")] = 2000,
    threads: Annotated[
        int, typer.Option(min=1, help="The number of transactions that are committed in parallel.")
    ] = 4,
    ddl_every: Annotated[
        int, typer.Option(min=0, help="Run a DDL each time this many rows have changed; 0: none.")
    ] = 20_000,
    row_checksum: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=2,
            help="Write row checksums of this version, as TiDB with tidb_enable_row_level_checksum on: "
            "2 from 8.4 on, 1 in 8.3, 0 before. Default: none.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a bank: accounts, transfers, orders, and some DDL.

    Transfers keep the sum of all balances.
    """
    from tidegate.workload.bank import BankWorkload

    loaded()
    stop = _stop_on_signals()

    def show(stats: BankStats) -> None:
        if as_json:
            _say({"event": "progress"} | _members(stats), "", True)
        elif sys.stderr.isatty():
            width = os.get_terminal_size(sys.stderr.fileno()).columns
            print(f"\r{bank_line(stats)[: width - 1]}\033[K", end="", file=sys.stderr, flush=True)

    with _reported():
        bank = BankWorkload(
            pd, seed, accounts=accounts, threads=threads, ddl_every_rows=ddl_every, checksum=row_checksum
        )
        try:
            bank.setup()
            _say(
                {"event": "ready"} | _members(bank.stats),
                f"bank ready: sum of balances {bank.stats.total}",
                as_json,
            )
            stats = bank.run(rate, stop, show, max_rows=rows)
            if sys.stderr.isatty() and not as_json:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
        finally:
            bank.close()
        text = (
            f"{stats.rows} rows, {stats.transactions} transactions, {stats.ddls} DDLs, {stats.seconds:.0f} s"
        )
        _say({"event": "done"} | _members(stats), text, as_json)


@app.command("check-log")
def check_log_command(
    file: Annotated[Path, typer.Argument(help="A recorded change log (.jsonl.gz).")],
    target: Annotated[str, typer.Option(help="An empty Delta target: delta:///absolute/directory.")],
    kafka: Annotated[str, typer.Option(help="A Kafka broker, host:port (`tools/services start kafka`).")],
    protocol: Annotated[
        str, typer.Option(help="Protocol of the topic: see docs/formats/protocols.md.")
    ] = "open-protocol",
    until: Annotated[int | None, typer.Option(help="Only the log up to this ts.")] = None,
    every: Annotated[int, typer.Option(min=1, help="Check each Nth snapshot, and always the last one.")] = 1,
    ids_per_stripe: Annotated[int, typer.Option(help="For the changefeed: see docs/stripes.md.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Send a recorded log through everything, and check the tables.

    They are compared with the log's own snapshots. Exit 0: every table equal at every snapshot; 1: the
    differences are shown.
    """
    import dataclasses

    from tidegate.verify.check_log import check_log

    equal = True
    with _reported():
        found = check_log(
            file, target, kafka, protocol=protocol, until=until, every=every, ids_per_stripe=ids_per_stripe
        )
        for verdict in found:
            equal = equal and not verdict.findings
            notes = [f"without virtual {', '.join(verdict.virtual)}"] if verdict.virtual else []
            notes += [f"{verdict.zero_dates} zero dates are NULL"] if verdict.zero_dates else []
            outcome = "\n    ".join(["NOT equal", *verdict.findings]) if verdict.findings else "equal"
            noted = f" ({'; '.join(notes)})" if notes else ""
            text = f"{verdict.ts} {verdict.table}: {verdict.rows} rows{noted}, {outcome}"
            _say(dataclasses.asdict(verdict), text, as_json)
    _say({"event": "done", "equal": equal}, "equal" if equal else "NOT equal", as_json)
    raise typer.Exit(0 if equal else 1)


def _make_folder(data_dir: Path) -> None:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            "the data directory cannot be used",
            where=str(data_dir),
            why=error.strerror or str(error),
            fix="choose a --data-dir that can be made and written",
        ) from error


def bank_line(stats: BankStats) -> str:
    """The live line of a workload."""
    rate_now = stats.rows / stats.seconds if stats.seconds else 0.0
    done = f"{stats.rows} rows in {stats.transactions} transactions, {rate_now:.0f} rows/s, {stats.ddls} DDLs"
    return f"{done}, last: {' '.join(stats.last_ddl.split())}" if stats.last_ddl else done


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """A progress bar on stderr; none if stderr is no terminal or JSON is requested."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:
        yield progress


def _stop_on_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def _say(members: dict[str, Any], text: str, as_json: bool) -> None:
    print(json.dumps(members) if as_json else text, flush=True)


def _members(stats: BankStats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in stats.__slots__}


def _print_rows(table: TableSchema, ts: int, rows: Iterator[tuple[Cell, ...]]) -> None:
    """Print one JSON object; cells are strings, null, or {"hex": ...} for values that are not text."""
    cells = [[{"hex": cell.hex()} if isinstance(cell, bytes) else cell for cell in row] for row in rows]
    _say({"table": table.name, "ts": ts, "columns": [c.name for c in table.columns], "rows": cells}, "", True)


def _show_rows(table: TableSchema, rows: Iterator[tuple[Cell, ...]], limit: int) -> None:
    """Print the first rows as a rich table, and the number of all rows."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title=table.name, title_justify="left")
    for column in table.columns:
        shown.add_column(column.name, overflow="fold")
    count = 0
    for row in rows:
        count += 1
        if count <= limit:
            shown.add_row(*(_shown(cell, escape) for cell in row))
    shown.caption = f"{count} rows" + (f", {limit} shown" if count > limit else "")
    Console().print(shown)


def _shown(cell: Cell, escape: Any) -> str:
    if cell is None:
        return "[dim]NULL[/dim]"
    return f"0x{cell.hex()}" if isinstance(cell, bytes) else str(escape(cell))

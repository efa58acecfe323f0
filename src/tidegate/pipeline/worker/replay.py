"""Decode rows of a changefeed's quarantine again, with this release and the catalogue that its capture keeps.

    base file + the DDL span's jobs -> the table as it was at the row's commit ts -> the plain decoder

The capture may be running: its files are read in the same way as its workers read them, and nothing is
written. If the capture no longer has the catalogue at a row's commit ts, the oldest catalogue is used, and
the outcome says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tidegate.errors import InvalidInput, Retryable, TidegateError, Undecodable
from tidegate.eventstore import reader
from tidegate.model.block import OP_DELETE, OP_PUT
from tidegate.model.path_part import path_part
from tidegate.model.row import RowChange
from tidegate.model.schema import TableSchema
from tidegate.model.span import span_id
from tidegate.mounter import bases
from tidegate.mounter.ddl_jobs import jobs_in
from tidegate.mounter.mounter import Entry, mount_row
from tidegate.mounter.schema_store import SchemaStore
from tidegate.pipeline.worker.access import QUARANTINE
from tidegate.sink.quarantine import DecodeOutcome, still_bad
from tidegate.tidb import checksum, keys

DDL_SPAN: Final = span_id(keys.ddl_span())
TABLES: Final = "tidb"
"""The event store of tables, as a folder in the folder of its cluster."""


def quarantine_of(data_dir: Path, namespace: str, changefeed: str) -> Path:
    """A changefeed's quarantine file. Raises InvalidInput when the capture keeps no such changefeed."""
    folder = data_dir / "feeds" / path_part(namespace) / path_part(changefeed)
    if not folder.is_dir():
        raise InvalidInput(
            "there is no such changefeed in this folder",
            where=str(data_dir),
            why=f"it has no files of changefeed {namespace}/{changefeed}",
            fix="give --data-dir of the capture's server, --changefeed-id and --namespace",
        )
    return folder / QUARANTINE


class Catalogue:
    """The tables that a capture knows, at any ts from its oldest base file on."""

    def __init__(self, data_dir: Path) -> None:
        """Raises InvalidInput when the folder has no event store, or the event stores of several clusters."""
        found = sorted((data_dir / "events").glob(f"*/{TABLES}"))
        if len(found) != 1:
            raise InvalidInput(
                "the capture's folder does not say which catalogue its rows have",
                where=str(data_dir / "events"),
                why=f"it holds event stores of {len(found)} clusters",
                fix="give --data-dir of a capture that follows one cluster; `quarantine show` needs none",
            )
        self._events = found[0]
        self._store: SchemaStore | None = None
        self._since = self._read_to = 0
        self._is_oldest = False
        """Whether no base file begins earlier. If so, `table` need not look for one for older rows."""

    def table(self, physical_id: int, ts: int) -> tuple[TableSchema | None, str]:
        """The table of a physical id at `ts`, and a note if its version is not exact; empty: it is exact.

        Raises Retryable when the catalogue cannot be read.
        """
        store = self._store
        if store is None or (ts < self._since and not self._is_oldest):
            store = self._store = self._load(ts)
        if ts > self._read_to:
            self._advance(store, ts)
        at = min(max(ts, self._since), self._read_to)
        note = (
            ""
            if at == ts
            else f"with the table as it was at ts {at}, for the capture has no catalogue of {ts}"
        )
        return store.table(physical_id, at), note

    def _load(self, ts: int) -> SchemaStore:
        """The catalogue from which `ts` can be reached, or the oldest one."""
        folder = bases.folder_of(self._events)
        known = bases.found(folder)
        # Rows may be older than every base. The oldest one is then the nearest to them, and `table` says that
        # the version is not exact.
        base = bases.serving(known, ts) or (known[0] if known else None)
        try:
            if base is None:
                raise FileNotFoundError(f"{folder} has no base file")
            store = bases.load(folder, base)
        except FileNotFoundError as error:
            raise Retryable(
                "the capture's catalogue cannot be read",
                where=str(folder),
                why=str(error),
                fix="try again: a running capture replaces these files",
            ) from error
        self._since, self._read_to, self._is_oldest = base.since, store.resolved_ts, base == known[0]
        return store

    def _advance(self, store: SchemaStore, ts: int) -> None:
        """Apply the DDL jobs up to `ts`. If the DDL span no longer holds all of them, apply none."""
        with suppress(Retryable):
            columns = store.job_meta_columns()
            # All are read before the first job is applied: if some are gone, the catalogue must have none of
            # them.
            blocks = list(reader.read(self._events, DDL_SPAN, self._read_to, ts))
            for job in (job for block in blocks for job in jobs_in(block, columns)):
                store.apply(job)
            self._read_to = ts


def replay(entry: Mapping[str, Any], catalogue: Catalogue) -> DecodeOutcome:
    """Decode a row again. Raises Retryable when the capture's catalogue cannot be read."""
    if "old_value" not in entry:
        return still_bad("it is a message that was not what its row is; the row is upstream as it was")
    try:
        record = keys.parse_record(entry["key"])
    except Undecodable as error:
        return still_bad(error.render())
    # One below the commit: a DDL that finishes at this ts does not apply to the row.
    table, note = catalogue.table(record.table_id, entry["where"]["commit_ts"] - 1)
    if table is None:
        return still_bad(f"no table has the id {record.table_id} {note}".strip())
    return decoded(entry, table, note)


def decoded(entry: Mapping[str, Any], table: TableSchema, note: str = "") -> DecodeOutcome:
    """Decode a row with a version of its table. Pure. `note`: says if that version is not exact."""
    commit_ts, value, old = entry["where"]["commit_ts"], entry["value"], entry["old_value"]
    about = f" ({note})" if note else ""
    try:
        # A row's value is never empty, so an empty one is a delete.
        change = mount_row(
            Entry(commit_ts, 0, OP_PUT if value else OP_DELETE, entry["key"], value, old), table
        )
        if why := _mismatch(entry, table):
            return still_bad(why + about)
    except TidegateError as error:
        return still_bad(error.render() + about)
    if change is None:
        return DecodeOutcome(True, "it deletes a row that was not there" + about)
    return DecodeOutcome(True, note, (_shown(change),))


def _mismatch(entry: Mapping[str, Any], table: TableSchema) -> str:
    """Why a row that was quarantined for its checksum still differs from it; empty if it does not."""
    if "checksum" not in entry:
        return ""
    old = entry["where"].get("image") == "old"
    found = checksum.check(table, entry["key"], entry["old_value" if old else "value"], old=old)
    if found.outcome is not checksum.Outcome.MISMATCHED:
        return ""
    return f"its bytes give checksum {found.found}, and it carries {found.expected}"


def _shown(change: RowChange) -> dict[str, Any]:
    names = [column.name for column in change.table.columns]
    images = {
        name: None if image is None else dict(zip(names, image, strict=True))
        for name, image in (("new", change.new), ("old", change.old))
    }
    kind = "insert" if change.old is None else "delete" if change.new is None else "update"
    return {
        "kind": kind,
        "schema": change.table.schema,
        "table": change.table.table,
        "commit_ts": change.commit_ts,
        **images,
    }

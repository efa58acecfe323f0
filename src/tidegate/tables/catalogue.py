"""The tables of a cluster at a ts, and keeping TiKV's history at that ts while they are read."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from tidegate.errors import InvalidInput, TidegateError
from tidegate.kvclient.pd import PdClient
from tidegate.kvclient.snapshot import Snapshot
from tidegate.model.schema import TableSchema
from tidegate.mounter.schema_store import SchemaStore
from tidegate.tidb import keys, table_info

HOLD_S: Final = 600
"""Seconds for which TiKV is asked to keep the history; the request is renewed after a tenth of it."""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table of a cluster at a ts. It is small, and sent to every task."""

    pd: str
    ts: int
    schema: str
    info: dict[str, Any]

    def parsed(self) -> TableSchema:
        """The table in the form that decoders use."""
        return table_info.table_schema(self.schema, self.info, self.ts)


def tables_at(pd: PdClient, ts: int, names: Iterable[str]) -> dict[str, SourceTable]:
    """Tables of the source as they were at `ts`; InvalidInput when there is no table of a name."""
    store = SchemaStore.from_meta(Snapshot(pd, ts).scan(keys.catalogue_span()), ts)
    known = {table.name: table for table in store.entries(ts)}
    found = {}
    for name in names:
        if name not in known:
            raise InvalidInput(
                f"the source has no table {name}",
                where=f"{pd.address}, at ts {ts}",
                fix="write SCHEMA.TABLE, in the upper and lower case it was created with",
            )
        found[name] = SourceTable(pd.address, ts, known[name].schema, known[name].info())
    return found


def hold(pd: PdClient, ts: int, seconds: int) -> str:
    """Ask TiKV to keep the history at `ts` for so many seconds. Returns the name of the service safepoint.

    Raises InvalidInput when the history is gone already.
    """
    # A name for each read: the end of one read must not release the history that another one needs.
    service = f"tidegate-read-{uuid.uuid4().hex[:12]}"
    # One below, because the history is complete only above a safepoint.
    least = pd.update_service_gc_safepoint(service, seconds, ts - 1)
    if least > ts - 1:
        pd.update_service_gc_safepoint(service, 0, 0)
        raise InvalidInput(
            f"the source has no history at ts {ts} any more",
            where=f"GC safepoint {least}",
            fix="read at a newer ts",
        )
    return service


@contextmanager
def history_held(pd: PdClient, ts: int) -> Iterator[None]:
    """Keep TiKV's garbage collection below `ts`; InvalidInput when it has passed it already."""
    service, done = hold(pd, ts, HOLD_S), threading.Event()

    def renew() -> None:
        while not done.wait(HOLD_S / 10):
            with suppress(TidegateError):  # the next attempt comes long before the safepoint expires
                pd.update_service_gc_safepoint(service, HOLD_S, ts - 1)

    renewing = threading.Thread(target=renew, name="gc safepoint", daemon=True)
    renewing.start()
    try:
        yield
    finally:
        done.set()
        # Joined first: a renewal after the removal below would hold the history for another ten minutes.
        renewing.join()
        with suppress(TidegateError):  # otherwise it expires
            pd.update_service_gc_safepoint(service, 0, 0)

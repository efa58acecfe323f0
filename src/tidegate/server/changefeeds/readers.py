"""Readers: changefeeds whose changes a Spark query reads from the capture itself (`tables.stream`).

    create    a changefeed with a reader's sink, or the one of that name that no query has used yet
    latest    how far the query may read; a query has finished everything up to the ts from which it asks
    plan      tickets, one for each task
    open      what a ticket opens: the pieces of its part

A reader's changes are stored in its changefeed's folder (`sink.reader`). So a slow or dead query holds up
neither upstream's history nor DDL; it only takes disk space, up to a limit. A query that asks again for the
same batch gets the same bytes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
import pyarrow as pa

from tidegate.config.sink_uri import reader_uri
from tidegate.control.changefeed import State
from tidegate.control.metadata import FeedId
from tidegate.errors import Fatal, InvalidInput, Retryable, TidegateError
from tidegate.log import event
from tidegate.server.changefeeds.new_feed import Refused, check_new, tables_at
from tidegate.server.changefeeds.reactor import Reactor
from tidegate.server.changefeeds.reader_history import (
    History,
    Query,
    check_columns,
    columns_of,
    no_table,
    rules_of,
)
from tidegate.server.owner.feed import Feed
from tidegate.sink.reader.changes import (
    COMMIT_TS,
    DDL,
    DEFINED,
    KIND,
    SEQ,
    SEQ_A_TS,
    SILENT_CODE,
    Changes,
    NoLongerKept,
    ReaderProgress,
    StoredRows,
    already_confirmed,
    piece_schema,
)

LOG: Final = logging.getLogger(__name__)
T = TypeVar("T")

MAX_KEPT: Final = 10 << 30
"""Bytes that are kept for a reader if its request gives no limit."""
PARTS: Final = 4
"""The most tasks for a batch of several tables; all rows of a table go to one task."""
READERS_MAX: Final = 200
ORPHAN_S: Final = 3600.0
"""A reader that no query has read from is removed after this time. Its query was killed before its checkpoint
named the reader, and has created another reader since.
"""
SWEEP_S: Final = 300.0
QUERIED_S: Final = 30.0
"""How often it is stored that a query is alive."""
LOOK_S: Final = 0.05
"""How often a request that waits looks for new changes."""
QUERIED_MAX: Final = 1000
"""The most readers for which the time of that write is remembered; with more, some write more often."""
THREADS: Final = 8
DDL_PIECE: Final = (1 << 63) - 1
"""The number of the piece with DDL, which is the last piece of part 0."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Opens one part of one batch of one reader."""

    feed: FeedId
    instance: str
    start: int
    end: int
    part: int
    parts: int

    def sealed(self, secret: bytes) -> str:
        """The form in which it is sent to a query: the values and their seal."""
        body = orjson.dumps(
            [self.feed.namespace, self.feed.name, self.instance, self.start, self.end, self.part, self.parts]
        )
        return f"{base64.urlsafe_b64encode(body).decode()}.{_seal(body, secret)}"

    @classmethod
    def opened(cls, text: str) -> tuple[Ticket, bytes, str]:
        """The ticket in a text, the sealed bytes, and the seal, which the caller must still check."""
        body, _, seal = text.partition(".")
        try:
            # Bounded, because nothing is known of the text before its seal is checked.
            raw = base64.urlsafe_b64decode(body[:2000])
            namespace, name, instance, *numbers = orjson.loads(raw)
            start, end, part, parts = (int(one) for one in numbers)
        except (ValueError, TypeError):
            raise _no_ticket() from None
        return (
            cls(FeedId.checked(str(namespace), str(name)), str(instance), start, end, part, parts),
            raw,
            seal,
        )


def _seal(body: bytes, secret: bytes) -> str:
    return hmac.new(secret, body, hashlib.sha256).hexdigest()


def _no_ticket() -> Refused:
    return Refused(
        "CDC:ErrReaderTicket",
        "the ticket opens nothing here",
        why="it is of a reader that was removed, or was changed on its way",
        fix="start the query again",
    )


class Readers:
    """The readers of a capture."""

    def __init__(self, reactor: Reactor, *, elsewhere: bool = False) -> None:
        """`elsewhere`: whether the capture's workers run on other machines."""
        self._reactor, self._elsewhere = reactor, elsewhere
        self._received: dict[str, tuple[float, int]] = {}
        """By instance: when its query was last stored as alive (monotonic), and what it had finished."""
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="readers")

    async def do(self, work: Callable[..., T], *values: Any, **named: Any) -> T:
        """Run work in the readers' own threads, so that a locked file blocks nothing else."""
        call = partial(work, *values, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def sweep(self) -> None:
        """Remove, from time to time, readers that no query uses. Runs until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)  # first, so that queries can come back after the capture was down
            try:
                await self.remove_orphans()
            except TidegateError as error:
                event(LOG, logging.WARNING, "unused readers not looked for", error=str(error))

    async def remove_orphans(self) -> None:
        """Remove readers that no query has read from for ORPHAN_S."""
        # A copy, because changefeeds come and go during the waits.
        feeds = dict(self._reactor.feeds)
        for name, progress in (await self.progress_of_readers(feeds.values())).items():
            silent_s = feeds[name].node.clock.now_ms() / 1000 - progress.queried_ms / 1000
            # Only one that was never used: what is kept for another one is the only copy of changes that its
            # query still expects.
            if not progress.used and silent_s > ORPHAN_S:
                event(LOG, logging.WARNING, "reader removed: no query has read from it", changefeed=str(name))
                await self._reactor.remove(name)

    async def create(
        self, feed: FeedId, tables: Sequence[str], rows: str, start_ts: int, hold_s: int, max_kept: int
    ) -> ReaderProgress:
        """Create a reader, or take the existing one if its options are the same and no query has used it."""
        uri = reader_uri(rows, hold_s or self._reactor.node.gc_ttl_s, max_kept or MAX_KEPT)
        rules = list(rules_of(tables, rows))
        found = self._reactor.feeds.get(feed)
        if found is None:
            if self._reactor.node.shared:
                raise InvalidInput(
                    "captures that share an etcd can have no readers",
                    where=self._reactor.node.address,
                    why="a reader's changes are kept on the disk of one capture",
                    fix="read from a server of its own, without --etcd",
                )
            if self._elsewhere:
                raise InvalidInput(
                    "this capture can have no readers",
                    where=self._reactor.node.address,
                    why="they keep changes on its own disk, and its workers run on a Spark cluster",
                    fix="read from a capture with --spark-master local[*]",
                )
            if sum(one.record.uri.is_reader for one in self._reactor.feeds.values()) >= READERS_MAX:
                raise InvalidInput(
                    f"this capture has {READERS_MAX} readers",
                    where=self._reactor.node.address,
                    why="each keeps changes on its disk",
                    fix="remove those that nobody uses: `tidegate changefeed list` shows them",
                )
            # A reader that has reached its limit waits for its query as long as changes are kept for it.
            settings = {
                "filter": {"rules": rules},
                "changefeed_error_stuck_duration": int(uri.option("hold")) * 10**9,
            }
            new = await self.do(check_new, feed, uri.render(), settings, start_ts, 0)
            found = await self._reactor.create(new)
            return await self.do(_changes(found).progress)
        if not found.record.uri.is_reader:
            raise InvalidInput(f"{feed} is a changefeed, not a reader", fix="choose another name")
        progress = await self.do(_changes(found).progress)
        # docs/guarantees.md#a-spark-query-reads-each-change-once: what the first query has confirmed was
        # deleted, so a second one would lack it.
        if progress.used:
            raise InvalidInput(
                f"reader {feed.name} exists, and its query has read up to ts {progress.confirmed_ts}",
                where="option reader",
                why="the checkpoint of the query that began with it is elsewhere, or gone",
                fix="start the query with that checkpoint; or remove the changefeed, or choose another name",
            )
        same = found.record.uri == uri and list(found.record.config.filter.rules) == rules
        if not same or start_ts not in (0, progress.start_ts):
            raise InvalidInput(
                f"reader {feed.name} exists with other options",
                where=f"it has {', '.join(found.record.config.filter.rules)} from ts {progress.start_ts} on, "
                f"{found.record.uri.render()}",
                fix="give the same options; or remove the changefeed, or choose another name",
            )
        return progress

    async def progress_of_readers(self, feeds: Iterable[Feed]) -> dict[FeedId, ReaderProgress]:
        """The progress of the readers among the feeds; a reader whose file is missing, cannot be read or
        has another form is left out.
        """
        readers = [feed for feed in feeds if feed.record.uri.is_reader]

        def look() -> dict[FeedId, ReaderProgress]:
            found = {}
            for feed in readers:
                with contextlib.suppress(Retryable, Fatal):
                    found[feed.id] = _changes(feed).progress()
            return found

        return await self.do(look) if readers else {}

    async def columns(
        self, feed: FeedId | None, tables: Sequence[str], rows: str, start_ts: int
    ) -> pa.Schema:
        """The columns of typed rows: those at the ts that a reader's query has reached, otherwise those of
        the table at `start_ts`; 0: now.
        """
        if rows != "typed":
            raise InvalidInput(
                "generic rows have the same columns for all tables", fix="ask for the columns of typed rows"
            )
        rules = list(rules_of(tables, rows))
        found = self._reactor.feeds.get(feed) if feed is not None else None
        if found is not None and found.record.uri.is_reader:
            changes = _changes(found)
            progress = await self.do(changes.progress)
            history = await self.do(_history, found, changes, progress)
            columns = history.after(progress.confirmed_ts) if history is not None else None
            if columns is not None:
                return columns
        reactor = self._reactor
        new = check_new(
            FeedId("default", "columns"), reader_uri(rows, 1, 1).render(), {"filter": {"rules": rules}}, 0, 0
        )
        good, bad = await tables_at(reactor.node.pd, new.config, start_ts or await reactor.now())
        followed = [one for one in good if not one.is_view]
        if not followed:
            raise no_table(tables[0], bad)
        return piece_schema(columns_of(followed[0].parsed()))

    async def latest(
        self, feed: FeedId, asked: Query, start: int, max_bytes: int, target: int, wait_s: float
    ) -> dict[str, Any]:
        """How far a query that has finished everything up to `start` may read; `start` after `wait_s`
        seconds without new changes.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        found = await self._receive(feed, asked, start)
        while True:
            # Noted before the look: what comes during it ends the wait below at once.
            owner = found.replication.owner
            before = owner.resolved_sent if owner is not None else 0
            answer = await self.do(_latest, found, asked, start, max_bytes, target)
            if answer["upto"] > start:
                return answer
            _check_state(found)  # only now, because existing changes can be read in any state
            if loop.time() >= until:
                return answer
            while loop.time() < until:
                await asyncio.sleep(LOOK_S)
                owner = found.replication.owner
                if owner is not None and owner.resolved_sent > before:
                    break
            # The reader may have been removed, or created again, during the wait.
            found = self._feed(feed, asked.instance)

    async def plan(self, feed: FeedId, asked: Query, start: int, end: int) -> dict[str, Any]:
        """The tickets for the tasks of a batch."""
        found = await self._receive(feed, asked)
        return await self.do(_plan, found, asked, start, end)

    async def commit(self, feed: FeedId, asked: Query, ts: int) -> None:
        """Note that the query has finished everything up to `ts`."""
        await self._receive(feed, asked, ts)

    async def open(self, text: str) -> tuple[Ticket, Changes, bool]:
        """The ticket, the file that it opens, and whether the query gets DDL. Raises Refused."""
        ticket, body, seal = Ticket.opened(text)
        found = self._reactor.feeds.get(ticket.feed)
        if found is None or not found.record.uri.is_reader or found.record.info.instance != ticket.instance:
            raise _no_ticket()
        changes = _changes(found)
        secret = await self.do(changes.secret)
        # In constant time, so that a wrong seal does not tell how much of it was right.
        if not hmac.compare_digest(seal, _seal(body, secret)):
            raise _no_ticket()
        await self._record_query(found)
        return ticket, changes, found.record.uri.option("rows") == "generic"

    def _feed(self, feed: FeedId, instance: str) -> Feed:
        found = self._reactor.feeds.get(feed)
        if found is None or not found.record.uri.is_reader or found.record.info.instance != instance:
            raise Refused(
                "CDC:ErrChangeFeedNotExists",
                f"[CDC:ErrChangeFeedNotExists]reader {feed} does not exist any more",
                why="its changefeed was removed, and what was kept for it is gone",
                fix="start a new query with a new checkpoint",
            )
        return found

    async def _receive(self, feed: FeedId, asked: Query, confirmed_ts: int = 0) -> Feed:
        found = self._feed(feed, asked.instance)
        await self._record_query(found, confirmed_ts)
        return found

    async def _record_query(self, found: Feed, confirmed_ts: int = 0) -> None:
        now, instance = asyncio.get_running_loop().time(), found.record.info.instance
        at, before = self._received.get(instance, (float("-inf"), -1))
        # A write waits for the disk, and each batch asks several times.
        # Often enough that a query that asks never counts as silent.
        seldom_s = min(QUERIED_S, int(found.record.uri.option("hold")) / 4)
        if confirmed_ts <= before and now - at < seldom_s:
            return
        await self.do(_changes(found).receive, found.node.clock.now_ms(), confirmed_ts, used=confirmed_ts > 0)
        # All at once: an entry that is missing only costs one write more.
        if len(self._received) >= QUERIED_MAX:
            self._received.clear()
        self._received[instance] = now, max(confirmed_ts, before)


def ddl_piece(changes: Changes, start: int, end: int) -> bytes | None:
    """The DDL of a batch as rows in an Arrow stream; None: there was none."""
    found = changes.statements(start, end)
    if not found:
        return None
    ts, _, schemas, tables, queries = zip(*found, strict=True)
    batch = pa.record_batch(
        {
            "_tidegate_schema": schemas,
            "_tidegate_table": tables,
            COMMIT_TS: pa.array(ts, pa.int64()),
            SEQ: pa.array([one * SEQ_A_TS + DEFINED for one in ts], pa.int64()),
            "_tidegate_ddl": queries,
        }
    ).replace_schema_metadata({KIND: DDL.encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Give the error after a reader was given up its code."""
    try:
        yield
    except NoLongerKept as error:
        raise Refused(SILENT_CODE, error.what, where=error.where, why=error.why, fix=error.fix) from error


def numbers_of(ticket: Ticket, changes: Changes, past: int, *, ddl: bool) -> list[int]:
    """The numbers of a ticket's pieces above `past`."""
    with _refused():
        found = changes.numbers(ticket.start, ticket.end, past, ticket.part, ticket.parts)
    return [*found, DDL_PIECE] if ddl and ticket.part == 0 and past < DDL_PIECE else found


def piece_of(ticket: Ticket, changes: Changes, n: int) -> StoredRows | None:
    """A piece by its number; None: it would have DDL, but there was none."""
    if n < DDL_PIECE:
        with _refused():
            return changes.piece(n, ticket.start)
    data = ddl_piece(changes, ticket.start, ticket.end)
    return StoredRows(n, data) if data is not None else None


def _changes(feed: Feed) -> Changes:
    return Changes(feed.record.plan.folder)


def _history(found: Feed, changes: Changes, progress: ReaderProgress) -> History | None:
    """The history of a reader of typed rows; None for generic rows."""
    if found.record.uri.option("rows") != "typed":
        return None
    return _known(changes.path.parent, progress.instance, progress.ddl, found.record.config.filter.rules[0])


@lru_cache(256)
def _known(folder: Path, instance: str, ddl: int, rule: str) -> History:
    """Cached by the number of definitions, because definitions are only added, never changed or removed."""
    return History(Changes(folder).definitions(), rule)


def _latest(found: Feed, asked: Query, start: int, max_bytes: int, target: int) -> dict[str, Any]:
    changes = _changes(found)
    progress = changes.progress()
    _check_place(found, progress, start)
    upto = max(start, progress.readable)
    if target:  # it may be below the start of a reader that was created later
        upto = max(start, min(upto, target))
    history = _history(found, changes, progress)
    if history is not None:
        check_columns(history, asked, start)
        stop = history.stop(start)
    else:  # a batch ends at a DDL: the DDL follows the rows before it
        stop = changes.next_ddl(start)
    reached = 0 < stop <= upto
    last = min(upto, stop or upto)
    end = changes.cut(start, last, max_bytes)
    if end == start and (reached or 0 < target <= upto):
        end = last  # there are no rows, but the query must reach the DDL, or its target
    return {"upto": end, "readable": progress.readable, "waits": _waits(found)}


def _check_place(found: Feed, progress: ReaderProgress, start: int) -> None:
    """Raises Refused if changes after `start` may have been removed."""
    if progress.stopped_why:
        raise Refused(
            SILENT_CODE,
            f"nothing is kept for reader {found.id.name} any more",
            why=progress.stopped_why,
            fix="remove its changefeed, and start a new query with a new checkpoint",
        )
    # docs/guarantees.md#a-spark-query-reads-each-change-once: an error, never a gap.
    if start < progress.confirmed_ts:
        raise already_confirmed(start, progress.confirmed_ts)


def _check_state(found: Feed) -> None:
    """Raises Refused if no more changes will come."""
    error, feed = found.record.life.error, found.id
    if found.record.life.state is State.FAILED and error is not None:
        raise Refused(
            error.code,
            f"reader {feed} has failed: {error.message}",
            fix=f"remove the cause, then `tidegate changefeed resume -c {feed.name}`; or start a new query",
        )


def _waits(found: Feed) -> str:
    """Describe what stops or limits the changes; empty: nothing that a user must act on."""
    if found.record.life.state is State.STOPPED:
        return f"the reader is paused; `tidegate changefeed resume -c {found.id.name}` resumes it"
    error = found.record.life.error
    if found.record.shown_state is State.WARNING and error is not None:
        return error.message
    if count := found.replication.reports.totals.quarantined:
        return f"nothing; but {count} rows could not be decoded, and the capture has set their bytes aside"
    return ""


def _plan(found: Feed, asked: Query, start: int, end: int) -> dict[str, Any]:
    changes = _changes(found)
    progress = changes.progress()
    _check_place(found, progress, start)
    if end > progress.readable and end > progress.start_ts:
        raise Retryable(
            f"some changes up to ts {end} have not come yet",
            where=f"reader {found.id.name}, readable up to {progress.readable}",
            why="the capture's files are older than the query's checkpoint",
        )
    history = _history(found, changes, progress)
    if history is not None:
        # Spark asks for a batch again after a crash. The DDL before it was confirmed then, so it does not
        # stop the query again.
        check_columns(history, asked, start, replay=True)
    # Rows of one table stay in one task, which keeps their order.
    parts = 1 if history is not None else PARTS
    tickets = [Ticket(found.id, found.record.info.instance, start, end, part, parts) for part in range(parts)]
    secret = changes.secret()
    return {
        "parts": [{"ticket": one.sealed(secret)} for one in tickets],
        "bytes": changes.weight(start, end),
    }

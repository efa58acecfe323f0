"""Writes a batch that does not fit into memory, by lanes: first all deletes, then all inserts, part by part.

A lane's parts have an order, which is the same after a restart:

    deletes   of the tables that are in memory | of a table's part 1, 2, ... | of the next table's
    inserts   likewise

So a value of a unique key is free before any part uses it. A part is rendered while the previous one is
written, and its memory is released once it is written itself. All parts of a lane are one transaction. If the
batch is larger than a transaction may be, each part is a transaction of its own, and the lane's row stores
how many are committed, with a digest of their rows. After a restart these parts are rendered again and
compared, in all lanes, before any lane continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from tidegate.consumer.applying.target import Parted
from tidegate.consumer.mysql.batch import Batch, Reached
from tidegate.consumer.mysql.dialect import Dialect
from tidegate.consumer.mysql.digest import Digest
from tidegate.consumer.mysql.rendering import Statements
from tidegate.consumer.mysql.session import Connection
from tidegate.errors import Fatal

TRANSACTION_BYTES: Final = 1 << 30
"""Bytes of staged rows in one transaction of a lane; the server's undo log needs several times that. Not at
TiDB: see `check_size`."""


Make: TypeAlias = Callable[[], Statements]
"""Renders one part of a lane: only deletes, or only inserts."""


def order(
    small: Statements, tables: Sequence[Parted], make: Callable[[Parted, int, bool], Statements]
) -> list[Make]:
    """The parts of one lane. `small`: tables that are in memory, with one digest for both halves.

    `make`: renders a table's part, its deletes (False) or its inserts (True).
    """
    # By name, because the order must be the same after a restart.
    tables = sorted(tables, key=lambda table: table.name)
    without_rows = type(small.digest)()
    halves = [
        Statements(small.digest, deletes=small.deletes),
        Statements(without_rows, inserts=small.inserts),
    ]
    made: list[Make] = []
    # The deletes of all parts come before all inserts: an inserted row may take a unique value of a row in
    # another part.
    for inserting, half in zip((False, True), halves, strict=True):
        made.append(partial(_itself, half))
        made += [partial(make, table, part, inserting) for table in tables for part in range(table.parts)]
    return made


def _itself(made: Statements) -> Statements:
    return made


@dataclass(slots=True)
class PartedLane:
    """One lane in one attempt to write a batch."""

    number: int
    parts: Sequence[Make]
    reached: Reached
    digest: Digest
    """That of the committed parts; without rows until `compare`."""

    def compare(self, batch: Batch) -> None:
        """Render the committed parts again; Fatal when their rows are not the same as before."""
        # Also the digest of the parts to come continues from these.
        for make in self.parts[: self.reached.parts]:
            self.digest.join(make().digest)
        if self.reached.parts and str(self.digest) != self.reached.digest:
            raise batch.differs([self.number], self.reached.digest, str(self.digest))

    @property
    def through(self) -> bool:
        """Whether all parts are committed."""
        return self.reached.parts == len(self.parts)

    def write(
        self,
        connection: Connection,
        batch: Batch,
        makers: Executor,
        run: Callable[[Connection, Statements], int],
        *,
        split: bool,
    ) -> int:
        """Write the remaining parts. `run` writes statements and returns how many rows it did not find; so
        does this method.

        `split`: a transaction for each part. After an error the caller closes the connection, which ends its
        transaction.
        """
        missing, open_ = 0, False
        for at, statements in self._made(makers):
            # Begun only when the first statements are ready, so the transaction does not wait for
            # rendering.
            if not open_:
                connection.begin()
                batch.part_begins(self.number, connection, self.reached)
                open_ = True
            missing += run(connection, statements)
            self.digest.join(statements.digest)
            last = at + 1 == len(self.parts)
            if split or last:
                reached = Reached(at + 1, str(self.digest))
                batch.part_ends(self.number, connection, reached, last=last)
                connection.commit()
                # After the commit: if it fails, the next attempt asks the server how far the lane is.
                self.reached, open_ = reached, False
        return missing

    def _made(self, makers: Executor) -> Iterator[tuple[int, Statements]]:
        """The remaining parts; while one is written the next one is rendered."""
        left = range(self.reached.parts, len(self.parts))
        coming: list[Future[Statements]] = [makers.submit(self.parts[at]) for at in left[:1]]
        with _waited_for(coming):
            for at in left:
                # At most two parts are in memory: the one that is written and the next one.
                made = coming.pop().result()
                coming += [makers.submit(self.parts[at + 1])] if at + 1 < len(self.parts) else []
                yield at, made


@contextmanager
def _waited_for(coming: Sequence[Future[Statements]]) -> Iterator[None]:
    """Wait for rendering at the end, because the file that it reads is removed afterwards."""
    try:
        yield
    finally:
        wait(coming)


def check_size(tables: Sequence[Parted], most: int | None, lanes: int, target: str, dialect: Dialect) -> bool:
    """Whether lanes write each part in a transaction of its own. Fatal when there is only one lane.

    `most`: the bytes of a transaction; None: `TRANSACTION_BYTES` with several lanes, no limit with one. TiDB
    holds a transaction in its memory, so there each part is one, whatever `most` is.
    """
    size = sum(table.size for table in tables)
    limit = most if most is not None else TRANSACTION_BYTES if lanes > 1 else None
    if dialect is Dialect.TIDB:
        limit = 0
    if limit is None or size <= limit:
        return False
    if lanes == 1:
        names = ", ".join(".".join(table.name) for table in tables[:3])
        whole = "with one lane it is never split, so that readers see only consistent snapshots"
        raise Fatal(
            "a transaction is larger than --transaction-max-bytes"
            if limit
            else "a transaction is larger than TiDB should hold in its memory",
            where=f"{target}, table {names}",
            why=f"its rows have {size:,} bytes"
            + (f" and the limit is {limit:,}; {whole}" if limit else f", and {whole}"),
            fix=("raise --transaction-max-bytes, or " if limit else "")
            + "start again with --atomicity table: then it is split, and readers see some of it before "
            "the rest",
        )
    return True

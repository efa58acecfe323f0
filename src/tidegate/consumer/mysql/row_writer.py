"""Writes the rows of a batch into a database: renders them, gives them to the lanes, and moves the position.

    rows are rendered -> begin (durable: which rows, by their digests) -> each lane one transaction -> end

Tables are rendered by threads of their own, and written by the lanes. After an error that may pass, the lanes
that are not committed are written again, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Final

from tidegate.consumer.applying.target import Name, NetChanges, Parted, blaming
from tidegate.consumer.engine.position import Position
from tidegate.consumer.mysql.atomicity import can_spread, is_spread, spread
from tidegate.consumer.mysql.attempts import Attempts
from tidegate.consumer.mysql.digest import Digest, kind_of
from tidegate.consumer.mysql.hold import Hold
from tidegate.consumer.mysql.lanes import Lanes
from tidegate.consumer.mysql.parts import PartedLane, check_size, order
from tidegate.consumer.mysql.progress import Progress
from tidegate.consumer.mysql.rendering import Statements, add_deletes, add_inserts, whole
from tidegate.consumer.mysql.unique_checks import UniqueChecks
from tidegate.consumer.table.definition import Definition

CHANGE_READERS: Final = 2
"""Threads that read, convert and render rows."""


class RowWriter:
    """Writes batches of one target. Calls come from one thread."""

    def __init__(
        self,
        hold: Hold,
        progress: Progress,
        lanes: Lanes,
        attempts: Attempts,
        uniques: UniqueChecks,
        definition: Callable[[Name], Definition | None],
        transaction_bytes: int | None,
    ) -> None:
        """`definition`: that of a table in the target. `transaction_bytes`: see `parts.check_size`."""
        self._hold, self._progress, self._batch, self._lanes = hold, progress, progress.batch, lanes
        self._attempts, self._uniques, self._definition = attempts, uniques, definition
        self._transaction_bytes = transaction_bytes
        self._digest: type[Digest] = Digest
        """The kind of digests of the write that is being made."""
        self.packet = 0
        """The server's max_allowed_packet, in bytes."""
        self._change_readers = ThreadPoolExecutor(CHANGE_READERS, thread_name_prefix="changes")
        self._dealt: dict[Name, list[int]] = {}
        """The lanes that got rows of a table in the last write."""

    def write(
        self, tables: Sequence[NetChanges], reached: Position, parted: Sequence[Parted], *, is_begun: bool
    ) -> bool:
        """Write by lanes, a transaction each, and move the position; `parted`: see `parts`.

        `is_begun`: an interrupted write must be ended, even without rows. False: there was nothing to write,
        and only the position has moved.
        """
        # An earlier release may have begun the write: its digests are compared with those of this run.
        self._digest = kind_of(self._batch.begun_digests)
        self._dealt.clear()
        # A table is rendered by the thread that reads it, so its rows are released once it has statements.
        work = [self._change_readers.submit(self._ready, net_changes) for net_changes in tables]
        wait(work)
        # Everything is rendered before the batch begins, because the digests of all lanes are stored before
        # the first row is written.
        lanes: dict[int, Statements] = {}
        for done in work:
            for number, part in done.result().items():
                lanes.setdefault(number, Statements(self._digest())).add(part)
        position = reached.to_json()
        # Without rows nothing must be durable first. A write that was begun must be ended even so.
        if not lanes and not parted and not is_begun:
            self._attempts.run(lambda attempt: self._progress.move(position))
            return False
        # Before the first attempt: if the answer to its last COMMIT is lost, this number has ended.
        number = self._batch.number
        write = self._writing_parts(lanes, parted, position) if parted else self._writing(lanes, position)

        def attempt_of(attempt: int) -> None:
            # If the batch has ended, the last attempt succeeded and only its answer was lost.
            if not self._batch.has_ended(number):
                write(attempt)
                # After all lanes: a position that moved before a lane has committed would lose that lane's
                # rows.
                self._batch.end(position)

        self._attempts.run(attempt_of)
        return True

    def _writing(self, lanes: Mapping[int, Statements], position: str) -> Callable[[int], None]:
        digests = {number: str(lane.digest) for number, lane in lanes.items()}

        def write(attempt: int) -> None:
            # Durable before the first row: after a crash the digests prove that the rows are the same.
            missing = self._batch.begin(position, digests)
            work = {number: partial(self._lanes.write, number, lanes[number]) for number in missing}
            # Later attempts write one lane after the other, so that no lane waits for another one's locks.
            self._lanes.run(work, side_by_side=attempt == 0)

        return write

    def _writing_parts(
        self, lanes: Mapping[int, Statements], parted: Sequence[Parted], position: str
    ) -> Callable[[int], None]:
        target, dialect = str(self._hold.server), self._hold.dialect
        split = check_size(parted, self._transaction_bytes, self._lanes.count, target, dialect)
        # Before the batch begins: rows may be wrong, and a table that is not known yet needs a query in the
        # control connection, which must not fail while lanes write.
        work = [self._change_readers.submit(table.prepare) for table in parted]
        wait(work)
        for done in work:
            done.result()
        for table in parted:
            if (known := self._definition(table.name)) is not None:
                self._uniques.check(known)
        of_lanes: dict[int, list[Parted]] = {number: [] for number in lanes}
        for table in parted:
            of_lanes.setdefault(self._lanes.of(*table.name), []).append(table)
        made = {
            number: order(lanes.get(number) or Statements(self._digest()), tables, self._part)
            for number, tables in of_lanes.items()
        }

        def write(attempt: int) -> None:
            held = self._batch.begin_parts(position, list(made))
            work = [PartedLane(number, made[number], held[number], self._digest()) for number in made]
            for lane in work:
                lane.compare(self._batch)
            left = {
                lane.number: partial(self._lanes.write_parts, lane, self._change_readers, split=split)
                for lane in work
                if not lane.through
            }
            self._lanes.run(left, side_by_side=attempt == 0)

        return write

    def _ready(self, net_changes: NetChanges) -> dict[int, Statements]:
        """The statements of one table, by the numbers of its lanes."""
        changes = net_changes()
        if changes is None:
            return {}
        table = changes.definition
        with blaming(_name(table)):
            self._uniques.check(table)
            many = self._may_spread(table) and is_spread(changes)
            # docs/guarantees.md#each-change-is-in-a-target-once: by the key alone. So a restart deals the
            # rows to the same lanes, and those that have committed theirs do not write them again.
            parts = spread(changes, self._lanes.count) if many else {self._lanes.of(*_name(table)): changes}
            made = {
                lane: whole(part, self.packet, self._digest(), self._hold.dialect)
                for lane, part in parts.items()
            }
            # Last: the rows of a table that fails here may be in other lanes since an earlier run.
            self._dealt[_name(table)] = list(made)
            return made

    def _may_spread(self, table: Definition) -> bool:
        return self._lanes.spreads and can_spread(table) and self._uniques.only_keyed(table)

    def lanes_of(self, name: Name) -> list[int]:
        """The lanes that may have written rows of a table in the last write."""
        if name in self._dealt:
            return self._dealt[name]
        table = self._definition(name)
        if table is not None and self._may_spread(table):
            return list(range(self._lanes.count))
        return [self._lanes.of(*name)]

    def _part(self, table: Parted, part: int, inserting: bool) -> Statements:
        made = Statements(self._digest())
        changes = table.net_changes(part) if inserting or table.may_delete(part) else None
        if changes is not None:
            if inserting:
                add_inserts(made, changes, self.packet)
            else:
                add_deletes(made, changes, self.packet, self._hold.dialect)
        return made

    def close(self) -> None:
        """Wait for tables that are being read."""
        self._change_readers.shutdown()


def _name(table: Definition) -> Name:
    return table.schema, table.table

"""The contract of a sink: its methods, and how it describes itself. Pure; `registry` finds the sink of a URI.

    check        checks settings and downstream
    partitions   of each topic that rows go to, the same number for all writers
    open_owner   sends Resolved and DDL, and keeps a journal of those that are durable
    fence        stops every earlier writer of some captures, then reads what is durable
    writer       makes rows and progress durable together
    forget       deletes what belongs only to this feed
    describe     says what it accepts, guarantees and cannot do

A sink whose rows are spread over partitions also has

    widen        adds partitions while the feed runs

and one that several captures may write at once

    connect      prepares a fence while the writers still write
    fence_only   fences them, and reads nothing

Exactly-once rests on this promise: after `fence`, a writer that was opened before it makes nothing durable,
and a writer that is opened later under an older grant is refused because `prove` fails. So only writers of
the new grant can add to the records that `fence` returns. One suite of tests checks every sink against this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, Self, TypeAlias, runtime_checkable

import pyarrow as pa

from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri
from tidegate.errors import Retryable
from tidegate.model.arrow_rows import ArrowRows
from tidegate.model.cells import RowBlock
from tidegate.model.ddl import DdlEvent
from tidegate.model.message import Message, MessageBlock
from tidegate.model.progress import Journal

Content: TypeAlias = MessageBlock | RowBlock | ArrowRows | pa.RecordBatch
"""The form in which a pipeline passes changes to the sink; which of them, the sink's `Form` says."""

Prove: TypeAlias = Callable[[], None]
"""Returns if the metadata store still has the caller's grant as the current one, otherwise raises Fenced."""

Check: TypeAlias = Callable[[], None]
"""Returns if the caller's work is still wanted, otherwise raises Fenced. Cheap; callable from any thread.

A sink calls it several times a second while it waits for its downstream. When it raises, the sink passes that
on without waiting any longer, and the outcome of what it waited for is not known.
"""


class Form(StrEnum):
    """The form in which a sink accepts a feed's changes."""

    MESSAGES = "messages"
    """`MessageBlock`: encoded in the feed's protocol, each for a partition."""
    ROWS = "rows"
    """`RowBlock`: decoded rows of one table."""
    ARROW = "arrow"
    """`ArrowRows`: the same with a typed Arrow column per table column."""
    ENTRIES = "entries"
    """Arrow batches of `model.block.ENTRY_SCHEMA`: keys and values as TiKV has them."""


class Domain(StrEnum):
    """The set of changes that one task must write, in the order of the event store.

    For one row this always holds. For a wider domain a single task merges all that the feed follows.
    """

    ROW = "row"
    TABLE = "table"
    FEED = "feed"


class Keys(StrEnum):
    """Which of upstream's keys a sink accepts."""

    RECORDS = "records"
    """Rows of tables."""
    ALL = "all"
    """Any key: also those of a changefeed without tables, which may be indexes or TiDB's own metadata."""


@dataclass(frozen=True, slots=True)
class Description:
    """The form that a sink accepts, its guarantees, and its limits."""

    form: Form
    domain: Domain
    pieces: bool
    """Whether a transaction may become durable in pieces. Otherwise a commit never splits a commit ts."""
    writers: int
    """How many writers may write at once; 0: one for each slot."""
    atomic: bool
    """Whether rows and progress become durable in one step. Otherwise rows become durable first, and writing
    them again changes nothing, so progress is never ahead of rows."""
    fenced_by: str
    """How an earlier writer is stopped, in words; empty: only the end of its lease stops it."""
    keys: Keys = Keys.RECORDS
    shows_whole: bool = False
    """Whether its readers see no part of a transaction, although it becomes durable in pieces."""
    here: bool = False
    """Whether it writes to the capture's own disk, which workers on other machines cannot."""

    def at_once(self, tasks: int) -> int:
        """How many of `tasks` tasks may write at the same time."""
        return 1 if self.domain is not Domain.ROW else min(tasks, self.writers or tasks)

    @property
    def gives_up(self) -> tuple[str, ...]:
        """The limits that a reader of the downstream must know, in words."""
        limits = (
            (
                self.pieces and not self.shows_whole,
                "a transaction may become visible in parts; Resolved, if the protocol has it, shows when it "
                "is whole",
            ),
            (not self.atomic, "after a failure rows may be written again, as they were"),
            (not self.fenced_by, "only the end of its lease stops a writer that was replaced"),
            (self.here, "the changes are on the disk of one capture, so no other one can continue"),
        )
        return tuple(words for applies, words in limits if applies)


@dataclass(frozen=True, slots=True)
class SinkFeed:
    """A feed as its sink knows it."""

    cluster: int
    namespace: str
    name: str
    instance: str
    """Differs between two feeds of the same name, earlier ones and those of other clusters included."""
    uri: SinkUri
    config: ReplicaConfig
    grant: tuple[int, int, int] = (0, 0, 0)
    """The grant under which the caller acts: token (two numbers) and incarnation, compared in this order.
    Zeros: the caller only reads."""
    capture: str = ""
    """The capture whose writers are opened: each capture has slots of its own."""
    folder: Path | None = None
    """The changefeed's own folder on the capture, for a sink that stores something there."""


class Undecided(Retryable):
    """It is not known whether a commit took effect. It must not be repeated: that could double its rows.

    The next incarnation finds out: it fences, and reads what is durable.
    """


class OpenTransactions(Retryable):
    """Records after an open transaction cannot be read yet. Fence the writers, and read again."""


class SlotTaken(Retryable):
    """The slot was taken before the commit and has been taken back: nothing of the transaction is visible.

    Deliver again what came after the last commit.
    """


class Writer(Protocol):
    """Writes the rows of one task at a time: any number of calls of `write`, then `commit`.

    Each call raises Fenced if another incarnation has taken over, SlotTaken if everything since the last
    commit is lost and may be written again, and Retryable if the sink fails. `commit` also raises Undecided.
    """

    @property
    def is_due(self) -> bool:
        """Whether the transaction should be committed now."""
        ...

    @property
    def room(self) -> int:
        """Bytes that may be written before `is_due` is asked again."""
        ...

    def write(self, contents: Sequence[Content]) -> None:
        """Add the changes that come next, each content of one table; `position` orders them across tables.

        The writer must not keep references to the contents: rows point into memory that is freed after the
        call.
        """
        ...

    def commit(self, progress: Mapping[str, bytes]) -> None:
        """Make everything since the last commit, and these records, durable together before returning."""
        ...

    def abort(self) -> None:
        """Discard what was written since the last commit."""
        ...

    def close(self) -> None:
        """Release connections and threads without waiting; uncommitted rows are discarded, maybe later."""
        ...


class Marks(Protocol):
    """How a protocol encodes Resolved and DDL, from `codec.registry.marks`. Only sinks of messages use it."""

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message | None: ...

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None: ...

    def encode_admin(self, partitions: int) -> Message | None: ...

    def ddl_to_all_partitions(self) -> bool: ...


class OwnerSink(Protocol):
    """The owner's side of a sink. Calls block, come from one thread, and are durable on return.

    A sink without topics ignores the arguments that concern topics.

    Raises Fenced if another owner has taken over. After Retryable the caller opens a new one, because only
    the journal, which is read at opening, shows whether the failed call took effect.
    """

    @property
    def journal(self) -> Journal:
        """The last DDL and Resolved that are durable."""
        ...

    def use(self, topics: Iterable[str]) -> None:
        """From now on rows and DDL may go to these topics: each exists, its number of partitions is fixed,
        and Resolved is sent to it. Raises the errors of `Sink.check`.
        """
        ...

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        """Send one DDL event to a topic in use (empty: the feed's own), unless the journal holds it."""
        ...

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        """Send Resolved to all topics in use: everything up to `ts` is durable. `ts` must not decrease."""
        ...

    def forget(self, keys: Iterable[str]) -> None:
        """Delete records of progress that no incarnation will read again."""
        ...

    def close(self) -> None:
        """Release connections and threads; nothing more is sent."""
        ...


@runtime_checkable
class PartitionedOwner(OwnerSink, Protocol):
    """The owner's side of a sink whose topic may get another number of partitions while the feed runs."""

    @property
    def partitions(self) -> int:
        """The number of partitions of the feed's own topic over which rows are spread now."""
        ...

    @property
    def is_repartitioned(self) -> bool:
        """Whether that number was ever changed. If so, readers need a layout to find a row's partition."""
        ...

    def repartition(self, ts: int, partitions: int, build_ms: int = 0) -> None:
        """Make Resolved `ts`, and the new number of partitions for rows above `ts`, durable together.

        The caller guarantees that every row up to `ts` is durable and no row above it. Raises Retryable if a
        row above `ts` is durable. Writers that use the old number must be fenced before anything above `ts`
        is written: otherwise they would write to partitions where readers do not expect these rows.
        """
        ...


class Sink(Protocol):
    """One feed at its downstream. Cheap to make: nothing is asked of the downstream before the first call."""

    def describe(self) -> Description:
        """The form that the sink accepts, its guarantees, and its limits."""
        ...

    def check(self) -> int:
        """Check settings and downstream, create what the settings allow, and return the number of partitions.

        A sink without partitions returns 1. Raises InvalidInput if the settings do not fit, and Retryable if
        the downstream does not answer.
        """
        ...

    def partitions(self, topic: str) -> int:
        """The number of partitions that rows of a topic are spread over; 1 for a sink without partitions.

        The owner has fixed it (`OwnerSink.use`), so all writers of an incarnation get the same number.
        Raises Retryable if it is not fixed yet, or the downstream does not answer.
        """
        ...

    def open_owner(self, marks: Marks | None, prove: Prove) -> OwnerSink:
        """Open the owner's side and fence every earlier owner. `prove` is called after the fence.

        `marks`: given to a sink of messages, and to no other.
        """
        ...

    def fence(
        self,
        writers: Mapping[str, int],
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> dict[str, bytes]:
        """Fence every writer of the feed on these captures, in all slots below the number given for each.

        Returns the durable records by key. `alive` is called after each writer that is fenced, because there
        may be thousands of them. `check` is called while it waits.
        """
        ...

    def writer(
        self,
        slot: int,
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> Writer:
        """Open the writer of a slot and fence the one before it. `alive` is called when rows are accepted,
        `check` while the writer waits, here and in each of its methods except `close`.
        """
        ...

    def same_place(self, other: Self) -> bool:
        """Whether `other` finds what this sink has written. Raises Retryable if that cannot be found out."""
        ...

    def forget(self) -> None:
        """Delete what is stored for the feed apart from its rows. It is no error if nothing is stored."""
        ...


@runtime_checkable
class PartitionedSink(Sink, Protocol):
    """A sink whose topic can get more partitions while the feed runs; its owner is a `PartitionedOwner`."""

    def widen(self, partitions: int) -> None:
        """Give the feed's own topic at least `partitions` partitions. It never loses any.

        Raises InvalidInput if they cannot be added, and Retryable if the downstream does not answer.
        """
        ...


@runtime_checkable
class SharedSink(Sink, Protocol):
    """A sink that several captures may write at once. Their owner fences all of them before any begins, and
    each reads then what is durable. Nothing is delivered meanwhile, so the owner prepares its fence before.
    """

    def connect(self, writers: Mapping[str, int]) -> None:
        """Prepare `fence_only` for these writers, as `fence` takes them, instead of what was prepared before.

        It fences nobody, does not wait for the downstream, and may be left out. The preparation is kept until
        a `fence_only`, or a call without writers.
        """
        ...

    def fence_only(
        self,
        writers: Mapping[str, int],
        prove: Prove,
        alive: Callable[[], None] = lambda: None,
        check: Check = lambda: None,
    ) -> None:
        """As `fence`, but without reading the records."""
        ...

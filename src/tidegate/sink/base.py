"""What a sink must be able to do, and what it says of itself. Pure; `registry` finds one for a URI.

    check        settings and downstream
    partitions   of each topic that rows go to, the same number for all writers
    open_owner   Resolved and DDL, and the journal of what of them is out
    fence        stop every earlier writer of some captures, then read what is durable
    writer       rows and progress, durable together
    forget       what belongs to the feed, and to nobody else, goes
    describe     what it takes, promises and gives up

The promise on which exactly-once rests: after `fence` no writer that was opened before it makes anything
durable, and one that is opened later under an older grant is refused by its proof. So the records that
`fence` returns cannot grow but by writers of the new grant. One suite of tests holds every sink to it.
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
"""What a plan ends in, by the sink's `Form`."""

Prove: TypeAlias = Callable[[], None]
"""Returns while the caller's grant is the current one by the metadata store, else raises Fenced."""


class Form(StrEnum):
    """What a sink takes of a feed's changes."""

    MESSAGES = "messages"
    """`MessageBlock`: encoded in the feed's protocol, each for a partition."""
    ROWS = "rows"
    """`RowBlock`: decoded rows of one table."""
    ARROW = "arrow"
    """`ArrowRows`: the same with a typed Arrow column per table column."""
    ENTRIES = "entries"
    """Arrow batches of `model.block.ENTRY_SCHEMA`: keys and values as TiKV has them."""


class Domain(StrEnum):
    """What must be written together, by one task and in the store's order.

    A row's changes always are. For anything wider one task merges all that the feed follows.
    """

    ROW = "row"
    TABLE = "table"
    FEED = "feed"


@dataclass(frozen=True, slots=True)
class Description:
    """What a sink takes, promises and gives up."""

    form: Form
    domain: Domain
    pieces: bool
    """Whether a transaction may become durable in pieces; else a commit comes only between commit ts."""
    writers: int
    """How many may write at once; 0: as many as there are slots."""
    atomic: bool
    """Whether rows and progress become durable in one step. Else rows come first, and writing them again
    changes nothing: progress is never ahead of them."""
    fenced_by: str
    """What stops an earlier writer, in words; empty: nothing does but the end of its lease."""
    repartitions: bool = False
    """Whether its owner's side is a `PartitionedOwner`."""
    here: bool = False
    """Whether it writes to the capture's own disk, which workers on other machines cannot."""

    def at_once(self, tasks: int) -> int:
        """How many of so many tasks may write at the same time."""
        return 1 if self.domain is not Domain.ROW else min(tasks, self.writers or tasks)


@dataclass(frozen=True, slots=True)
class SinkFeed:
    """A feed as its sink knows it."""

    cluster: int
    namespace: str
    name: str
    instance: str
    """Another feed of the same name, earlier or elsewhere, has another."""
    uri: SinkUri
    config: ReplicaConfig
    grant: tuple[int, int, int] = (0, 0, 0)
    """Under which the caller acts: token and incarnation, compared in this order. Zeros: it only asks."""
    capture: str = ""
    """Whose writers it opens: slots are a capture's own."""
    folder: Path | None = None
    """The changefeed's own folder on the capture, for a sink that keeps something there."""


class Undecided(Retryable):
    """Whether a commit took effect is not known, and it must not be made again: another would double it.

    The next incarnation finds out: it fences, and reads what is durable.
    """


class OpenTransactions(Retryable):
    """What was made durable behind them cannot be read yet. Fence their writers, and read again."""


class SlotTaken(Retryable):
    """The slot was taken before the commit and has been taken back: nothing of the transaction is visible.

    Deliver again what came after the last commit.
    """


class Writer(Protocol):
    """Rows of one task at a time. `write` as often as need be, then `commit`.

    Each call raises Fenced when another incarnation has taken over, SlotTaken when all since the last commit
    is lost and may be written again, Retryable when the sink fails, and `commit` Undecided.
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
        """The changes that come next, each table's apart; their `position` tells the order across tables.

        Nothing of the contents may be kept beyond the call: rows point into memory that goes.
        """
        ...

    def commit(self, progress: Mapping[str, bytes]) -> None:
        """All since the last commit and these records, durable together on return."""
        ...

    def abort(self) -> None:
        """Give up what was written since the last commit."""
        ...

    def close(self) -> None:
        """Let go of connections and threads, at once; what is not committed is given up sooner or later."""
        ...


class Marks(Protocol):
    """How a protocol says Resolved and DDL; `codec.registry.marks` gives one. For sinks of messages."""

    def encode_ddl(self, event: DdlEvent, build_ms: int = 0) -> Message | None: ...

    def encode_resolved(self, ts: int, build_ms: int = 0) -> Message | None: ...

    def encode_admin(self, partitions: int) -> Message | None: ...

    def ddl_to_all_partitions(self) -> bool: ...


class OwnerSink(Protocol):
    """The owner's side: blocking, called from one thread, durable on return.

    A sink without topics ignores what is said of them.

    Raises Fenced when another owner has taken over; after Retryable a new one is opened, since only the
    journal that it reads tells whether the call took effect.
    """

    @property
    def journal(self) -> Journal:
        """What is out."""
        ...

    def use(self, topics: Iterable[str]) -> None:
        """Rows, and DDL, may go to these topics from now on: they are there, with a fixed number of
        partitions, and Resolved goes to them. Raises as `Sink.check`.
        """
        ...

    def send_ddl(self, event: DdlEvent, build_ms: int = 0, topic: str = "") -> None:
        """One DDL event to a topic in use (empty: the feed's own), unless the journal holds it."""
        ...

    def send_resolved(self, ts: int, build_ms: int = 0) -> None:
        """Everything up to `ts` is out, in all topics in use; never below the last one."""
        ...

    def forget(self, keys: Iterable[str]) -> None:
        """Delete records of progress that no incarnation can want any more."""
        ...

    def close(self) -> None:
        """Let go of what is held; nothing more is sent."""
        ...


@runtime_checkable
class PartitionedOwner(OwnerSink, Protocol):
    """The owner's side of a sink whose topic may get another number of partitions while the feed lives."""

    @property
    def partitions(self) -> int:
        """Over how many partitions of the feed's own topic rows are spread now."""
        ...

    @property
    def is_repartitioned(self) -> bool:
        """Whether that number was ever changed, so that readers go by a layout."""
        ...

    def repartition(self, ts: int, partitions: int, build_ms: int = 0) -> None:
        """Resolved `ts`, and that rows above it go to so many partitions: durable together on return.

        Every row up to `ts` is out, and none above it. Raises Retryable, too, when one above it is.
        Who writes by the old number must be fenced before anything above `ts` is written.
        """
        ...


class Sink(Protocol):
    """One feed's place downstream. Cheap to make; nothing is asked of the downstream before a call."""

    def describe(self) -> Description:
        """What it takes, promises and gives up."""
        ...

    def check(self) -> int:
        """Look at settings and downstream, make what the settings allow; the number of partitions, or 1.

        Raises InvalidInput when they do not fit, and Retryable when the downstream does not answer.
        """
        ...

    def partitions(self, topic: str) -> int:
        """How many partitions rows of a topic are spread over; a sink without them: 1.

        The owner has fixed it (`OwnerSink.use`), and no two writers of an incarnation get different numbers.
        Raises Retryable when it has not, or the downstream does not answer.
        """
        ...

    def open_owner(self, marks: Marks | None, prove: Prove) -> OwnerSink:
        """The owner's side; every owner before this one is fenced. `prove` is asked after the fence.

        `marks`: of a sink of messages, and of no other.
        """
        ...

    def fence(
        self, writers: Mapping[str, int], prove: Prove, alive: Callable[[], None] = lambda: None
    ) -> dict[str, bytes]:
        """Fence every writer of the feed on these captures, in the slots below each one's number; then
        what is durable, by key. `alive` is called when one of many writers is fenced.
        """
        ...

    def writer(self, slot: int, prove: Prove, alive: Callable[[], None] = lambda: None) -> Writer:
        """The writer of a slot; the one before it is fenced. `alive` is called when something is taken."""
        ...

    def same_place(self, other: Self) -> bool:
        """Whether what one has written is there for the other. Raises Retryable when that cannot be told."""
        ...

    def forget(self) -> None:
        """Delete all that is kept for the feed beside its rows; nothing there is no error."""
        ...

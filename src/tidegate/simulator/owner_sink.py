"""The sink of the simulated owner: it fences earlier writers, opens the sink, commits DDL and Resolved.

The product's form: `server.owner.sink_lifetime` and `server.delivery.sink_thread`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tidegate.control.grants import Grant, writers_of
from tidegate.control.metadata import grant_key
from tidegate.errors import Fenced, Retryable
from tidegate.model.timestamp import Timestamp
from tidegate.simulator.network import SINK
from tidegate.simulator.owner_grants import OwnerGrants
from tidegate.simulator.sink import OWNER, Journal, Record, RecordKind
from tidegate.simulator.virtual_time import Steps
from tidegate.simulator.world import CLUSTER, FEED

if TYPE_CHECKING:
    from tidegate.simulator.control_process import Control

CALL_S: Final = 20.0
"""How long one call of the sink may take."""


class OwnerSink:
    """The sink of the changefeed's owner, from incarnation to incarnation."""

    def __init__(self, control: Control, grants: OwnerGrants) -> None:
        self._control, self._grants = control, grants
        self._world, self._off = control.world, control.world.off
        self._epoch = 0
        """The epoch of our writer at the sink."""
        self.journal = Journal(0, 0)
        """The records that the sink had committed when it was opened."""
        self.is_open = False

    def fence_all(self, grants: dict[str, Grant], lead: Grant, name: str) -> Steps[dict[str, Grant]]:
        """If several captures will write: fence every earlier writer before any of them begins.

        Returns the grants of which it has yet to be stored that their writers and givers are fenced.
        """
        if len(grants) == 1:
            return {}
        # All stored grants, not only this round's. A writer without ranges may have left a transaction open,
        # and readers do not see what others have committed behind it.
        found = yield from self._grants.read()
        stored = {capture: grant for capture, (grant, _) in found.items()}
        givers = {giver for grant in stored.values() for giver in grant.givers}
        writers = sorted(writers_of(stored) if "all_writers" not in self._off else givers)
        # A replaced owner must not fence the writers of its successor.
        yield from self._prove(lead, name)
        for writer in writers if "owner_fence" not in self._off else ():
            yield from self._call(self._world.sink.initialise, writer)
        yield from self._prove(lead, name)
        return {**stored, **grants} if "fence_before_settled" not in self._off else {}

    def open(self, lead: Grant, name: str) -> Steps[None]:
        """Open the sink as the owner, and read its journal."""
        sink = self._world.sink
        # Without an open transaction one attempt is enough. Otherwise the writers that may have left it open
        # are fenced, which aborts it, and the journal is read once more.
        for fences in (True, False):
            # Before the journal is read: an earlier owner that can still commit could add to it afterwards.
            self._epoch = yield from self._call(sink.initialise, OWNER)
            yield from self._prove(lead, name)
            try:
                self.journal = yield from self._call(sink.journal)
                break
            except Retryable:
                if not fences:
                    raise
                for writer in sorted({*lead.givers, name}):
                    yield from self._call(sink.initialise, writer)
                yield from self._prove(lead, name)
        if "journal" in self._off:
            self.journal = Journal(0, 0)
        self.is_open = True

    def commit(self, kind: RecordKind, ts: Timestamp) -> Steps[None]:
        """Produce one record and commit it. Raises Retryable if another owner has opened the sink."""
        sink, epoch = self._world.sink, self._epoch
        self._control.announces()
        yield self._world.time.rng.uniform(0.0, 0.002)
        try:
            yield from self._call(sink.produce, OWNER, epoch, [Record(kind, "", ts)])
            yield from self._call(sink.commit, OWNER, epoch, None)
        except Fenced as error:
            # Not Fenced, which would end the capture. The fence does not prove that the other owner is the
            # later one. The next write to etcd decides that.
            raise Retryable("another owner has opened the sink") from error
        self._world.timeline.counts[f"{kind} sent"] += 1

    def _prove(self, mine: Grant, name: str) -> Steps[None]:
        """Raise Retryable unless the grants of this round are still the stored ones."""
        if "owner_proof" in self._off:
            return
        found = yield from self._control.client.read(self._world.etcd.get, grant_key(CLUSTER, FEED, name))
        if not mine.is_proven_by(Grant.from_bytes(found.value) if found is not None else None):
            raise Retryable("another incarnation writes now", where=name)

    def _call(self, work: Any, *args: Any) -> Steps[Any]:
        network, process = self._world.network, self._control.process
        found = yield from network.call(process, self._control.capture, SINK, lambda: work(*args), CALL_S)
        return found

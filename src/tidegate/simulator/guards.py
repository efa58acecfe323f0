"""The guards that a simulation can disable, to show that its checks find the violation.

This list has the guards in the simulator's own tasks and services, which correspond to those in
`server.owner.replication`, `pipeline.worker.begin` and the sinks. Guards inside the machines are disabled by
patches instead, as in `tests/control/sharing.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GUARDS: Final[Mapping[str, str]] = {
    "election_guard": "a write to etcd compares the owner's key",
    "key_revisions": "a write to etcd compares the revision of each key that it writes",
    "grants_guard": "a write of grants compares their revisions",
    "term_of_message": "an owner drops messages to another owner",
    "order": "an owner drops a Sync or DispatchResponse that is older than the last one of its capture",
    "answers": "only the answer to the last Dispatch says that a capture runs nothing",
    "once": "an incarnation is dispatched to one epoch of its capture only",
    "given_up": "ranges are taken only when their capture runs nothing, if it is not left behind",
    "owner_fence": "the owner fences earlier writers before it dispatches",
    "all_writers": "it fences those of every capture, since an open transaction hides progress of others",
    "fence_before_settled": "it stores that givers are fenced only when they are",
    "settled_before_run": "it dispatches only when that is stored",
    "inherit": "givers that were never fenced stay givers when ranges are taken again",
    "all_givers": "the givers are those that had the ranges before the change, not during it",
    "own_fence": "a worker initialises its own writer before it reads the progress",
    "sink_fence": "the sink refuses rows of a writer that was initialised again",
    "owner_sink_fence": "the sink refuses Resolved and DDL of an owner after another has opened it",
    "records": "a range begins at its record of progress, if that is above the stored checkpoint",
    "stored": "a range begins at the stored checkpoint, if no record is above it",
    "journal": "an owner continues where the sink's journal of Resolved and DDL ends",
    "owner_proof": "an owner that has opened the sink looks whether its grants are still the stored ones",
}

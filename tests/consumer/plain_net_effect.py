"""The net effect row by row: the plain twin of `net_effect`, `not_replayed` and `_keep`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.consumer.applying.net_effect import ADD, CHANGE, REMOVE, Changes
from tidegate.model.cells import DELETE, UPDATE

Row = tuple[Any, ...]


def plain_effect(
    changes: Changes, keys: Sequence[str], trust: bool, by_kind: bool
) -> tuple[list[tuple[Row, bool]], list[Row]]:
    """The rows to upsert, each with whether it is certainly new, and the keys to delete; both by key."""
    of_key: dict[Row, list[tuple[Any, ...]]] = {}
    new, old = changes.new.to_pylist(), changes.old.to_pylist()
    for at, op in enumerate(changes.op.tolist()):
        place = changes.partition[at], changes.offset[at], changes.seq[at]
        after, before = (tuple(image[at][key] for key in keys) for image in (new, old))
        entries = []
        if op == DELETE or (op == UPDATE and after != before):
            entries.append((before, REMOVE))
        if op != DELETE:
            entries.append((after, CHANGE if op == UPDATE and after == before else ADD))
        for key, kind in entries:
            # The number of the entry last: removals are listed after additions.
            order = changes.commit_ts[at], kind if by_kind else 0, *place, kind == REMOVE, at
            of_key.setdefault(key, []).append((order, kind, tuple(new[at].values())))
    upserts, deletes = [], []
    for key, found in sorted(of_key.items()):
        found.sort()
        fresh = found[0][1] == ADD and trust
        if found[-1][1] != REMOVE:
            upserts.append((found[-1][2], fresh))
        elif not fresh:
            deletes.append(key)
    return upserts, deletes


def plain_not_replayed(
    changes: Changes, row: Sequence[int], sign: Sequence[int], content: Sequence[int]
) -> list[int]:
    """Positions of the entries that do not repeat another entry, in topic order."""

    def place(at: int) -> tuple[int, ...]:
        of = row[at]
        return int(changes.partition[of]), int(changes.offset[of]), int(changes.seq[of]), sign[at], at

    run, before = 0, None
    seen: dict[tuple[int, ...], int] = {}
    identities, kept = set(), []
    for at in sorted(range(len(row)), key=place):
        ts, partition = int(changes.commit_ts[row[at]]), int(changes.partition[row[at]])
        if before is not None and (ts < before[0] or partition != before[1]):
            run += 1
        before = ts, partition
        what = ts, sign[at], content[at]
        seen[run, *what] = seen.get((run, *what), 0) + 1
        identity = *what, seen[run, *what]
        if identity not in identities:
            identities.add(identity)
            kept.append(at)
    return kept


def plain_keep(content: Sequence[int], eligible: Sequence[bool], wanted: Sequence[int]) -> list[int]:
    """For each content, the last `wanted[content]` of the eligible entries."""
    left, kept = [max(count, 0) for count in wanted], []
    for at in reversed(range(len(content))):
        if eligible[at] and left[content[at]] > 0:
            left[content[at]] -= 1
            kept.append(at)
    return kept[::-1]

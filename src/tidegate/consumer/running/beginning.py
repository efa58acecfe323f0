"""Where a run of the consumer begins: at the target's stored position, or at the topic's first offsets.

The stored position is compared with what the broker has and with the options that the user gives. A mismatch
ends the run before anything is applied.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidegate.consumer.applying.apply import Applier
from tidegate.consumer.applying.partition_checks import check_held
from tidegate.consumer.applying.target import Address, Target
from tidegate.consumer.ddl.schema_changes import check_policy
from tidegate.consumer.engine.places import place_of
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.reading.offsets import Offsets
from tidegate.consumer.reading.source import Topic
from tidegate.consumer.running.attempts import Attempts
from tidegate.consumer.running.checks import (
    check_begun,
    check_ids,
    check_joining,
    check_retained,
    check_same,
    check_set_aside,
    check_uncompacted,
    without_added,
)
from tidegate.consumer.running.progress import Listener
from tidegate.consumer.selecting.selection import check_same_rules
from tidegate.consumer.settings import Settings


@dataclass(slots=True)
class Beginning:
    """Finds the position at which one run begins, and prepares the applier and `offsets` for it."""

    settings: Settings
    topic: Topic
    address: Address
    target: Target
    applier: Applier
    offsets: Offsets
    attempts: Attempts
    listener: Listener
    ids: dict[str, str] = field(default_factory=dict)
    """Kafka's id of each topic, by name; filled by `position`."""

    def position(self) -> Position:
        """Recover the target, and ask the broker for the topics' partitions and offsets.

        Raises InvalidInput when the target was filled with other options; Retryable when the broker does not
        answer; Fatal when the topic no longer has the messages that the target needs next.
        """
        # First of all, because it fences earlier consumers: a position that is read before that may still
        # move.
        held, rules = self.target.recover(), self.settings.rules.given
        # An interrupted write is completed as it was planned, so its rules must be the same, too.
        for kept in filter(None, (held, self.target.begun)):
            check_same_rules(kept, rules, str(self.address))
            self.applier.selection.know(kept.sources)
            self.applier.set_aside.know(kept.set_aside)
        # Before the broker is asked: what the target itself forbids needs no broker, and no 30 s of patience.
        check_set_aside(bool(self.applier.set_aside.entries), self.address)
        policy, tables = self.settings.rules.schema_changes, self.target.definitions.values()
        check_policy(policy, tables, str(self.address))
        check_held(self.target.definitions, self.applier.selection.partition_spec, str(self.address))
        if held is not None:
            self.applier.ddl_floors.know(held.ddl_floors)
        if held is not None and held.epoch:
            for name in held.topics:
                # The Resolved that announced these partitions is before the stored offsets, so it is not read
                # again.
                self.offsets.written[name] = sum(place_of(held.topics, p)[0] == name for p in held.partitions)
        partitions = self.attempts.patiently(self.offsets.partitions)
        if held is not None and not self.topic.by_offset:
            partitions = without_added(held, self.topic, partitions)
        first = self.attempts.patiently(lambda: self.offsets.first(partitions))
        there = self.topic.names_of(partitions)
        self.ids = self.attempts.patiently(lambda: self.offsets.ids(there))
        check_uncompacted(self.topic, self.attempts.patiently(lambda: self.offsets.compacted(there)))
        if missing := [name for name in self.topic.names if name not in there]:
            self.listener.note(f"not there yet, read as soon as they are: topic {', '.join(missing)}")
        if held is None:
            begin = {p: PartitionPosition(first[p], 0, 0) for p in partitions}
            name, protocol = self.topic.name, self.topic.options.protocol
            fresh = Position(0, name, protocol, self.settings.mode.value, begin)
            zone, by_offset = self.topic.given_zone, self.topic.by_offset
            return replace(fresh, ids=self.ids, time_zone=zone, by_offset=by_offset, rules=rules)
        check_ids(held.ids, self.ids, str(self.address))
        check_same(held, self.topic, partitions, str(self.address), self.settings.until)
        held = held.over(self.topic.names)
        known = self.topic.names_of(held.partitions)
        joining = [p for p in partitions if self.topic.place(p)[0] not in known]
        check_joining(self.topic, {p: first[p] for p in joining}, str(self.address))
        held = held.over(self.topic.names, joining)
        # After the topics' ids are compared: offsets of a topic that was created again mean other messages.
        check_retained(self.topic, {p: held.partitions[p].offset for p in partitions}, first)
        zone = held.zone_from(self.topic.given_zone)
        return replace(held, ids={**held.ids, **self.ids}, time_zone=zone, rules=rules)


def bounds_begun(
    begun: Position | None, topic: Topic, address: Address, until: int | None
) -> dict[int, int] | None:
    """How far an interrupted write went in each partition; None when no write was interrupted."""
    if begun is None:
        return None
    found = {number: part.applied for number, part in begun.over(topic.names).partitions.items()}
    check_begun(found, str(address), until)
    return found

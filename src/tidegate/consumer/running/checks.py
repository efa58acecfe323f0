"""Conditions that must hold between a topic and its target; otherwise the target silently lacks rows. Pure.

Each check raises an error that says what was found and what to do. The checks run at the start, and again
with every round of fetching, because a topic can change while it is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from tidegate.codec.entry import Loss
from tidegate.codec.formats import ddl_header
from tidegate.codec.registry import reader_of
from tidegate.consumer.applying.changes import WHOLE_DELETES
from tidegate.consumer.applying.target import Address
from tidegate.consumer.engine.fetched import Fetched
from tidegate.consumer.engine.places import place_of
from tidegate.consumer.engine.position import Position
from tidegate.consumer.reading.source import Topic
from tidegate.dispatcher.consistency import Visibility
from tidegate.errors import Fatal, InvalidInput, Retryable

ROW_MODE: Final = "use --mode row, which applies changes as it reads them, not by transaction"


def check_timed(topic: Topic) -> None:
    """Raises InvalidInput for options under which a change does not carry its commit ts.

    Such a change has the commit ts 0, so it would be taken for an old one and silently left out. Also raised
    for a protocol that has no watermarks under any options, because no row would ever be applied. A topic
    that is read by offset needs neither.
    """
    if topic.by_offset:
        return
    codec = reader_of(topic.options)
    if codec.unmarked is not None and not codec.unmarked.option:
        raise InvalidInput(
            "the topic cannot be consumed into tables",
            where=f"topic {topic.name}",
            why=codec.unmarked.why,
            fix=f"{ROW_MODE}; or create a changefeed of another protocol into a new topic, and read that one",
        )
    lost = codec.losses(topic.options) & {Loss.COMMIT_TS, Loss.DELETED_TS}
    if not lost:
        return
    option = f" with {codec.unmarked.option}" if codec.unmarked is not None else ""
    raise InvalidInput(
        "the topic cannot be consumed into tables",
        where=f"topic {topic.name}",
        why="; ".join(sorted(lost)),
        fix=f"{ROW_MODE}; or write it by a changefeed{option} in its sink URI, and give --source the same "
        "options",
    )


def check_soft_delete(topic: Topic, rules: Collection[str], *, adopt: bool) -> None:
    """Raises InvalidInput where deleted rows cannot be kept with the moment of their deletion."""
    if not rules:
        return
    where = f"--soft-delete {next(iter(rules))}"
    if adopt:
        raise InvalidInput(
            "--soft-delete and --adopt exclude each other",
            where=where,
            why="a table that is there already lacks the column for deleted rows, and may have unique "
            "indexes that deleted rows would fill",
            fix="leave one of them out",
        )
    lost = reader_of(topic.options).losses(topic.options)
    if lost & {Loss.COMMIT_TS, Loss.DELETED_TS}:
        raise InvalidInput(
            "the topic does not say when a row was deleted",
            where=f"topic {topic.name}, {where}",
            why="; ".join(sorted(lost & {Loss.COMMIT_TS, Loss.DELETED_TS})),
            fix="leave --soft-delete out, or create a changefeed of another protocol into a new topic",
        )
    if Loss.DELETED_CELLS in lost:
        raise InvalidInput(
            "deletes do not carry the rows that are to be kept",
            where=f"topic {topic.name}, {where}",
            why=Loss.DELETED_CELLS,
            fix=WHOLE_DELETES,
        )


def check_set_aside(asked: bool, address: Address) -> None:
    """InvalidInput if tables may be, or are, set aside where readers see whole transactions at once."""
    if asked and address.seen is Visibility.TRANSACTIONS:
        raise InvalidInput(
            "a table cannot be set aside where readers see whole transactions",
            where=f"{address}, --lanes 1 (atomicity global)",
            why="each step is one transaction over all tables, and would lack the changes of one table",
            fix="leave --set-aside out, or use --atomicity table, where each table is written on its own",
        )


def check_same(
    held: Position, topic: Topic, partitions: Sequence[int], target: str, until: int | None
) -> None:
    """Raises unless the target was filled from these topics, or some of them, with these partitions, and is
    not past `until`.
    """
    _check_progress(held, topic, target)
    # Compared by names: a topic that is added to --source changes the numbers of the others.
    places = [place_of(held.topics, number) for number in held.partitions]
    if not {name for name, _ in places} <= set(topic.names) or held.protocol != topic.options.protocol:
        raise InvalidInput(
            "the target belongs to another topic",
            where=target,
            why=f"it holds {held.topic} ({held.protocol}), asked for {topic.name} ({topic.options.protocol})",
            fix="choose another directory, or name all topics that the target holds",
        )
    known = [topic.number(*place) for place in places]
    of_held = [number for number in partitions if topic.place(number)[0] in topic.names_of(known)]
    check_partitions(known, topic, of_held, target)
    # Protocols that send moments in UTC do not depend on the option, so another value does no harm there.
    if held.time_zone and topic.given_zone not in ("", held.time_zone) and not reader_of(topic.options).utc:
        raise InvalidInput(
            "the target was filled under another --time-zone",
            where=target,
            why=f"its TIMESTAMPs were read as {held.time_zone}, asked for {topic.given_zone}: rows of one "
            "table would differ by hours",
            fix=f"give --time-zone {held.time_zone}; if that was wrong, begin a new target",
        )
    # A database may hold rows above its snapshot: those of a step that was the last, or of a topic that is
    # ahead in table mode.
    furthest = max([held.ts, *(part.applied for part in held.partitions.values() if not held.by_offset)])
    if until is not None and until < furthest:
        raise InvalidInput(
            "the target is already past --until",
            where=target,
            why=f"its newest snapshot is at {held.ts}, --until is {until}"
            + (f", and it holds rows up to {furthest}" if furthest > held.ts else ""),
            fix="read an older snapshot with open_snapshot(dir, at=TS), or use a new directory",
        )


def check_by_offset(topic: Topic, until: int | None) -> None:
    """InvalidInput for `--until`, which a topic without watermarks cannot give."""
    if topic.by_offset and until is not None:
        codec = reader_of(topic.options)
        option = codec.unmarked.option if codec.unmarked is not None else ""
        raise InvalidInput(
            "--until needs watermarks",
            where=f"topic {topic.name}",
            why=f"without them it is not known when a {codec.name} topic is complete up to a ts",
            fix=f"add {option} to --source, if the changefeed has it in its sink URI; otherwise leave "
            "--until out"
            if option
            else "leave --until out",
        )


def check_one_topic(topic: Topic) -> None:
    """InvalidInput for several topics without watermarks, if there may be DDLs.

    A DROP DATABASE, or a RENAME from one topic to another, is on one of them only, and its place between the
    rows of the others is not known.
    """
    if topic.by_offset and len(topic.names) > 1 and reader_of(topic.options).plain_ddls:
        raise InvalidInput(
            "several topics without watermarks cannot be read together",
            where=f"topics {topic.name}",
            why="the place of a DDL of one topic between the rows of the others is not known",
            fix="run a consumer with a target of its own for each topic, or write them with watermarks",
        )


def check_no_ddls(topic: Topic, fetched: Iterable[Fetched]) -> None:
    """Fatal for a DDL on one of several topics that are read by offset."""
    if not topic.by_offset or len(topic.names) == 1:
        return
    for part in fetched:
        for message in part.ddls:
            raise Fatal(
                "a DDL is on one of several topics without watermarks",
                where=f"{topic.where(part.partition)}, offset {message.offset}: {message.query[:200]}",
                why="its place between the rows of the other topics is not known",
                fix="give --source the options that the topics are written with: with watermarks, --mode row "
                "is not needed",
            )


def _check_progress(held: Position, topic: Topic, target: str) -> None:
    if held.by_offset != topic.by_offset:
        kinds = {True: "offsets, without watermarks", False: "watermarks"}
        raise InvalidInput(
            "the target was filled with another kind of progress",
            where=target,
            why=f"it goes by {kinds[held.by_offset]}, and this run by {kinds[topic.by_offset]}",
            fix="give the --mode and the options of --source that it was filled with, or begin a new target",
        )


def check_ids(known: Mapping[str, str], found: Mapping[str, str], target: str) -> None:
    """Fatal when a topic was deleted and created again, under its name, since the target was filled from it.

    Offsets of the old topic mean other rows in the new one. A topic whose id is not known is not checked.
    """
    # docs/guarantees.md#a-snapshot-never-lacks-rows-in-silence: an old offset may exist in the new topic, so
    # nothing else would show that rows are skipped.
    other = [name for name, id_ in known.items() if found.get(name, id_) != id_]
    if other:
        name = other[0]
        raise Fatal(
            "a topic is another one than the target was filled from",
            where=f"topic {name}, target {target}",
            why=f"it was deleted and created again: Kafka's id of it was {known[name]} and is {found[name]}",
            fix="start a new target from the new topic's beginning",
        )


def check_uncompacted(topic: Topic, compacted: Sequence[str]) -> None:
    """InvalidInput for compacted topics: the broker may remove single messages, be it rows, DDLs or marks."""
    if compacted:
        raise InvalidInput(
            "a compacted topic cannot be consumed into tables",
            where=f"topic {', '.join(compacted)} at {topic.uri.bootstrap}",
            why="its cleanup.policy lets the broker remove a message when a later one has the same key, so "
            "that changes and DDLs are missing without a trace",
            fix="read the topic of a changefeed that found cleanup.policy=delete from its beginning on",
        )


def check_begun(bounds: Mapping[int, int], target: str, until: int | None) -> None:
    """InvalidInput when an interrupted write, which must be completed, goes beyond `until`."""
    furthest = max(bounds.values(), default=0)
    if until is not None and furthest > until:
        raise InvalidInput(
            "the target is already past --until",
            where=target,
            why=f"a write up to ts {furthest} was interrupted and is completed first",
            fix=f"run once with --until {furthest} or more",
        )


def check_partitions(held: Sequence[int], topic: Topic, partitions: Sequence[int], target: str) -> None:
    """Fatal when a topic has other partitions than those that are read: their rows would be missing."""
    # docs/guarantees.md#a-snapshot-never-lacks-rows-in-silence: a watermark over too few partitions passes
    # rows of the others.
    if sorted(held) == sorted(partitions):
        return
    name = topic.place(min(set(held) ^ set(partitions)))[0]
    there, read = (sum(topic.place(n)[0] == name for n in numbers) for numbers in (partitions, held))
    raise Fatal(
        f"the topic has {there} partitions, the target was filled from {read}",
        where=f"topic {name}, target {target}",
        why="partitions were added, or the topic was deleted and created again",
        fix=f"add partition-num={read} to --source if the changefeed still writes only "
        "those; else start a new target directory from a new changefeed"
        if name == topic.uri.topic
        else "start a new target directory from a new changefeed into other topics",
    )


def without_added(held: Position, topic: Topic, partitions: Sequence[int]) -> list[int]:
    """The partitions to read from the start on: those that the target holds, and those of topics new to it.

    Partitions that were added to the target's topics since are read as soon as something is on them
    (`added_partitions`).
    """
    known = {place_of(held.topics, n) for n in held.partitions}
    names = {name for name, _ in known}
    return [n for n in partitions if topic.place(n) in known or topic.place(n)[0] not in names]


def added_partitions(topic: Topic, unread: Mapping[int, int], written: Mapping[str, int]) -> list[int]:
    """Select the `unread` partitions that must be read from now on; `unread` gives the end of each.

    A partition must be read if something is on it, or if the producer has announced that it writes it: the
    messages of one Kafka transaction do not become visible in all partitions at the same moment. The other
    partitions hold nothing back, because the rows that a watermark covers were written before it.
    """
    found = []
    for number, end in unread.items():
        name, partition = topic.place(number)
        # The end is 0 if only aborted transactions are there (`FetchRounds`): no watermark would ever come
        # from such a partition, and it would hold all others back.
        if end > 0 or partition < written.get(name, 0):
            found.append(number)
    return found


def check_there(topic: Topic, read: Sequence[int], written: Mapping[str, int]) -> None:
    """Retryable while the producer writes partitions that the broker does not show yet.

    Nothing that names them may be taken before, because a watermark may cover rows in them.
    """
    there = set(read)
    for name, count in written.items():
        missing = [n for n in range(count) if topic.number(name, n) not in there]
        if missing:
            raise Retryable(
                f"partition {missing[0]} of topic {name} is not there yet",
                where=topic.uri.bootstrap,
                why=f"its changefeed has reported that it writes {count} partitions",
                fix="nothing: the broker learns of it from the others",
            )


def check_announced(
    topic: Topic, added: Collection[int], fetched: Iterable[Fetched], written: Mapping[str, int]
) -> None:
    """Fatal when an added partition holds messages, and no Resolved has announced that partition.

    Its producer distributes rows over all partitions as soon as it sees a new one. The changes of one row are
    then in several partitions, and nothing says since which ts.
    """
    for part in fetched:
        name, partition = topic.place(part.partition)
        # Messages and not offsets: markers of transactions raise the end of a partition on which nothing was
        # written.
        if part.partition in added and part.messages and partition >= written.get(name, 0):
            raise Fatal(
                f"partition {partition} was added to the topic, and a writer that was not a re-partition "
                "wrote to it",
                where=f"topic {name}",
                why="no Resolved states from which ts rows go there: changes of one row are on several "
                "partitions, and their order is not known",
                fix="start a new target directory from a new changefeed; if it is Tidegate's, change the "
                "number of partitions with `tidegate changefeed repartition`",
            )


def check_joining(topic: Topic, first: Mapping[int, int], target: str) -> None:
    """Fatal when a topic that is read from now on has lost its beginning; `first`: its oldest offsets."""
    # A joining topic is read from offset 0: its tables exist at the target only as far as its messages build
    # them up.
    lost = [number for number, offset in first.items() if offset > 0]
    if lost:
        raise Fatal(
            "a topic that the target does not hold yet has lost its beginning",
            where=f"{topic.where(lost[0])}, target {target}",
            why=f"its oldest message is {first[lost[0]]}: the broker's retention deleted those before",
            fix="start a new target directory from a new changefeed, and raise the topic's retention",
        )


def check_followed(
    topic: Topic, fetched: Iterable[Fetched], until: int | None, read: Collection[str]
) -> None:
    """InvalidInput when a DDL moves a table's rows to a topic that is not read: the target would miss them.

    Retryable when that topic is named in --source but is not among the topics that are `read` now: brokers
    report a new topic with a delay.
    """
    for part in fetched:
        for ddl in part.ddls:
            if ddl.header is None or (until is not None and ddl.ts > until):
                continue
            moved_to = ddl_header.decode(ddl.header).moved_to
            if moved_to in topic.names and moved_to not in read:
                raise Retryable(
                    f"topic {moved_to} is not there yet",
                    where=topic.uri.bootstrap,
                    why=f"the rows of table {ddl.schema}.{ddl.table} continue there after ts {ddl.ts}",
                    fix="nothing: the changefeed has made it, and the broker learns of it from the others",
                )
            if moved_to and moved_to not in topic.names:
                raise InvalidInput(
                    f"the rows of table {ddl.schema}.{ddl.table} continue in a topic that is not read",
                    where=f"{topic.where(part.partition)}, offset {ddl.offset}: {ddl.query[:100]}",
                    why=f"from ts {ddl.ts} on they are in topic {moved_to}",
                    fix=f"start the consumer with topic {moved_to} among those of --source, separated by "
                    "commas: it resumes from the target's latest snapshot",
                )


def check_whole(topic: Topic, wanted: Mapping[int, int], ends: Mapping[int, int]) -> None:
    """Fatal when a partition ends before an offset up to which it has been read."""
    # For brokers without topic ids (before 2.8), where `check_ids` sees nothing: a new topic is shorter than
    # the old one was, for a time.
    short = [p for p, offset in wanted.items() if ends[p] < offset]
    if short:
        raise Fatal(
            "the topic ends before what the target has read of it",
            where=f"{topic.where(short[0])}: read to {wanted[short[0]]}, it ends at {ends[short[0]]}",
            why="the topic was deleted and created again, or its broker has lost data",
            fix="start a new target directory from a new changefeed",
        )


def check_retained(topic: Topic, needed: Mapping[int, int], first: Mapping[int, int]) -> None:
    """Fatal when the broker has deleted messages that the target still needs.

    Checked at the start, and whenever a range cannot be read: retention may also overtake a running consumer.
    """
    lost = {p: (offset, first[p]) for p, offset in needed.items() if offset < first[p]}
    if lost:
        where = "; ".join(
            f"{topic.where(p)}: needed {need}, oldest {oldest}" for p, (need, oldest) in lost.items()
        )
        raise Fatal(
            "the topic no longer holds messages that the target needs",
            where=where,
            why="the broker's retention deleted them",
            fix="start a new target directory from a new changefeed, and raise the topic's retention",
        )


def check_complete(topic: Topic, fetched: Iterable[Fetched], until: int | None) -> None:
    """Fatal when a row up to `until` is not on the topic, because it was too large for a message."""
    # docs/guarantees.md#a-snapshot-never-lacks-rows-in-silence: called before anything of the round is
    # applied.
    for part in fetched:
        for message in part.bad:
            if message.reduced_ts is None or (until is not None and message.reduced_ts > until):
                continue
            raise Fatal(
                "a row is not on the topic",
                where=f"{topic.where(part.partition)}, offset {message.offset}, "
                f"commit ts {message.reduced_ts}",
                why=message.why,
                fix="add claim-check-storage-uri=URI to the source URI, if it is in a claim-check storage; "
                "or give --pd, to read it from upstream while its GC keeps it; "
                "otherwise create a changefeed into a new topic with large-message-handle-option=none and a "
                "max-message-bytes that takes its rows, or one whose [filter] rules leave the table out, "
                "and read that one into a new target directory",
            )


def check_marks_read(topic: Topic, fetched: Iterable[Fetched]) -> None:
    """Fatal when an alignment mark cannot be read. For row mode, whose partitions must wait at each mark."""
    for part in fetched:
        for offset, why in part.lost_aligns:
            raise Fatal(
                "an alignment mark cannot be read, and row mode must wait for all partitions there",
                where=f"{topic.where(part.partition)}, offset {offset}",
                why=why,
                fix="fill a new target with --mode transaction, which needs no marks",
            )


def check_own_topics(known: dict[tuple[str, str], str], topic: Topic, fetched: Iterable[Fetched]) -> None:
    """Fatal when a table has rows in two topics. For table mode, where topics do not wait for each other.

    `known`: in which topic each table was found so far; it gets those of this round.
    """
    for part in fetched:
        here, _ = topic.place(part.partition)
        for run in part.segments:
            name = run.schema, run.table
            if (first := known.setdefault(name, here)) != here:
                raise Fatal(
                    "a table has rows in two topics, and table mode applies each topic on its own",
                    where=f"table {'.'.join(name)}: topic {first}, and {topic.where(part.partition)}, "
                    f"offset {run.first_offset}",
                    why="the changefeed's topic rules have changed",
                    fix="use --mode transaction until the consumer is past that place, then --mode table",
                )


def check_not_repartitioned(topic: Topic, fetched: Iterable[Fetched]) -> None:
    """Fatal when the producer writes another number of partitions, and the reader cannot follow.

    An Admin message alone cannot be followed: after it the producer sends the rows above its last Resolved
    again, each to its new partition, and older copies that wait here would be taken for later changes. A
    topic that is read by offset cannot follow either: its partitions do not wait for each other, so one would
    pass the change before the others have reached it.
    """
    for part in fetched:
        if topic.by_offset and part.layouts:
            layout = part.layouts[0]
            raise Fatal(
                f"the changefeed has changed the topic from {layout.old} to {layout.new} partitions",
                where=f"{topic.where(part.partition)}, at ts {layout.ts}",
                why="the topic is read by offset, where partitions do not wait for each other: changes of "
                "one row in two partitions would be applied in any order",
                fix="start a new target directory with a --source that says how the topic is written, so "
                f"that its watermarks are used{_option_of(topic)}",
            )
        for partitions, offset in part.repartitions:
            raise Fatal(
                f"the changefeed has changed the topic to {partitions} partitions",
                where=f"{topic.where(part.partition)}, offset {offset}",
                why="rows of one key may now be in two partitions, in no order between them",
                fix="start a new target directory from a new changefeed",
            )


def _option_of(topic: Topic) -> str:
    """The option of the source URI that gives a topic watermarks, as advice; empty if there is none."""
    unmarked = reader_of(topic.options).unmarked
    return f": add {unmarked.option}" if unmarked is not None and unmarked.option else ""

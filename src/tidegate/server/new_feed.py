"""A request for a changefeed, checked before anything is stored: what it asks for, and what upstream has."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidegate.codec.registry import codec_of, options_of, settled
from tidegate.config.reading import merge_config
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_sink_uri
from tidegate.control.metadata import FeedId
from tidegate.dispatcher.guarantees import APART, IN_PIECES, UNREADABLE, weakness
from tidegate.dispatcher.partitions import CONFLICT
from tidegate.dispatcher.router import Router
from tidegate.errors import InvalidInput
from tidegate.filter.feed import FeedFilter
from tidegate.filter.tables import FIX as MAKE_ELIGIBLE
from tidegate.filter.tables import why_ineligible
from tidegate.kvclient.pd import Keyspace, PdClient
from tidegate.mounter.table_version import TableVersion
from tidegate.server.schema_tracker import load_catalogue
from tidegate.server.stripes import chosen_width
from tidegate.server.table_cuts import find_cuts
from tidegate.sink.base import Description

SHOWN_TABLES: Final = 20
"""How many tables without a key an error, or a changefeed's status, names."""
WEIGHED_TABLES: Final = 5_000
"""How many tables' definitions are looked at for what their dispatcher gives up: half a second."""


class Refused(InvalidInput):
    """A request that is refused; `code` is TiCDC's name of the reason."""

    def __init__(self, code: str, what: str, *, where: str = "", why: str = "", fix: str = "") -> None:
        super().__init__(what, where=where, why=why, fix=fix)
        self.code = code


@dataclass(frozen=True, slots=True)
class NewFeed:
    """A checked request to create a feed."""

    feed: FeedId
    uri: SinkUri
    config: ReplicaConfig
    start_ts: int
    """0: now."""
    target_ts: int
    """0: none."""


def check_new(
    feed: FeedId, sink_uri: str, config: Mapping[str, Any], start_ts: int, target_ts: int
) -> NewFeed:
    """Everything about a new feed that can be checked without asking anybody; raises InvalidInput."""
    uri = parse_sink_uri(sink_uri)
    checked = merge_config(config, uri)
    if not uri.is_reader:  # it takes rows, in no protocol
        checked = settled(checked)
    by_subject = (
        checked.has_tables and not uri.is_reader and codec_of(options_of(checked)).schemas is not None
    )
    with named_code():
        FeedFilter.of(checked)
        Router.of(checked, uri.topic, names_subjects=by_subject)
    if target_ts and start_ts and target_ts <= start_ts:
        raise Refused(
            "CDC:ErrTargetTsBeforeStartTs",
            f"target-ts {target_ts} is not above start-ts {start_ts}.",
            fix="choose a later target-ts",
        )
    return NewFeed(feed, uri, checked, start_ts, target_ts)


def check_shared(new: NewFeed, sink: Description) -> None:
    """Raises InvalidInput for a feed that another capture could not take over."""
    why = ""
    if new.uri.is_reader:
        why = "a reader's changes are kept on the disk of one capture"
    elif sink.here:
        why = "it writes to the disk of one capture"
    elif not sink.fenced_by:
        why = "nothing stops a capture that was replaced from writing to it"
    if why:
        raise InvalidInput(
            "Captures that share an etcd cannot have this changefeed.",
            where=str(new.feed),
            why=why,
            fix="use a sink that fences, such as Kafka; or a server of its own, without --etcd",
        )


def with_tables(new: NewFeed, tables: Sequence[TableVersion]) -> NewFeed:
    """The feed with what the tables at its start-ts decide. Raises Refused for some that it cannot follow."""
    followed, ineligible = split_tables(tables, new.config)
    if ineligible and not new.config.ignore_ineligible_table:
        shown = ineligible[:SHOWN_TABLES]
        more = f", and {len(ineligible) - len(shown)} more" if len(ineligible) > len(shown) else ""
        raise Refused(
            "CDC:ErrTableIneligible",
            "[CDC:ErrTableIneligible]some tables are not eligible to replicate: "
            + ", ".join(t.name for t in shown)
            + more,
            why="; ".join(f"{t.name}: {why_ineligible(t)}" for t in shown),
            fix=MAKE_ELIGIBLE,
        )
    with named_code():
        FeedFilter.of(new.config).check(followed)
    own = new.config.tidegate
    if own.ids_per_stripe:
        return new
    width = chosen_width(table_id for table in followed for table_id in table.physical_ids)
    return replace(new, config=replace(new.config, tidegate=replace(own, ids_per_stripe=width)))


def with_cuts(new: NewFeed, tables: Sequence[TableVersion], pd: PdClient) -> NewFeed:
    """The feed with the cuts of its large tables, unless it brings its own. Asks PD for regions."""
    own, scheduler = new.config.tidegate, new.config.scheduler
    if own.table_cuts or not scheduler.enable_table_across_nodes:
        return new
    followed, _ = split_tables(tables, new.config)
    cuts = find_cuts(pd, [one for table in followed for one in table.physical_ids], scheduler)
    return replace(new, config=replace(new.config, tidegate=replace(own, table_cuts=cuts)))


def with_spans_of(kept: ReplicaConfig, config: ReplicaConfig) -> ReplicaConfig:
    """An updated configuration in which what was chosen of the spans stays, unless it says otherwise.

    Cuts go when `[scheduler]` changes: `with_cuts` then chooses others.
    """
    own, before = config.tidegate, kept.tidegate
    if not own.ids_per_stripe:
        own = replace(own, ids_per_stripe=before.ids_per_stripe)
    if config.scheduler != kept.scheduler:
        if own.table_cuts == before.table_cuts:  # as the API had shown them
            own = replace(own, table_cuts=())
    elif not own.table_cuts and config.scheduler.enable_table_across_nodes:
        own = replace(own, table_cuts=before.table_cuts)
    return replace(config, tidegate=own)


def split_tables(
    tables: Sequence[TableVersion], config: ReplicaConfig
) -> tuple[list[TableVersion], list[TableVersion]]:
    """The tables that pass the filter: those that are followed, and those that have no usable key."""
    verdicts = FeedFilter.of(config)
    passing = verdicts.passing(tables)
    return [t for t in passing if verdicts.follows(t)], [t for t in passing if not verdicts.follows(t)]


async def tables_at(
    pd: PdClient, config: ReplicaConfig, ts: int
) -> tuple[list[TableVersion], list[TableVersion]]:
    """Eligible and ineligible tables that pass the filter at `ts`; a feed of keys has none."""
    if not config.has_tables:
        return [], []
    catalogue = await asyncio.to_thread(load_catalogue, pd, ts)
    with named_code():
        return await asyncio.to_thread(lambda: split_tables(catalogue.entries(ts), config))


@dataclass(frozen=True, slots=True)
class WeakOrder:
    """Tables that a dispatcher gives less order than dispatch by table would."""

    dispatcher: str
    what: str
    tables: tuple[str, ...]
    """The first of them, or the rules that name them."""
    more: int


def weak_orders(followed: list[TableVersion], config: ReplicaConfig, topic: str) -> list[WeakOrder]:
    """What the dispatch rules give up, for the first of the followed tables that they name; `topic`: the
    sink URI's.
    """
    router = Router.of(config, topic)
    ruled = [(table, router.rule_of(table.schema, table.table)) for table in followed if not table.is_view]
    found: dict[tuple[str, str], list[str]] = {}
    for rule in config.sink.dispatchers:
        if rule.partition == CONFLICT:  # said whatever tables there are, because more may be made later
            found.setdefault((CONFLICT, UNREADABLE), []).extend(rule.matcher)
    for table, rule in [one for one in ruled if one[1].topic][:WEIGHED_TABLES]:
        if router.topic_of(table.schema, table.table) != topic:
            found.setdefault((f"{rule.partition}, topic {rule.topic}", APART), []).append(table.name)
    by_table = [(table, rule) for table, rule in ruled if rule.partition in ("default", "table")]
    if config.scheduler.enable_table_across_nodes or config.tidegate.table_cuts:
        for table, rule in by_table[:WEIGHED_TABLES]:
            found.setdefault((rule.partition, IN_PIECES), []).append(table.name)
    concerned = [(table, rule) for table, rule in ruled if rule.partition not in ("default", "table")]
    for table, rule in concerned[:WEIGHED_TABLES]:
        if what := weakness(table.parsed(), rule):
            found.setdefault((rule.partition, what), []).append(table.name)
    return [
        WeakOrder(dispatcher, what, tuple(names[:SHOWN_TABLES]), max(0, len(names) - SHOWN_TABLES))
        for (dispatcher, what), names in found.items()
    ]


def is_embedded(pd: PdClient) -> bool:
    """Whether it is our own upstream, in which tables may appear later."""
    try:
        pd.upstream_info()
    except InvalidInput:
        return False
    return True


@contextlib.contextmanager
def named_code() -> Iterator[None]:
    """An error whose first words are TiCDC's code is refused under that code."""
    try:
        yield
    except InvalidInput as error:
        code = re.match(r"\[(CDC:\w+)\]", error.what)
        if code is None:
            raise
        raise Refused(code[1], error.what, where=error.where, why=error.why, fix=error.fix) from None


def check_keyspace(keyspace: Keyspace | None) -> None:
    """Raises Refused for one whose timestamps come from other servers: the capture's would not be in step."""
    if keyspace is not None and keyspace.tso_group:
        raise Refused(
            "CDC:ErrAPIInvalidParam",
            f"Keyspace '{keyspace.name}' has timestamps of its own.",
            where=f"TSO group {keyspace.tso_group}",
            why="the capture takes its time from PD, that is from group 0; the two are not in step",
            fix="move the keyspace to TSO group 0: other groups cannot be followed",
        )

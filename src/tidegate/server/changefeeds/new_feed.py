"""Checks a request for a changefeed before anything is stored, by itself and against upstream's tables."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tidegate.codec.registry import canonical, codec_of, has_marks, options_of
from tidegate.config.reading import merge_config
from tidegate.config.settings import ReplicaConfig
from tidegate.config.sink_uri import SinkUri, parse_sink_uri
from tidegate.control.metadata import FeedId
from tidegate.dispatcher.consistency import cost_of_pieces, order_of
from tidegate.dispatcher.guarantees import APART, IN_PIECES, UNREADABLE, weakness
from tidegate.dispatcher.partitions import CONFLICT
from tidegate.dispatcher.router import Router
from tidegate.errors import InvalidInput
from tidegate.filter.feed import FeedFilter
from tidegate.filter.tables import FIX as MAKE_ELIGIBLE
from tidegate.filter.tables import why_ineligible
from tidegate.kvclient.keyspaces import Keyspace
from tidegate.kvclient.pd import PdClient
from tidegate.mounter.table_version import TableVersion
from tidegate.server.catalogue.schema_tracker import load_catalogue
from tidegate.server.catalogue.stripes import chosen_width, wider
from tidegate.server.catalogue.table_cuts import find_cuts
from tidegate.sink.base import Description, Keys

SHOWN_TABLES: Final = 20
"""How many tables without a key are named in an error or in a changefeed's status."""
WEIGHED_TABLES: Final = 5_000
"""How many table definitions are checked for what their dispatcher gives up; that many take half a second."""


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
    """Checks everything about a new feed that needs neither upstream nor the sink; raises InvalidInput."""
    uri = parse_sink_uri(sink_uri)
    checked = merge_config(config, uri)
    if not uri.is_reader:  # a reader takes rows, in no protocol
        checked = canonical(checked)
    by_subject = (
        checked.has_tables and not uri.is_reader and codec_of(options_of(checked)).schemas is not None
    )
    with named_code():
        FeedFilter.of(checked)
        Router.of(checked, uri.topic, names_subjects=by_subject)
    if target_ts and start_ts and target_ts <= start_ts:
        raise Refused(
            "CDC:ErrTargetTsBeforeStartTs",
            f"target-ts {target_ts} is not above start-ts {start_ts}",
            fix="choose a later target-ts",
        )
    return NewFeed(feed, uri, checked, start_ts, target_ts)


def check_keys(new: NewFeed, sink: Description) -> None:
    """Raises InvalidInput for a feed of keys whose sink accepts only rows of tables."""
    if not new.config.has_tables and sink.keys is Keys.RECORDS:
        raise InvalidInput(
            "this sink accepts only rows of tables",
            where=str(new.feed),
            why=f"a changefeed with kv-mode = '{new.config.tidegate.kv_mode}' follows keys that are no rows",
            fix="use a sink that accepts any key, such as a topic, or leave kv-mode out",
        )


def check_shared(new: NewFeed, sink: Description) -> None:
    """Raises InvalidInput for a feed that another capture could not take over."""
    why = ""
    if new.uri.is_reader:
        why = "a reader's changes are kept on the disk of one capture"
    elif sink.here:
        why = "it writes to the disk of one capture"
    # docs/guarantees.md#a-zombie-writes-nothing-that-a-reader-sees: a takeover relies on the sink alone,
    # because the earlier capture may be unreachable.
    elif not sink.fenced_by:
        why = "nothing stops a capture that was replaced from writing to it"
    if why:
        raise InvalidInput(
            "captures that share an etcd cannot have this changefeed",
            where=str(new.feed),
            why=why,
            fix="use a sink that fences replaced captures, or a server of its own, without --etcd",
        )


def with_tables(new: NewFeed, tables: Sequence[TableVersion]) -> NewFeed:
    """Adds what depends on the tables at the start ts. Raises Refused if a table cannot be followed."""
    # Before the width is chosen: tables that are not followed need no stripe.
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
        # Now and not at the first row: an expression that does not fit its table would stop the feed much
        # later, at a row.
        FeedFilter.of(new.config).check(followed)
    own = new.config.tidegate
    if own.ids_per_stripe:
        return new
    width = chosen_width(table_id for table in followed for table_id in table.physical_ids)
    return replace(new, config=replace(new.config, tidegate=replace(own, ids_per_stripe=width)))


def with_width(new: NewFeed, kept: ReplicaConfig, tables: Sequence[TableVersion]) -> NewFeed:
    """Widens the stripes of an updated feed that has too many by now, unless the request sets a width."""
    own = new.config.tidegate
    # The API shows the width, so a configuration that is sent back contains the one that is kept.
    if own.ids_per_stripe != kept.tidegate.ids_per_stripe:
        return new
    followed, _ = split_tables(tables, new.config)
    width = wider((table_id for table in followed for table_id in table.physical_ids), own.ids_per_stripe)
    return replace(new, config=replace(new.config, tidegate=replace(own, ids_per_stripe=width)))


def with_cuts(new: NewFeed, tables: Sequence[TableVersion], pd: PdClient) -> NewFeed:
    """Adds the cuts of large tables, unless the request has some. Asks PD for regions."""
    own, scheduler = new.config.tidegate, new.config.scheduler
    # PD is asked for regions only if tables may be cut, because a large cluster has hundreds of thousands of
    # them.
    if own.table_cuts or not scheduler.enable_table_across_nodes:
        return new
    followed, _ = split_tables(tables, new.config)
    cuts = find_cuts(pd, [one for table in followed for one in table.physical_ids], scheduler)
    return replace(new, config=replace(new.config, tidegate=replace(own, table_cuts=cuts)))


def with_spans_of(kept: ReplicaConfig, config: ReplicaConfig) -> ReplicaConfig:
    """An updated configuration with the spans chosen before, unless it sets others.

    If `[scheduler]` changes, the old cuts are removed, and `with_cuts` chooses new ones.
    """
    own, before = config.tidegate, kept.tidegate
    # 0 means that the request leaves the choice to us. The one made at the creation stays: other spans would
    # be pulled from the checkpoint again.
    if not own.ids_per_stripe:
        own = replace(own, ids_per_stripe=before.ids_per_stripe)
    if config.scheduler != kept.scheduler:
        if own.table_cuts == before.table_cuts:  # the user sent back what the API had shown
            own = replace(own, table_cuts=())
    elif not own.table_cuts and config.scheduler.enable_table_across_nodes:
        own = replace(own, table_cuts=before.table_cuts)
    return replace(config, tidegate=own)


def split_tables(
    tables: Sequence[TableVersion], config: ReplicaConfig
) -> tuple[list[TableVersion], list[TableVersion]]:
    """The tables that pass the filter: those that can be followed, and those without a usable key."""
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
    """Tables to which a dispatcher gives less order than dispatch by table would."""

    dispatcher: str
    what: str
    tables: tuple[str, ...]
    """The first table names, or the rules that name the tables."""
    more: int


def weak_orders(followed: list[TableVersion], config: ReplicaConfig, topic: str) -> list[WeakOrder]:
    """The order that the dispatch rules give up, for the first WEIGHED_TABLES tables that they name. `topic`:
    the sink URI's.
    """
    router = Router.of(config, topic)
    ruled = [(table, router.rule_of(table.schema, table.table)) for table in followed if not table.is_view]
    found: dict[tuple[str, str], list[str]] = {}
    for rule in config.sink.dispatchers:
        if rule.partition == CONFLICT:  # reported for any tables, because more may be created later
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


def cost_of_cuts(config: ReplicaConfig) -> str:
    """The cost of several writers of a table, in words; empty: no table may be cut."""
    may_cut = config.scheduler.enable_table_across_nodes or bool(config.tidegate.table_cuts)
    if not (config.has_tables and may_cut):
        return ""
    return cost_of_pieces(order_of(config.sink.dispatchers), marks=has_marks(options_of(config)))


def is_embedded(pd: PdClient) -> bool:
    """Whether upstream is Tidegate's embedded one, in which tables may appear later."""
    try:
        pd.upstream_info()
    except InvalidInput:
        return False
    return True


@contextlib.contextmanager
def named_code() -> Iterator[None]:
    """Raise an error that begins with a code of TiCDC as Refused with that code."""
    try:
        yield
    except InvalidInput as error:
        code = re.match(r"\[(CDC:\w+)\]", error.what)
        if code is None:
            raise
        raise Refused(code[1], error.what, where=error.where, why=error.why, fix=error.fix) from None


def check_keyspace(keyspace: Keyspace | None) -> None:
    """Raises Refused for a keyspace with its own timestamp servers, because the capture uses PD's time."""
    if keyspace is not None and keyspace.tso_group:
        raise Refused(
            "CDC:ErrAPIInvalidParam",
            f"keyspace '{keyspace.name}' has timestamps of its own",
            where=f"TSO group {keyspace.tso_group}",
            why="the capture takes its time from PD, that is from group 0; the two are not in step",
            fix="move the keyspace to TSO group 0: other groups cannot be followed",
        )

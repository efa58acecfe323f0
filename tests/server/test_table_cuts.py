"""Where large tables are cut: at the edges of regions, into pieces of equally many."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tidegate.config.reading import merge_config
from tidegate.config.settings import ReplicaConfig, SchedulerConfig
from tidegate.config.sink_uri import parse_sink_uri
from tidegate.config.values import TABLE_CUTS_MAX
from tidegate.errors import InvalidInput
from tidegate.server.catalogue.table_cuts import PIECES, chosen_cuts
from tidegate.server.changefeeds.new_feed import with_spans_of
from tidegate.tidb import keys

ON = SchedulerConfig(enable_table_across_nodes=True, region_threshold=4, region_count_per_span=2)
URI = parse_sink_uri("kafka://127.0.0.1:9092/topic?protocol=open-protocol")


def edges(table: int, regions: int) -> list[bytes]:
    """Where the regions begin of a table that has so many."""
    return [keys.record_prefix(table), *(keys.int_record(table, at) for at in range(1, regions))]


def test_a_table_above_the_threshold_is_cut_into_pieces_of_equal_regions() -> None:
    starts = edges(7, 4) + edges(8, 5) + edges(9, 9)
    assert chosen_cuts(starts, [7, 8], ON) == [keys.int_record(8, at) for at in (1, 3)]
    assert chosen_cuts(starts, [9], ON) == [keys.int_record(9, at) for at in (1, 3, 5, 7)]


def test_index_entries_and_tables_of_others_are_no_place_for_a_cut() -> None:
    starts = [keys.index_prefix(7, 1, b"%d" % n) for n in range(9)] + edges(8, 9)
    assert chosen_cuts(starts, [7], ON) == []


def test_a_table_has_so_many_pieces_at_most_and_all_tables_so_many_cuts() -> None:
    assert len(chosen_cuts(edges(7, 1000), [7], ON)) == PIECES - 1
    tables = range(1, 2 * TABLE_CUTS_MAX // PIECES)
    starts = [key for table in tables for key in edges(table, 2 * PIECES + table)]
    found = chosen_cuts(starts, tables, ON)
    assert TABLE_CUTS_MAX - PIECES < len(found) <= TABLE_CUTS_MAX
    assert found == sorted(found)
    cut = {keys.parse_record(key).table_id for key in found}
    assert cut == set(tables[-len(cut) :]), "those with most regions"


def config_of(**own: object) -> ReplicaConfig:
    return merge_config({"tidegate": own}, URI)


@pytest.mark.parametrize(
    ("cuts", "why"),
    [
        (["x"], "'x' in table-cuts cannot be used"),
        ([keys.record_prefix(7).hex()], "cannot be used"),
        ([keys.index_prefix(7, 1, b"abc").hex()], "cannot be used"),
        ([keys.int_record(7, 2).hex(), keys.int_record(7, 1).hex()], "cannot be used"),
        ([keys.int_record(7, n).hex() for n in range(TABLE_CUTS_MAX + 1)], "are too many"),
    ],
)
def test_cuts_that_are_no_ascending_record_keys_are_refused(cuts: list[str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        config_of(table_cuts=cuts)


def test_a_feed_of_keys_has_no_tables_to_be_cut() -> None:
    with pytest.raises(InvalidInput, match="no tables"):
        merge_config(
            {"tidegate": {"kv_mode": "txnkv"}, "scheduler": {"enable-table-across-nodes": True}}, URI
        )


def test_an_update_keeps_the_cuts_until_the_scheduler_settings_change() -> None:
    cut, other = keys.int_record(7, 1).hex(), keys.int_record(7, 2).hex()
    kept = replace(config_of(table_cuts=[cut], ids_per_stripe=2), scheduler=ON)
    left_out = replace(config_of(), scheduler=ON)
    assert with_spans_of(kept, left_out).tidegate == kept.tidegate
    assert with_spans_of(kept, replace(config_of(table_cuts=[other]), scheduler=ON)).tidegate.table_cuts == (
        other,
    )
    finer = replace(ON, region_count_per_span=1)
    assert with_spans_of(kept, replace(kept, scheduler=finer)).tidegate.table_cuts == ()
    assert with_spans_of(kept, replace(left_out, scheduler=finer)).tidegate.table_cuts == ()
    assert with_spans_of(kept, config_of()).tidegate.table_cuts == ()

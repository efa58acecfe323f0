"""Partition numbers are TiCDC's, plain and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codec import golden
from tests.codec.cells import block_of
from tidegate.config.settings import DispatchRule
from tidegate.dispatcher.kernels import partition_block
from tidegate.dispatcher.partitions import RULES, partition_of
from tidegate.dispatcher.router import Router
from tidegate.errors import InvalidInput

COUNTS = (1, 3, 4, 7, 16, 64)


def test_every_recorded_partition_is_found_by_both_twins() -> None:
    checked = 0
    for record in golden.lines("partitions/row_partitions"):
        if record["kind"] != "row":
            continue
        row = golden.case(record["case"]).row(record["seq"])
        block = block_of([row])
        for answer in record["answers"]:
            if answer["rule"] not in RULES or "error" in answer:
                continue
            if record["case"] == "generated_columns" and answer.get("index") in ("kv", "ks"):
                continue  # behind a virtual column classic hashes another column's value
            rule = DispatchRule(
                partition=answer["rule"],
                index=answer.get("index") or "",
                columns=tuple(answer.get("columns") or ()),
            )
            for count, expected in zip(COUNTS, answer["partitions"], strict=True):
                found = partition_of(row, rule, count)
                assert found == expected, (record["case"], record["seq"], answer)
                checked += 1
            assert partition_block(block, rule, 64).tolist() == [answer["partitions"][-1]], (
                record["case"],
                answer,
            )
    assert checked > 10_000


@pytest.mark.parametrize(
    "rule",
    [
        DispatchRule(partition="index-value", index="nosuch"),
        DispatchRule(partition="columns", columns=("x9",)),
    ],
)
def test_a_missing_index_or_column_is_named(rule: DispatchRule) -> None:
    row = golden.case("types_ints_signed").row(0)
    with pytest.raises(InvalidInput, match=r"nosuch|x9"):
        partition_of(row, rule, 4)
    with pytest.raises(InvalidInput, match=r"nosuch|x9"):
        partition_block(block_of([row]), rule, 4)


def test_the_first_matching_rule_wins_and_the_default_is_by_table() -> None:
    table = golden.case("types_ints_signed").row(0).table
    by_ts = DispatchRule(matcher=("r_*.t",), partition="ts")
    assert (
        Router(
            [DispatchRule(matcher=("other.*",)), by_ts, DispatchRule(partition="columns", columns=("c1",))],
            "topic",
        ).rule(table)
        is by_ts
    )
    assert Router([], "topic").rule(table).partition == "default"


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(InvalidInput, match="index-value"):
        Router([DispatchRule(partition="hash")], "topic")


def test_a_whole_block_goes_where_its_rows_go_one_by_one() -> None:
    rows = [golden.case("types_chars_utf8mb4").row(seq) for seq in range(60)]
    for rule in (
        DispatchRule(partition="index-value"),
        DispatchRule(partition="ts"),
        DispatchRule(partition="table"),
        DispatchRule(partition="columns", columns=("c1", "c2", "c3")),
    ):
        expected = np.array([partition_of(row, rule, 16) for row in rows])
        assert (partition_block(block_of(rows), rule, 16) == expected).all()

"""Partition specs: the rules of --partition-by, and what is refused so that a table keeps its spec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.consumer.at_delta import applier_of
from tests.consumer.one_table import KEY_FLAGS, OneTable
from tests.consumer.test_ddl_at_target import message
from tidegate.consumer.ddl.schema_changes import SchemaChanges
from tidegate.consumer.delta.target import DeltaAddress
from tidegate.consumer.engine.position import PartitionPosition, Position
from tidegate.consumer.job import run
from tidegate.consumer.running.beginning import Beginning
from tidegate.consumer.selecting.rules import Rules
from tidegate.consumer.selecting.selection import Selection, check_same_rules
from tidegate.consumer.settings import Settings
from tidegate.consumer.table import partition_spec
from tidegate.consumer.table.partition_spec import PartitionField, PartitionRule, Transform
from tidegate.consumer.targets import DatabaseSettings
from tidegate.errors import Fatal, InvalidInput
from tidegate.workload.ddl import Action
from tidegate.workload.definitions import ColumnSpec, column_info

COLUMNS = [
    ColumnSpec("id", 8, 20, flag=KEY_FLAGS),
    ColumnSpec("region", 15, 40, text=True),
    ColumnSpec("n", 3, 11),
]
ITEMS = OneTable.of(COLUMNS)
MODIFY_COLUMN = 12
SOURCE = "kafka://127.0.0.1:1/topic?protocol=open-protocol"


def spec(text: str) -> partition_spec.Spec:
    return PartitionRule.of(f"a.b:{text}").spec


# --- the rules


def test_a_rule_names_columns_and_transforms() -> None:
    found = spec("region, Bucket(16, id),truncate(`a,b`,4) , days(at),`x:y`")
    assert found == (
        PartitionField("region"),
        PartitionField("id", Transform.BUCKET, 16),
        PartitionField("a,b", Transform.TRUNCATE, 4),
        PartitionField("at", Transform.DAY),
        PartitionField("x:y"),
    )
    assert partition_spec.in_words(found) == "region, bucket(16, id), truncate(4, `a,b`), day(at), `x:y`"


@given(
    st.lists(
        st.builds(
            PartitionField,
            st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
            st.sampled_from(Transform),
        ),
        max_size=4,
        unique_by=lambda field: field.column.lower(),
    ),
    st.integers(1, partition_spec.WIDTH_MAX),
)
def test_a_spec_in_words_is_read_back(fields: list[PartitionField], width: int) -> None:
    numbered = (Transform.BUCKET, Transform.TRUNCATE)
    given = tuple(replace(one, width=width) if one.transform in numbered else one for one in fields)
    assert spec(",".join(map(str, given))) == given


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("a.b", "with ':' between them"),
        ("b:x", "with ':' between them"),
        ("!a.b:x", "with ':' between them"),
        ("a.b:x,", "with ':' between them"),
        ("a.b:week(x)", "there is no transform week"),
        ("a.b:bucket(x)", "bucket takes a number and a column"),
        ("a.b:bucket(0, x)", "the number of bucket must be from 1"),
        ("a.b:day(x, y)", "day takes one column"),
        ("a.b:x,bucket(4, X)", "the column x is in it twice"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_an_example(rule: str, why: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Rules(partition_by=(rule,)).partition_rules()
    assert why in caught.value.why
    assert "shop.orders:region" in caught.value.fix


def test_the_first_rule_that_matches_the_table_at_the_source_counts() -> None:
    rules = Rules(partition_by=("shop.tmp_*:", "shop.*:region", "*.*:id"), route=("shop.*=copy.*",))
    selection = Selection(rules)
    for table in ("orders", "tmp_1"):
        selection._rules.claim(("shop", table))
    assert selection.partition_spec(("copy", "orders")) == (PartitionField("region"),)
    assert selection.partition_spec(("copy", "tmp_1")) == ()
    assert selection.partition_spec(("other", "t")) == (PartitionField("id"),)


def test_rules_may_be_added_for_tables_that_are_still_to_come() -> None:
    given = Rules(include=("shop.*",), partition_by=("shop.a:x",)).given
    held = Position(0, "t", "open-protocol", "row", {0: PartitionPosition(0, 0, 0)}, rules=given)
    assert "--partition-by shop.a:x" in held.rules, "a release without this option must not continue"
    check_same_rules(held, Rules(include=("shop.*",)).given, "target")
    with pytest.raises(InvalidInput, match="other rules"):
        check_same_rules(held, Rules(include=("*.*",), partition_by=("shop.a:x",)).given, "target")


@pytest.mark.parametrize(
    ("text", "of_type", "why"),
    [
        ("x", pa.float64(), "identity does not work"),
        ("x", pa.binary(), "identity does not work"),
        ("x", pa.timestamp("us", tz="UTC"), "their own time zones"),
        ("day(x)", pa.string(), "day does not work"),
        ("hour(x)", pa.date32(), "hour does not work"),
        ("bucket(4, x)", pa.float32(), "bucket does not work"),
        ("truncate(4, x)", pa.date32(), "truncate does not work"),
        ("y", pa.int64(), "it has no column y: id, x"),
        ("id,x", pa.int64(), "each of its columns is a partition column"),
    ],
)
def test_a_spec_that_does_not_fit_the_columns_is_explained(text: str, of_type: Any, why: str) -> None:
    assert why in partition_spec.misfit(spec(text), [("id", pa.int64()), ("x", of_type)])


def test_a_partition_field_does_not_take_the_name_of_a_column() -> None:
    columns = [("id", pa.int64()), ("id_bucket", pa.int64())]
    assert "has the name of a column" in partition_spec.misfit(spec("bucket(4, id)"), columns)


# --- targets


def settings(target: str, *rules: str) -> Settings:
    database = DatabaseSettings(name="test") if target.startswith("mysql") else DatabaseSettings()
    return Settings(SOURCE, target, rules=Rules(partition_by=rules), database=database)


def test_delta_refuses_transforms_and_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"cannot partition by bucket\(4, id\)") as caught:
        run(settings(f"delta://{tmp_path}/target", "shop.orders:region", "shop.*:bucket(4, id)"))
    assert "generated column" in caught.value.why
    assert "shop.*:id" in caught.value.fix
    assert not (tmp_path / "target").exists()


def test_a_database_refuses_the_option() -> None:
    with pytest.raises(InvalidInput, match="for tables of files"):
        run(settings("mysql://writer@127.0.0.1:1/", "shop.*:region"))


# --- tables that exist


def beginning(root: Path, *rules: str) -> Any:
    chosen = settings(str(root), *rules)
    applier = applier_of(root, selection=Selection(chosen.rules))
    nothing: Any = None
    return Beginning(chosen, nothing, DeltaAddress(root), applier.target, applier, nothing, nothing, nothing)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        (("shop.*:n",), "it was created with region, and is given n"),
        ((), "it was created with region, and is given not partitioned"),
        (("shop.items:", "shop.*:region"), "created with region, and is given not partitioned"),
    ],
)
def test_another_spec_for_a_table_that_exists_is_refused(
    tmp_path: Path, rules: tuple[str, ...], words: str
) -> None:
    first = beginning(tmp_path, "shop.*:REGION")
    first.target.recover()
    first.applier.ddl([message(ITEMS.created())])
    first.applier.commit(Position(100, "t", "open-protocol", "transaction", {0: PartitionPosition(1, 1, 1)}))
    first.target.close()
    again = beginning(tmp_path, *rules)
    with pytest.raises(InvalidInput, match="not partitioned as --partition-by says") as caught:
        again.position()
    assert words in caught.value.why
    assert "shop.items:region" in caught.value.fix
    again.target.close()


# --- DDL


def altered(column: int = 1, **changes: Any) -> dict[str, Any]:
    """The table with one column changed."""
    columns = [dict(one) for one in ITEMS.info["cols"]]
    columns[column] |= changes
    return ITEMS.info | {"cols": columns}


def dropped() -> dict[str, Any]:
    columns = [one | {"offset": at} for at, one in enumerate([ITEMS.info["cols"][0], ITEMS.info["cols"][2]])]
    return ITEMS.info | {"cols": columns}


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (dropped(), "region is dropped"),
        (altered(name={"O": "area", "L": "area"}), "region is renamed to area"),
        (
            altered(id=9, type=column_info(9, 1, ColumnSpec("region", 8, 20))["type"]),
            "region changes from string to int64",
        ),
    ],
)
def test_a_ddl_that_changes_a_partition_column_is_refused(
    tmp_path: Path, after: dict[str, Any], why: str
) -> None:
    applier = applier_of(tmp_path, selection=Selection(Rules(partition_by=("shop.items:region",))))
    applier.target.recover()
    applier.ddl([message(ITEMS.created())])
    journal = (tmp_path / "_tidegate" / "ddl.jsonl").read_bytes()
    version = applier.target.lake.version("shop/items")
    event = ITEMS.ddl(200, MODIFY_COLUMN, "alter table items ...", after)
    with pytest.raises(Fatal, match="a partition column cannot be changed") as caught:
        applier.ddl([message(event)])
    assert why in caught.value.why
    assert "divided by region" in caught.value.why
    assert "ts 200: alter table items" in caught.value.where
    assert "start a new target" in caught.value.fix
    assert (tmp_path / "_tidegate" / "ddl.jsonl").read_bytes() == journal, "nothing was begun"
    assert applier.target.lake.version("shop/items") == version
    applier.target.close()


def test_ignoring_changes_of_columns_keeps_a_partition_column(tmp_path: Path) -> None:
    """As the refusal of such a DDL says."""
    rules = Rules(partition_by=("shop.items:region",), schema_changes=SchemaChanges.IGNORE)
    applier = applier_of(tmp_path, selection=Selection(rules), schema_changes=rules.schema_changes)
    applier.target.recover()
    applier.ddl([message(ITEMS.created())])
    event = ITEMS.ddl(200, Action.DROP_COLUMN, "alter table items drop column region", dropped())
    applier.ddl([message(event)])
    (made,) = applier.target.definitions.values()
    assert made.partition_by == (PartitionField("region"),)
    assert applier.target.lake.partition_columns("shop/items") == ["region"]
    assert applier.target.lake.columns("shop/items") == ["id", "region", "n"]
    applier.target.close()


def test_a_table_that_lacks_the_column_is_not_created(tmp_path: Path) -> None:
    applier = applier_of(tmp_path, selection=Selection(Rules(partition_by=("shop.*:city",))))
    applier.target.recover()
    with pytest.raises(Fatal, match="cannot be partitioned as asked for") as caught:
        applier.ddl([message(ITEMS.created())])
    assert "it has no column city: id, region, n" in caught.value.why
    assert applier.target.lake.table_paths() == []
    applier.target.close()


@pytest.mark.parametrize("header", [True, False], ids=["with header", "by text"])
def test_a_rename_to_a_name_with_another_rule_is_refused(tmp_path: Path, header: bool) -> None:
    applier = applier_of(tmp_path, selection=Selection(Rules(partition_by=("shop.items:region",))))
    applier.target.recover()
    applier.ddl([message(ITEMS.created())])
    after = ITEMS.info | {"name": {"O": "old", "L": "old"}}
    event = ITEMS.ddl(200, Action.RENAME_TABLE, "RENAME TABLE `shop`.`items` TO `shop`.`old`", after)
    with pytest.raises(Fatal, match="gets a name for which --partition-by") as caught:
        applier.ddl([message(replace(event, table="old"), header=header)])
    assert "items was created with region, and the rules give shop.old not partitioned" in caught.value.why
    assert list(applier.target.definitions) == [("shop", "items")]
    applier.target.close()

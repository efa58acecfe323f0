"""Tables of the embedded upstream as DataFrames: real Spark, real gRPC, several regions."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.small_tables import CODE, ID, SmallTables, number, text
from tidegate.kvclient.pd import PdClient
from tidegate.tables.source import TidegateTables
from tidegate.tidb import keys
from tidegate.tidb.memcomparable import encode_bytes
from tidegate.tikv.server import EmbeddedUpstream
from tidegate.workload.definitions import ColumnSpec

pytestmark = pytest.mark.integration

ROWS = 2000


@pytest.fixture
def shop(pd: PdClient) -> SmallTables:
    made = SmallTables(
        pd, "shop", {"acc": [ID, number("n"), text("t")], "codes": [CODE, number("n")], "log": [number("a")]}
    )
    made.put("acc", {i: (i, i % 97, b"t%d" % i) for i in range(-ROWS, ROWS)})
    made.put("codes", {i: (b"c%05d" % i, i) for i in range(50)})
    made.put("log", {i: (i,) for i in range(1, 40)})
    return made


def frame(spark: SparkSession, pd: PdClient, table: str, **options: object) -> DataFrame:
    spark.dataSource.register(TidegateTables)
    return spark.read.format("tidegate").options(pd=pd.address, table=table, **options).load()


def test_a_table_is_typed_read_by_region_and_the_same_at_every_action(
    spark: SparkSession, upstream: EmbeddedUpstream, pd: PdClient, shop: SmallTables
) -> None:
    table = shop.tables["acc"].id
    upstream.operators.split_at([encode_bytes(keys.int_record(table, at)) for at in (-500, 0, 700)])
    found = frame(spark, pd, "shop.acc")
    assert found.schema.simpleString() == "struct<id:bigint,n:int,t:string>"
    assert found.rdd.getNumPartitions() == 4
    shop.delete("acc", range(100))
    shop.put("acc", {ROWS: (ROWS, 1, b"new")})
    assert found.count() == 2 * ROWS
    assert found.agg({"n": "sum"}).first()[0] == sum(i % 97 for i in range(-ROWS, ROWS))
    assert found.where("id = 77").first().asDict() == {"id": 77, "n": 77, "t": "t77"}
    assert frame(spark, pd, "shop.acc").count() == 2 * ROWS - 99


def test_a_table_is_read_as_it_was_and_under_any_key(
    spark: SparkSession, pd: PdClient, shop: SmallTables
) -> None:
    before = pd.tso()
    shop.put("codes", {7: (b"c00007", 1000)})
    after = frame(spark, pd, "shop.codes").where("code = 'c00007'").first()
    then = frame(spark, pd, "shop.codes", as_of=before).where("code = 'c00007'").first()
    assert (then["n"], after["n"]) == (7, 1000)
    assert sorted(row["a"] for row in frame(spark, pd, "shop.log").collect()) == list(range(1, 40))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"table": "shop.none"}, "the source has no table shop.none"),
        ({"table": "shop.acc", "as_off": "5"}, "did you mean 'as_of'"),
        ({"table": "shop.acc", "as_of": "yesterday"}, "give as_of a ts or 'latest'"),
        ({"table": ""}, "needs the option 'table'"),
    ],
)
def test_what_cannot_be_read_is_named(
    spark: SparkSession, pd: PdClient, shop: SmallTables, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception, match=r"(?s)tidegate") as caught:
        frame(spark, pd, options.pop("table"), **options)
    assert words in str(caught.value)


def test_a_row_that_cannot_be_decoded_ends_the_read_with_its_key(
    spark: SparkSession, pd: PdClient, shop: SmallTables
) -> None:
    key = keys.int_record(shop.tables["acc"].id, 5)
    shop._commit([(key, b"\x80\x00\x09")], [])
    with pytest.raises(Exception, match=r"(?s)cannot be decoded") as caught:
        frame(spark, pd, "shop.acc").count()
    assert key.hex() in str(caught.value)


def test_history_that_is_gone_is_refused(spark: SparkSession, pd: PdClient, shop: SmallTables) -> None:
    early = pd.tso()
    pd.update_service_gc_safepoint("gc_worker", 1 << 40, pd.tso())
    with pytest.raises(Exception, match=r"(?s)has no history at ts"):
        frame(spark, pd, "shop.acc", as_of=early)


def test_a_datetime_is_a_timestamp_of_no_zone(spark: SparkSession, pd: PdClient) -> None:
    datetime = ColumnSpec("at", 12, 19)
    SmallTables(pd, "shop", {"log": [ID, datetime]}).put("log", {1: (1, None)})
    found = frame(spark, pd, "shop.log")
    assert found.schema.simpleString() == "struct<id:bigint,at:timestamp_ntz>"
    assert found.collect()[0].asDict() == {"id": 1, "at": None}

"""The table shop.orders of TiDB, kept up to date by AUTO CDC."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.temporary_view()
def orders_changes() -> DataFrame:
    """The changes, in the order of their commits for each row."""
    return (
        spark.readStream.format("tidegate")
        .option("server", spark.conf.get("spark.tidegate.server", "127.0.0.1:8300"))
        .option("tables", "shop.orders")
        .option("reader", "auto-cdc-orders")
        .load()
    )


dp.create_streaming_table("orders")

dp.create_auto_cdc_flow(
    target="orders",
    source="orders_changes",
    keys=["id"],  # the table's primary key
    sequence_by="_tidegate_seq",
    apply_as_deletes="_tidegate_op = 'delete'",
    except_column_list=["_tidegate_op", "_tidegate_commit_ts", "_tidegate_seq"],
)

"""The whole consumer, from a real broker through Spark to a real MariaDB; two of them for one target."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.consumer.logs import snapshots
from tests.consumer.mysql.reading import differences, forget
from tests.consumer.test_job import LINE, PATIENCE_S, Running, bank_messages
from tests.consumer.topics import publish
from tidegate.consumer.mysql.session import MySqlServer
from tidegate.consumer.running.status import received
from tidegate.consumer.settings import Settings
from tidegate.consumer.targets import DatabaseSettings
from tidegate.errors import Fenced

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_second_consumer_takes_the_first_ones_place_and_the_first_ends(
    spark: SparkSession, kafka: str, new_topic: Callable[..., str], mariadb: MySqlServer, tmp_path: Path
) -> None:
    topic, messages, line = new_topic(3), bank_messages(), snapshots()[LINE]
    forget(mariadb, "run", "bank")
    source = f"kafka://{kafka}/{topic}?protocol=open-protocol"
    target = f"mysql://root@127.0.0.1:{mariadb.port}/"

    def consumer(folder: str, until: int | None) -> Running:
        database = DatabaseSettings("run", tmp_path / folder, lanes=2)
        return Running(spark, Settings(source, target, until=until, commit_s=0.1, database=database))

    first = consumer("first", None)
    publish(kafka, topic, messages[: len(messages) // 2])
    first.until(lambda: first.progress and first.progress[-1].rows, "no row")
    second = consumer("second", line.ts)
    second.until(lambda: second.progress, "the second did not begin")
    publish(kafka, topic, messages[len(messages) // 2 :])
    for one in (first, second):
        one.thread.join(PATIENCE_S)
    assert isinstance(first.error, Fenced)
    said = received(tmp_path / "first")
    assert said is not None
    assert (said.running, said.trouble) == (False, "another consumer has taken the target over")
    assert second.error is None
    assert second.end is not None
    assert second.end.ts == line.ts
    assert differences(mariadb, line) == {}

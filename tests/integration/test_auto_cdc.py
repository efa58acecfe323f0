"""The example of Spark's AUTO CDC: after each run of its pipeline the target is the table as it is upstream.

Spark's own formats take no MERGE, and no table format for this version of Spark is in a repository. So the
target is in Spark's memory, in the tables that Spark's own tests of MERGE use. `make auto-cdc` runs this.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.integration.cluster import PATIENCE_S, Cluster, eventually
from tests.small_tables import ID, SmallTables, number, text
from tidegate.kvclient.pd import PdClient
from tidegate.spark.session import JAVA_OPTIONS

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
FETCHED = ROOT / ".cache" / "pipelines"
EXAMPLE = ROOT / "examples" / "auto_cdc"
SPARK = Path(pyspark.__file__).parent
CATALOG = "org.apache.spark.sql.connector.catalog.SharedTablesInMemoryRowLevelOperationTableCatalog"


class Pipeline:
    """The example against one capture, and a Spark Connect server that keeps its target."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.remote = f"sc://127.0.0.1:{free.getsockname()[1]}"
        self._environment = os.environ | {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYTHONPATH": f"{ROOT / 'src'}:{FETCHED}",
        }
        (jar,) = FETCHED.glob("spark-catalyst*.jar")
        settings = {
            "spark.jars": jar,
            "spark.driver.extraClassPath": jar,
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.sql.catalog.mem": CATALOG,
            "spark.connect.grpc.binding.port": self.remote.rpartition(":")[2],
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": folder / "warehouse",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
        command = [SPARK / "bin/spark-submit", "--master", "local[2]"]
        command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        command += [part for pair in settings.items() for part in ("--conf", "=".join(map(str, pair)))]
        self._log = (folder / "connect.log").open("wb")
        self.server = subprocess.Popen(
            [*map(str, command), "spark-internal"],
            env=self._environment, stdout=self._log, stderr=self._log, cwd=folder,
        )  # fmt: skip
        self.project = folder / "project"
        shutil.copytree(EXAMPLE, self.project)
        file = self.project / "spark-pipeline.yml"
        spec = file.read_text().replace("file:///tmp/tidegate-auto-cdc", f"file://{folder}/storage")
        assert str(folder) in spec
        file.write_text(
            f"{spec}catalog: mem\ndatabase: shop\nconfiguration:\n  spark.tidegate.server: {cluster.server}\n"
        )

    def run(self) -> None:
        """The pipeline's command, once, to its end."""
        command = [SPARK / "bin/spark-pipelines", "--remote", self.remote, "run"]
        command += ["--spec", self.project / "spark-pipeline.yml"]
        done = subprocess.run(
            [*map(str, command)],
            env=self._environment, capture_output=True, text=True, cwd=self.project, timeout=PATIENCE_S,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    def answers(self) -> bool:
        assert self.server.poll() is None, (self.folder / "connect.log").read_text()[-4000:]
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", int(self.remote.rpartition(":")[2]))) == 0

    def stop(self) -> None:
        self.server.kill()
        self.server.wait()
        self._log.close()


@pytest.fixture
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if not request.config.getoption("--auto-cdc"):
        pytest.skip("it needs what `make auto-cdc` fetches")
    running = Cluster(tmp_path, "127.0.0.1:1")
    yield running
    running.stop()


@pytest.fixture
def pipeline(tmp_path: Path, cluster: Cluster) -> Iterator[Pipeline]:
    cluster.start_upstream()
    cluster.start_server()
    running = Pipeline(tmp_path, cluster)
    yield running
    running.stop()


class Orders:
    """The table, and what it is to hold."""

    def __init__(self, pd: PdClient) -> None:
        self._tables = SmallTables(pd, "shop", {"orders": [ID, text("code"), number("n")]})
        self.rows: dict[int, tuple[str, int]] = {}

    def put(self, rows: dict[int, tuple[str, int]]) -> None:
        self._tables.put("orders", {key: (key, code.encode(), n) for key, (code, n) in rows.items()})
        self.rows |= rows

    def delete(self, *keys: int) -> None:
        self._tables.delete("orders", keys)
        for key in keys:
            del self.rows[key]


def changed(orders: Orders) -> Iterator[str]:
    """Between two runs of the pipeline; each time what has happened, in words."""
    yield "nothing"
    orders.put({key: (f"c{key}", key) for key in range(1, 101)})
    yield "inserts"
    orders.put({key: (f"c{key}", key * 10) for key in range(1, 21)})
    orders.delete(30, 31, 32)
    orders.put({1: ("c2", 10), 2: ("c1", 20)})
    for n in (1, 2):
        orders.put({40: ("c40", n)})
    orders.delete(41)
    orders.put({41: ("c41", 7), 200: ("t", 1)})
    orders.delete(200)
    yield "updates, deletes, a swap, a row again, and one that came and went"
    orders.delete(50, 51)
    yield "deletes alone"
    orders.put({50: ("again", 5)})
    yield "a row again whose deletion was in an earlier run"
    yield "nothing new"
    chance = random.Random(5)
    for _ in range(150):
        if orders.rows and chance.random() < 0.3:
            orders.delete(*chance.sample(sorted(orders.rows), min(3, len(orders.rows))))
        elif len(orders.rows) > 1 and chance.random() < 0.3:
            one, other = chance.sample(sorted(orders.rows), 2)
            orders.put({one: orders.rows[other], other: orders.rows[one]})
        else:
            some = chance.sample(range(150), 10)
            orders.put({key: (f"x{chance.randrange(999)}", chance.randrange(999)) for key in some})
    yield "150 transactions at random"


def test_auto_cdc_gives_the_table_as_it_is_upstream(cluster: Cluster, pipeline: Pipeline) -> None:
    with PdClient(cluster.pd) as pd:
        orders = Orders(pd)
        eventually("Spark's server", pipeline.answers)
        sys.path.append(str(FETCHED))
        from pyspark.sql.connect.session import SparkSession

        spark: Any = SparkSession.builder.remote(pipeline.remote).create()
        spark.sql("create namespace if not exists mem.shop")
        spark.sql("create table mem.shop.anchor (x int)")  # a namespace without tables goes with its session
        for what in changed(orders):
            pipeline.run()
            upstream = {"pd": cluster.pd, "table": "shop.orders", "as_of": str(pd.tso())}
            found, source = (
                sorted(map(tuple, frame.select("id", "code", "n").collect()))
                for frame in (
                    spark.table("mem.shop.orders"),
                    spark.read.format("tidegate").options(**upstream).load(),
                )
            )
            expected = sorted((key, *rest) for key, rest in orders.rows.items())
            assert found == source == expected, what
            print(f"{what}: {len(found)} rows, as upstream", flush=True)
        spark.stop()

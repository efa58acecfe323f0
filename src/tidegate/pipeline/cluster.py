"""Workers on a Spark cluster: jobs whose tasks connect to the application's service by the network."""

from __future__ import annotations

import os
import threading
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tidegate.errors import InvalidInput
from tidegate.pipeline.elsewhere import serve
from tidegate.pipeline.service import WORKERS_MAX, Service
from tidegate.spark.session import JAVA_OPTIONS, open_session
from tidegate.tls import CA, CERT, KEY


class ClusterJobs:
    """`jobs.Jobs` of a cluster; one job a core that it has for us."""

    def __init__(self, context: Any, service: Service) -> None:
        self._context, self._service = context, service
        self._numbers = count(1)

    def size(self) -> int:
        return min(int(self._context.defaultParallelism), WORKERS_MAX)

    def spares(self) -> int:
        """None: a worker has a core of the cluster for itself."""
        return 0

    def run(self) -> None:
        group = f"worker-{next(self._numbers)}"

        def end() -> None:
            self._context.cancelJobGroup(group)

        def end_job() -> None:
            # Of its own thread: Spark's JVM may hang, and who gives a worker up does not wait for it.
            threading.Thread(target=end, name=f"end-{group}", daemon=True).start()

        nonce = self._service.expect(end_job)
        self._context.setJobGroup(group, "a worker of Tidegate", interruptOnCancel=True)
        try:
            work = partial(serve, self._service.address, nonce)
            self._context.parallelize([0], 1).foreachPartition(work)
        finally:
            self._service.forget(nonce)

    def trouble(self) -> str:
        return self._service.refused


def cluster_session(master: str, work_dir: Path, daemon: str, host: str, python: str) -> SparkSession:
    """A session whose driver is reached at `host`; `python`: the interpreter on the machines of the cluster.

    Raises InvalidInput for settings of the site under which a worker's task may be taken away.
    """
    os.environ["SPARK_LOCAL_IP"] = host
    # Where the certificates are, the same paths on all machines. The paths are no secret.
    tls = {f"spark.executorEnv.{name}": os.environ[name] for name in (CA, CERT, KEY) if os.environ.get(name)}
    settings = {
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        **tls,
    }
    session = open_session("tidegate", master, work_dir, daemon, trial=settings, python=python)
    if session.sparkContext.getConf().get("spark.dynamicAllocation.enabled", "false") == "true":
        raise InvalidInput(
            "Dynamic allocation takes workers away while they write.",
            where="spark.dynamicAllocation.enabled",
            fix="set it to false for this application, in SPARK_CONF_DIR/spark-defaults.conf",
        )
    return session

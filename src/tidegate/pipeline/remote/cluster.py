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
from tidegate.pipeline.remote.elsewhere import serve
from tidegate.pipeline.remote.service import WORKERS_MAX, Service
from tidegate.spark.session import JAVA_OPTIONS, open_session
from tidegate.tls import CA, CERT, KEY


class ClusterJobs:
    """`jobs.Jobs` of a cluster: one job for each core that the cluster gives to the application."""

    def __init__(self, context: Any, service: Service) -> None:
        self._context, self._service = context, service
        self._numbers = count(1)

    def size(self) -> int:
        # The service has a thread for each worker's stream, and no more than these.
        return min(int(self._context.defaultParallelism), WORKERS_MAX)

    def spares(self) -> int:
        """0, because each worker occupies a core of the cluster."""
        return 0

    def run(self) -> None:
        group = f"worker-{next(self._numbers)}"

        def end() -> None:
            self._context.cancelJobGroup(group)

        def end_job() -> None:
            # In a thread of its own: the call blocks if Spark's JVM hangs, and the caller must not wait.
            threading.Thread(target=end, name=f"end-{group}", daemon=True).start()

        nonce = self._service.expect(end_job)
        # A group of its own, so that `end` cancels this job and no other.
        self._context.setJobGroup(group, "a worker of Tidegate", interruptOnCancel=True)
        try:
            work = partial(serve, self._service.address, nonce)
            self._context.parallelize([0], 1).foreachPartition(work)
        finally:
            self._service.forget(nonce)

    def trouble(self) -> str:
        return self._service.refused


def cluster_session(master: str, work_dir: Path, daemon: str, host: str, python: str) -> SparkSession:
    """A session whose driver listens at `host`. `python`: the interpreter on the machines of the cluster.

    Raises InvalidInput if the site's settings let Spark take executors away while their workers write.
    """
    os.environ["SPARK_LOCAL_IP"] = host
    # The paths of the certificates, which are the same on all machines. The paths are no secret.
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
            "dynamic allocation takes workers away while they write",
            where="spark.dynamicAllocation.enabled",
            fix="set it to false for this application, in SPARK_CONF_DIR/spark-defaults.conf",
        )
    return session

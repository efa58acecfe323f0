"""A real Kafka broker for the benchmarks, and its throughput with Kafka's own performance tool.

The broker is that of `tools/services`, with the optimising compiler of its JVM on. The tool is
`org.apache.kafka.tools.ProducerPerformance` of the same release: one more jar, fetched by its coordinates and
checked against the digest here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyspark
from benchmarks.rig import ROOT
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tidegate.java import java_home

TOOLS_VERSION: Final = "4.3.1"
TOOLS_SHA256: Final = "62f3c5dd7aa3442d4c5bc6a95f86e2502178ea09de8e27f74d9563bf955e253c"
KAFKA_LIBS: Final = ROOT / ".cache" / f"kafka-{TOOLS_VERSION}"
PARTITIONS: Final = 3
DELIMITER: Final = "%%next-message%%"
SAMPLE: Final = 20_000
"""How many messages are kept for the performance tool, which draws from them at random."""
TOPIC_SETTINGS: Final = {"max.message.bytes": "10485888"}


@contextmanager
def running_broker() -> Iterator[str]:
    """The bootstrap address of a new broker, which ends with the `with` block."""
    with broker_with_pid() as (bootstrap, _):
        yield bootstrap


@contextmanager
def broker_with_pid(*, optimised: bool = True) -> Iterator[tuple[str, int]]:
    """The same, with the process id of the broker.

    `optimised`: its JVM compiles a second time what runs often. In the first minutes that compiler takes more
    than it saves: a third of the broker's CPU with many topics and few rows.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-kafka-") as folder:
        environment = {**os.environ, **({"TIDEGATE_KAFKA_TIERED": "1"} if optimised else {})}
        command = [str(ROOT / "tools/services"), "start", "kafka", "--dir", folder, "--json"]
        try:
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
            found = json.loads(done.stdout)["kafka"]
            yield found["bootstrap"], int(found["pid"])
        finally:
            subprocess.run([command[0], "stop", "--dir", folder], check=True)


def new_topic(bootstrap: str, partitions: int = PARTITIONS) -> str:
    """Create a topic. Returns its name."""
    name = f"bench-{uuid.uuid4().hex[:8]}"
    topic = NewTopic(name, partitions, 1, config=TOPIC_SETTINGS)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})  # kept: its futures end with it
    admin.create_topics([topic])[name].result(30)
    return name


def delete_topic(bootstrap: str, name: str) -> None:
    """Delete a topic, to free its disk space."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    admin.delete_topics([name])[name].result(30)


def committed_values(bootstrap: str, topic: str, count: int = SAMPLE) -> list[bytes]:
    """The first values of a topic's partition 0 that a read_committed reader sees, at most `count`."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "sample", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"enable.auto.commit": False})
    values: list[bytes] = []
    try:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while len(values) < count and (found := consumer.consume(1000, timeout=3.0)):
                values += [m.value() for m in found if m.error() is None and m.value() is not None]
            if values:
                return values[:count]
    finally:
        consumer.close()
    return values


def fetch_tool() -> Path:
    """The performance tool's jar. A damaged one is fetched again."""
    jar = ROOT / ".cache" / f"kafka-tools-{TOOLS_VERSION}.jar"
    if not jar.exists() or _digest(jar) != TOOLS_SHA256:
        _fetch(jar)
    if (digest := _digest(jar)) != TOOLS_SHA256:
        jar.unlink()
        raise RuntimeError(f"{jar.name} has digest {digest}, expected {TOOLS_SHA256}")
    return jar


def _digest(jar: Path) -> str:
    return hashlib.sha256(jar.read_bytes()).hexdigest()


def _fetch(jar: Path) -> None:
    """Fetch a jar by its coordinates, with the Ivy inside pyspark, as for the broker's jars."""
    dependency = f'org="org.apache.kafka" name="kafka-tools" rev="{TOOLS_VERSION}"'
    with tempfile.TemporaryDirectory(prefix="tidegate-ivy-") as name:
        work = Path(name)
        (work / "ivy.xml").write_text(
            '<ivy-module version="2.0"><info organisation="tidegate" module="tools"/><dependencies>'
            f'<dependency {dependency} transitive="false" conf="*->default"/></dependencies></ivy-module>'
        )
        (work / "settings.xml").write_text(
            '<ivysettings><settings defaultResolver="central"/><resolvers><ibiblio name="central" '
            'm2compatible="true" usepoms="false" useMavenMetadata="false"/></resolvers></ivysettings>'
        )
        ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-2*.jar"))
        command = [str(java_home() / "bin/java"), "-jar", str(ivy), "-settings", str(work / "settings.xml")]
        command += ["-cache", str(work / "cache"), "-ivy", str(work / "ivy.xml")]
        command += ["-retrieve", str(work / "libs/[artifact]-[revision].[ext]")]
        subprocess.run(command, check=True, capture_output=True)
        jar.parent.mkdir(parents=True, exist_ok=True)
        (work / "libs" / jar.name).replace(jar)


def perf_tool(bootstrap: str, values: list[bytes], messages: int) -> dict[str, Any]:
    """The broker's throughput with Kafka's own tool: one producer, and messages drawn at random from
    `values`.

    acks=all, idempotent, no compression, batches as large as ours; no transactions.
    """
    topic = new_topic(bootstrap)
    with tempfile.NamedTemporaryFile("wb", suffix=".payload") as file:
        # The tool reads text, so bytes that are not UTF-8 (those of a length) become one character each.
        texts = (value.decode("utf-8", "replace").replace("\ufffd", "?") for value in values)
        file.write(DELIMITER.join(texts).encode())
        file.flush()
        command = [str(java_home() / "bin/java"), "-Xmx1g", "-cp", f"{fetch_tool()}:{KAFKA_LIBS}/*"]
        command += ["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--throughput", "-1"]
        command += ["--num-records", str(messages), "--payload-file", file.name]
        command += ["--payload-delimiter", DELIMITER, "--producer-props", f"bootstrap.servers={bootstrap}"]
        command += ["acks=all", "linger.ms=5", "batch.size=1000000", "buffer.memory=134217728"]
        command += ["max.request.size=10485760", "enable.idempotence=true"]
        done = subprocess.run(command, capture_output=True, text=True)
    delete_topic(bootstrap, topic)
    found = re.findall(r"([\d.]+) records/sec \(([\d.]+) MB/sec\)", done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"the performance tool failed: {done.stdout[-500:]} {done.stderr[-500:]}")
    records, megabytes = found[-1]
    return {"messages_per_s": round(float(records)), "mb_per_s": float(megabytes) * 1.048576}

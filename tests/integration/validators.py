"""Invariants of a feed's topics, checked message by message from their committed contents."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.fixtures.topic import read_committed
from tidegate.codec.base import Batch, CodecOptions, Decoded, describe
from tidegate.codec.decode import decoder
from tidegate.codec.registry import codec_of, options_of
from tidegate.config.reading import load_config
from tidegate.config.sink_uri import parse_source_uri
from tidegate.consumer.contract.check import TopicCheck
from tidegate.consumer.engine.places import number_of


@dataclass(slots=True)
class TopicReport:
    """The contents of a topic, and every way in which it breaks its contract."""

    rows: int = 0
    duplicates: int = 0
    resolved: dict[int, int] = field(default_factory=dict)
    ddls: list[tuple[int, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def read_topic(source: str) -> dict[int, Decoded]:
    """All committed messages of a topic, decoded, by partition; of several topics by their numbers."""
    (uri, names), options = parse_source_uri(source), _options(source)
    found = {
        number_of(names, name, partition): messages
        for name in names
        for partition, messages in read_committed(uri.bootstrap, name).items()
    }
    return {
        partition: decoder(options).decode(
            Batch(
                [m.key() for m in messages],
                [m.value() for m in messages],
                [m.offset() for m in messages],
                [m.headers() for m in messages],
            )
        )
        for partition, messages in found.items()
        if messages
    }


def _options(source: str) -> CodecOptions:
    return options_of(load_config(None, parse_source_uri(source)[0]))


def validate(source: str, keys: dict[str, tuple[str, ...]]) -> TopicReport:
    """Check a topic, or all topics of a feed. `keys` names the key columns of each table, `schema.table`.

    Per partition: a row's changes are in commit order; after Resolved R no row appears for the first time
    with commit_ts <= R; after DDL F no row with commit_ts <= F and before it none above; Resolved never
    goes back. A row appears in one partition only.
    """
    report = TopicReport()
    home: dict[tuple[Any, ...], int] = {}
    topic = read_topic(source)
    ddl_to = codec_of(_options(source)).ddl_to
    names = parse_source_uri(source)[1]
    check = TopicCheck(sorted(topic), ddl_to=ddl_to, remember=1 << 30, topics=names)
    for partition, decoded in topic.items():
        report.faults += [
            f"undecodable message at {partition}/{bad.offset}: {bad.why}" for bad in decoded.bad
        ]
        _validate_partition(partition, decoded, keys, home, report)
        check.take(partition, decoded)
    verdict = check.finish()
    # The product's own judge must come to the same, whatever this one finds.
    assert verdict.holds == (not report.faults), f"{report.faults[:5]} against {verdict.violations}"
    return report


def changes(source: str, keys: dict[str, tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    """The row changes of the tables in `keys`: table, commit ts and key, with their number."""
    found: Counter[tuple[str, ...]] = Counter()
    for decoded in read_topic(source).values():
        for item in describe(decoded):
            image, name = item.get("new") or item.get("old"), f"{item.get('schema')}.{item.get('table')}"
            if image and name in keys:
                found[name, str(item["commit_ts"]), *(str(image[column]) for column in keys[name])] += 1
    return found


def _validate_partition(
    partition: int,
    decoded: Decoded,
    keys: dict[str, tuple[str, ...]],
    home: dict[tuple[Any, ...], int],
    report: TopicReport,
) -> None:
    resolved = ddl_ts = highest = 0
    last: dict[tuple[Any, ...], int] = {}
    seen: set[tuple[Any, ...]] = set()
    for item in describe(decoded):
        where = f"{partition}/{item['offset']}"
        if item["kind"] == "resolved":
            if item["ts"] < resolved:
                report.faults.append(f"{where}: Resolved {item['ts']} after {resolved}")
            resolved = max(resolved, item["ts"])
        elif item["kind"] == "ddl":
            report.ddls.append((item["ts"], item["query"]))
            if highest > item["ts"]:
                report.faults.append(f"{where}: DDL {item['ts']} after a row of {highest}")
            if resolved >= item["ts"]:
                report.faults.append(f"{where}: DDL {item['ts']} after Resolved {resolved}")
            ddl_ts = max(ddl_ts, item["ts"])
        elif item["kind"] != "bad":
            report.rows += 1
            image = item["new"] or item["old"]
            name = f"{item['schema']}.{item['table']}"
            row = (name, *(image[column] for column in keys[name])) if name in keys else None
            change = (name, item["commit_ts"], item["kind"], repr(item["new"]), repr(item["old"]))
            if change in seen:
                report.duplicates += 1
                continue
            seen.add(change)
            highest = max(highest, item["commit_ts"])
            if item["commit_ts"] <= resolved:
                report.faults.append(
                    f"{where}: a row of {item['commit_ts']} first seen after Resolved {resolved}"
                )
            if item["commit_ts"] <= ddl_ts:
                report.faults.append(f"{where}: a row of {item['commit_ts']} after DDL {ddl_ts}")
            if row is not None:
                if last.get(row, 0) > item["commit_ts"]:
                    report.faults.append(f"{where}: {row} of {item['commit_ts']} after {last[row]}")
                last[row] = item["commit_ts"]
                if home.setdefault(row, partition) != partition:
                    report.faults.append(f"{where}: {row} is also in partition {home[row]}")
    report.resolved[partition] = resolved

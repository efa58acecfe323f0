"""The data files of a Delta table at a version, with their deletion vectors and bounds, as its log has them.

delta-rs does not show the vectors in the log, and a commit that gives a data file another vector must name
the earlier one. So tables with vectors are read here once more: the last checkpoint and the commits after it.
After that each commit costs what it contains.

A commit of ours that changes vectors consists of these actions (`changing`):

    remove   a data file with its earlier vector, and also one that is rewritten
    add      the same data file with its new vector; and each new data file
    protocol, metaData   only in the first such commit: from then on readers must know vectors

https://github.com/delta-io/delta/blob/master/PROTOCOL.md#deletion-vectors
"""

from __future__ import annotations

import io
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

import orjson
import pyarrow.parquet as pq

from tidegate.errors import Fatal
from tidegate.sink.lakehouse.deletion_vectors import Vector
from tidegate.sink.lakehouse.delta_log import checkpoints
from tidegate.sink.lakehouse.store import LOG, Store

FEATURE: Final = "deletionVectors"
ENABLED: Final = "delta.enableDeletionVectors"
_FEW_REMOVALS: Final = {"delta.deletedFileRetentionDuration": "interval 1 days"}
"""How long a checkpoint keeps removals, a week by default. A commit may remove each data file of a table with
its earlier vector, so that a week's removals would be many times the table's files."""
ENGINE: Final = "tidegate"
_LEGACY_WRITER: Final = ("invariants", "appendOnly")
"""The features that writer version 2 has. Tables with a higher version without features are not made here."""
_FEATURES_READER, _FEATURES_WRITER = 3, 7
"""The versions of the protocol that list features."""
_READ: Final = ("add", "metaData", "protocol")
_OPTIONAL: Final = ("tags", "deletionVector", "baseRowId", "defaultRowCommitVersion", "clusteringProvider")


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file of a version."""

    name: str
    """Its path below the table."""
    action: Mapping[str, Any]
    """Its `add` in the log."""
    rows: int
    vector: Vector | None
    lowest: Mapping[str, Any]
    greatest: Mapping[str, Any]
    """The bounds of some columns, which need not be tight."""

    @staticmethod
    def of(action: Mapping[str, Any]) -> LiveFile:
        """The file of an `add`."""
        stats = orjson.loads(action.get("stats") or b"{}")
        held = action.get("deletionVector")
        return LiveFile(
            unquote(action["path"]),
            {name: value for name, value in action.items() if value is not None or name not in _OPTIONAL},
            int(stats.get("numRecords", 0)),
            Vector.from_json(held) if held is not None else None,
            stats.get("minValues") or {},
            stats.get("maxValues") or {},
        )

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return int(self.action["size"])

    @property
    def dead(self) -> int:
        """How many rows are deleted."""
        return self.vector.count if self.vector is not None else 0

    @property
    def partition(self) -> Mapping[str, str | None]:
        """The values of the partition columns, as the log has them."""
        found: Mapping[str, str | None] = self.action["partitionValues"]
        return found

    def is_same(self, other: LiveFile | None) -> bool:
        """Whether another version has the same file with the same deleted rows."""
        return other is not None and (other.name, other.vector) == (self.name, self.vector)

    def removed(self, at_ms: int, *, data_change: bool) -> dict[str, Any]:
        """The action that removes it."""
        kept = {"path", "partitionValues", "size", "deletionVector"}
        held = {name: value for name, value in self.action.items() if name in kept}
        more = {"deletionTimestamp": at_ms, "dataChange": data_change, "extendedFileMetadata": True}
        return {"remove": held | more}

    def losing(self, vector: Vector) -> dict[str, Any]:
        """The action that adds it with another vector."""
        # Rows at the bounds may be deleted now.
        stats = orjson.loads(self.action.get("stats") or b"{}") | {"tightBounds": False}
        more = {"stats": orjson.dumps(stats).decode(), "deletionVector": vector.to_json(), "dataChange": True}
        return {"add": {**self.action, **more}}


class LiveFiles:
    """The data files at one version, which `commit` advances."""

    def __init__(self) -> None:
        self.version = -1
        self.files: dict[str, LiveFile] = {}
        """By name."""
        self._metadata: Mapping[str, Any] = {}
        self._protocol: Mapping[str, Any] = {}

    @property
    def vector_bytes(self) -> int:
        """The size of all vectors together."""
        return sum(file.vector.size for file in self.files.values() if file.vector is not None)

    def copy(self) -> LiveFiles:
        """The same files, which later commits do not change."""
        found = LiveFiles()
        found.version, found.files = self.version, dict(self.files)
        found._metadata, found._protocol = self._metadata, self._protocol
        return found

    def commit(self, version: int, lines: bytes) -> None:
        """Apply the next version."""
        assert version == self.version + 1, "a commit was left out"
        actions = [orjson.loads(line) for line in lines.splitlines() if line]
        # First all removals: a commit removes a file with its old vector and adds it with its new one.
        for action in actions:
            if "remove" in action:
                self.files.pop(unquote(action["remove"]["path"]), None)
        self._take(actions)
        self.version = version

    def _take(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for action in actions:
            if action.get("add") is not None:
                file = LiveFile.of(action["add"])
                self.files[file.name] = file
            elif action.get("metaData") is not None:
                self._metadata = action["metaData"]
            elif action.get("protocol") is not None:
                self._protocol = action["protocol"]

    def begin(self, version: int, checkpoint: bytes) -> None:
        """Start with the bytes of a checkpoint of this version."""
        held = pq.read_table(io.BytesIO(checkpoint), columns=list(_READ))
        self.files.clear()
        for batch in held.to_batches():
            self._take(_plain(row) for row in batch.to_pylist())
        self.version = version

    def changing(
        self, replaced: Sequence[LiveFile], made: Sequence[Mapping[str, Any]], lost: Mapping[str, Vector]
    ) -> bytes:
        """The lines of a commit that replaces data files, adds new ones, and gives others a new vector.

        `made`: their `add` actions. `lost`: by the name of a data file.
        """
        now = int(time.time() * 1000)
        change = any(action["dataChange"] for action in made) or bool(lost) or not made
        actions: list[Mapping[str, Any]] = [{"commitInfo": _info(now, "MERGE")}]
        if lost:
            actions += self._enabling()
        for file in replaced:
            actions.append(file.removed(now, data_change=change))
        for name, vector in lost.items():
            file = self.files[name]
            actions += [file.removed(now, data_change=True), file.losing(vector)]
        actions += [{"add": action} for action in made]
        return _lines(actions)

    def restoring(self, old: LiveFiles, note: Mapping[str, str]) -> bytes:
        """The lines of a commit after which the table has the files and columns of an earlier version.

        `note`: what the commit says of itself besides.
        """
        now = int(time.time() * 1000)
        # delta-rs restores such tables, too, but some releases leave the vectors as they are.
        actions: list[Mapping[str, Any]] = [{"commitInfo": {**_info(now, "RESTORE"), **note}}]
        if old._metadata != self._metadata:
            actions.append({"metaData": {k: v for k, v in old._metadata.items() if v is not None}})
        actions += [file.removed(now, data_change=True) for file in self.missing_in(old)]
        actions += [{"add": {**file.action, "dataChange": True}} for file in old.missing_in(self)]
        return _lines(actions)

    def missing_in(self, other: LiveFiles) -> list[LiveFile]:
        """The files that another version does not have, or has with other deleted rows."""
        return [file for name, file in self.files.items() if not file.is_same(other.files.get(name))]

    def _enabling(self) -> list[Mapping[str, Any]]:
        """The actions after which a table may have vectors; none if it may already."""
        found = list[Mapping[str, Any]]()
        features = self._protocol.get("readerFeatures") or []
        if FEATURE not in features:
            writers = self._protocol.get("writerFeatures") or _LEGACY_WRITER
            found.append(
                {
                    "protocol": {
                        "minReaderVersion": _FEATURES_READER,
                        "minWriterVersion": _FEATURES_WRITER,
                        "readerFeatures": [*features, FEATURE],
                        "writerFeatures": [*writers, FEATURE],
                    }
                }
            )
        properties = self._metadata.get("configuration") or {}
        if properties.get(ENABLED) != "true":
            held = {name: value for name, value in self._metadata.items() if value is not None}
            more = {ENABLED: "true", **_FEW_REMOVALS}
            found.append({"metaData": {**held, "configuration": {**properties, **more}}})
        return found


def _info(now: int, operation: str) -> dict[str, Any]:
    return {
        "timestamp": now,
        "operation": operation,
        "operationParameters": {},
        "engineInfo": ENGINE,
        # So that no two commits are equal: a repeated put recognizes its own.
        "txnId": uuid.uuid4().hex,
    }


def _lines(actions: Iterable[Mapping[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(action) + b"\n" for action in actions)


def _plain(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of a checkpoint as an action: pyarrow has maps as lists of pairs."""
    found: dict[str, Any] = dict(row)
    if row.get("add") is not None:
        found["add"] = {**row["add"], "partitionValues": dict(row["add"]["partitionValues"])}
    if row.get("metaData") is not None:
        held = row["metaData"]
        maps = {"configuration": dict(held.get("configuration") or ())}
        style = held.get("format") or {}
        maps["format"] = {**style, "options": dict(style.get("options") or ())}
        found["metaData"] = {**held, **maps}
    return found


def advanced(held: LiveFiles | None, store: Store, path: str, version: int) -> LiveFiles:
    """The data files of a table at a version, from those of an earlier one if the log has all commits after
    it, otherwise from the last checkpoint. Fatal if the log does not have what is needed.
    """
    found = held if held is not None and held.version <= version else _begun(store, path, version)
    if not _follow(found, store, path, version):
        # The log was trimmed after `held`, or another process is trimming it now.
        found = _begun(store, path, version)
        if not _follow(found, store, path, version):
            raise Fatal(
                "the log of a Delta table has a gap",
                where=store.uri(f"{path}/{LOG}"),
                why=f"version {found.version + 1} is missing, and no checkpoint up to {version} replaces it",
                fix="restore the table's directory, or start a new target",
            )
    return found


def _begun(store: Store, path: str, version: int) -> LiveFiles:
    """The data files at the last checkpoint up to a version; without one, those before the first commit."""
    files = LiveFiles()
    for at in reversed([at for at in checkpoints(store.names(f"{path}/{LOG}")) if at <= version]):
        data = store.get(f"{path}/{LOG}/{at:020d}.checkpoint.parquet")
        if data is not None:
            files.begin(at, data)
            break
    return files


def _follow(files: LiveFiles, store: Store, path: str, version: int) -> bool:
    """Apply the commits up to a version; False if one is missing."""
    while files.version < version:
        lines = store.get(f"{path}/{LOG}/{files.version + 1:020d}.json")
        if lines is None:
            return False
        files.commit(files.version + 1, lines)
    return True


def add_of(
    name: str, size: int, partition: Mapping[str, str | None], stats: Mapping[str, Any]
) -> dict[str, Any]:
    """The `add` of a new data file, whose name needs no encoding."""
    return {
        "path": name,
        "partitionValues": dict(partition),
        "size": size,
        "modificationTime": int(time.time() * 1000),
        "dataChange": True,
        "stats": orjson.dumps(stats).decode(),
    }

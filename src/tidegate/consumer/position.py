"""How far the target is, as it is kept with the data: in the commit that names a snapshot. Pure.

The Delta commit that appends a snapshot to `_tidegate/snapshots` adds one row whose column `position` is
this as JSON. So the snapshot, the offsets to restart from and what was applied change in one atomic step:
kill -9 before it leaves the previous snapshot in force, after it the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tidegate.errors import Fatal

FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """One partition of the topic."""

    offset: int
    """The first Kafka offset still needed."""
    applied: int
    """Every row with commit_ts <= applied is in the target."""
    watermark: int
    """The largest Resolved ts that stands before `offset`, or `applied`: what needs not be read again."""


@dataclass(frozen=True, slots=True)
class Position:
    """The state of a target after its newest snapshot."""

    ts: int
    """The snapshot's ts. Of TiCDC's topics a DDL of this very ts may still come: after it."""
    topic: str
    protocol: str
    mode: str
    partitions: Mapping[int, PartitionPosition]
    ddl_ts: int = 0
    """Every DDL below it is executed."""
    ddls: tuple[str, ...] = ()
    """Which DDLs of ddl_ts are executed: their identities (`flow.identity`)."""
    definitions: Mapping[str, int] | None = None
    """By table path, the number of the definition that its rows have; None: an earlier release kept none."""

    def to_json(self) -> str:
        """The text of the commit metadata."""
        partitions = {
            str(number): {"offset": p.offset, "applied": p.applied, "watermark": p.watermark}
            for number, p in self.partitions.items()
        }
        body: dict[str, Any] = {
            "format": FORMAT,
            "ts": self.ts,
            "topic": self.topic,
            "protocol": self.protocol,
        }
        body |= {"ddl_ts": self.ddl_ts, "ddls": list(self.ddls), "definitions": self.definitions}
        return orjson.dumps(body | {"mode": self.mode, "partitions": partitions}).decode()

    @classmethod
    def from_json(cls, text: str) -> Position:
        """Read it back; Fatal when it is not one of ours."""
        try:
            body = orjson.loads(text)
            if body["format"] != FORMAT:
                raise ValueError(f"format {body['format']}, this release reads {FORMAT}")
            partitions = {int(number): PartitionPosition(**p) for number, p in body["partitions"].items()}
            # A position of an earlier release took every DDL up to its ts for executed.
            ddl_ts = body.get("ddl_ts", body["ts"] + 1)
            done, definitions = tuple(body.get("ddls", ())), body.get("definitions")
            return cls(
                *(body["ts"], body["topic"], body["protocol"], body["mode"], partitions),
                *(ddl_ts, done, definitions),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Fatal(
                "the consumer's position cannot be read",
                where="column position of _tidegate/snapshots",
                why=str(error),
                fix="use the release that wrote it, or start a new target directory",
            ) from error

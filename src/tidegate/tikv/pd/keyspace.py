"""Keyspaces of API V2: names for the three bytes after the mode byte of every key. Durable.

`DEFAULT` with id 0 always exists. Others are created when the upstream starts, and keep their ids for ever.
(PD: pkg/keyspace.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from tidegate.clock import Clock
from tidegate.errors import InvalidInput
from tidegate.proto.keyspacepb_pb2 import KeyspaceMeta
from tidegate.tikv.api_version import KEYSPACE_ID_MAX
from tidegate.tikv.engine import META, Engine

KEYSPACES_KEY: Final = b"pd/keyspaces"
DEFAULT: Final = "DEFAULT"
GC_TYPE: Final = "gc_management_type"
GC_OF_KEYSPACE: Final = "keyspace_level"


class Keyspaces:
    """The keyspaces of a cluster. They do not change after the start, so any thread may read them."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        wanted: Sequence[str] = (),
        configs: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`configs`: by name, as PD keeps them, from `gc_management_type` to `tso_keyspace_group_id`."""
        rows = json.loads(engine.get(META, KEYSPACES_KEY) or b"[]")
        now_s = clock.now_ms() // 1000
        names = {row[1] for row in rows}
        missing = [name for name in dict.fromkeys([DEFAULT, *wanted]) if name not in names]
        for name in missing:
            if not name or not name.replace("-", "_").isidentifier():
                raise InvalidInput(
                    f"'{name}' is not a name of a keyspace", fix="use letters, digits, hyphens, underscores"
                )
            if len(rows) > KEYSPACE_ID_MAX:
                raise InvalidInput(f"there are {len(rows)} keyspaces already, and no id is left")
            rows.append([len(rows), name, now_s])
        if missing:
            engine.write([(META, KEYSPACES_KEY, json.dumps(rows).encode())])
            engine.sync()
        self._all = [
            KeyspaceMeta(
                id=number,
                name=name,
                created_at=since,
                state_changed_at=since,
                config=(configs or {}).get(name, {}),
            )
            for number, name, since in rows
        ]

    def all(self) -> Sequence[KeyspaceMeta]:
        """Every keyspace, by id."""
        return self._all

    def collecting(self) -> list[int]:
        """The ids of keyspaces with their own GC, which have their own barriers and safepoint."""
        return [each.id for each in self._all if each.config.get(GC_TYPE) == GC_OF_KEYSPACE]

    def by_name(self, name: str) -> KeyspaceMeta | None:
        """The keyspace with a name."""
        return next((each for each in self._all if each.name == name), None)
